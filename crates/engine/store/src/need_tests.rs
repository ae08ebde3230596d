use super::*;
use kedge_base::{BlockNo, Extent, Ino};
use kedge_format::item::ExtentItem;
use kedge_format::record::{InodeMask, RecordBuilder, RecordOp};
use kedge_format::{InodeCore, ItemKind, Key};

const MANY: u64 = 1 << 30;

fn need(changes: u32, puts: u32, neighbours: u32) -> Need {
    Need { changes, puts, neighbours, ..Need::record(Class::Normal) }
}

#[test]
fn nodes_are_needed_for_each_path_and_each_level() {
    assert_eq!(need(0, 1, 0).nodes(1, MANY), 4, "a copy, a split, a new root, and one for others");
    assert_eq!(need(1, 0, 0).nodes(1, MANY), 3);
    assert_eq!(need(0, 1, 0).nodes(3, MANY), 8, "as `Tree::nodes_per_put_max` says");
    assert_eq!(need(4, 0, 0).nodes(3, MANY), 4 * 2 + 4);
    assert_eq!(need(11, 0, 0).nodes(3, MANY), 11 + 9 + 4, "above the leaves three paths count one");
    assert_eq!(need(0, 0, 65).nodes(2, MANY), 2 + 2 + 4, "neighbours share leaves");
    assert_eq!(need(11, 0, 0).in_trees(5).nodes(3, MANY), 11 * 2 + 5 * 4, "a root for each tree");
    assert_eq!(need(500, 0, 0).nodes(2, 10), 18 + 4, "a tree has no more nodes than it has");
}

#[test]
fn the_bytes_of_a_need_are_those_of_the_record() {
    let need = Need::record(Class::Normal).patches(1).creates(1).puts(2, 10).deletes(3).extents(2).runs(2);
    let need = need.drops(1).zeros(1).data(2, 30);
    let mut record = RecordBuilder::new(RecordOp::Create);
    let (key, run) = (Key::inode(Ino(2)), Extent::new(BlockNo(1), 1));
    record.inode(Ino(2), InodeMask::ALL_FIELDS, &InodeCore::default());
    record.inode(Ino(3), InodeMask::ALL_FIELDS | InodeMask::CREATE, &InodeCore::default());
    (0..2).for_each(|_| record.put(key, &[0; 10]));
    (0..3).for_each(|_| record.delete(key));
    let item = ExtentItem { start: BlockNo(1), blocks: 1, unwritten: false, birth: 0, counted: false };
    (0..2).for_each(|n| record.put(Key::new(Ino(2), ItemKind::Extent, n), &item.encode()));
    record.alloc(run);
    record.free(run);
    record.drop_data(Ino(2), 0, 1);
    record.zero(Ino(2), 0, 1);
    record.data(Ino(2), 0, &[1; 10]);
    record.data(Ino(2), 0, &[1; 20]);
    let promises = 3 * PIECES_PER_EDIT * PROMISE_PER_PIECE;
    assert_eq!(need.log_bytes, record.len() as u64 + promises);
    assert_eq!((need.changes, need.puts, need.neighbours), (4, 3, 2));
}
