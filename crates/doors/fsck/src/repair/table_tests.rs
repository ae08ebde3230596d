//! Tables of trees with impossible entries.

use super::*;
use kedge_format::superblock::{CheckpointState, TableState};

fn superblock() -> Superblock {
    let image = crate::test_image::Image::sample().build();
    let trees =
        TableState { root: BlockNo(0), root_generation: Generation(1), root_level: 0, nodes: 1, birth: 5 };
    let checkpoint = CheckpointState { trees: Some(trees), ..image.superblock.checkpoint };
    Superblock { checkpoint, ..image.superblock }
}

fn tree(dir: u64, name: &str, point: u32) -> TreeEntry {
    TreeEntry { dir: Ino(dir), name: name.into(), point, ..empty(TreeKind::Head) }
}

fn point(above: u32) -> TreeEntry {
    TreeEntry { point: above, ..empty(TreeKind::Point) }
}

fn settled(entries: &[(u32, TreeEntry)]) -> Table {
    Table::settle(entries.iter().cloned().collect(), &superblock(), &mut Repairs::new(8))
}

#[test]
fn a_table_that_is_right_stays() {
    let entries = [(0, tree(0, "", 2)), (1, tree(1, "a", 2)), (2, point(0)), (3, tree(1, "b", 0))];
    let table = settled(&entries);
    assert_eq!(table.entries, entries.into_iter().collect());
    assert!(table.lost.is_empty() && table.homeless.is_empty());
    use Step::{Enter, Leave};
    let steps = [Enter(2), Enter(0), Leave(0), Enter(1), Leave(1), Leave(2), Enter(3), Leave(3)];
    assert_eq!(table.steps(), steps);
}

#[test]
fn missing_entries_are_made_and_what_nothing_uses_goes() {
    let dying = TreeEntry { kind: TreeKind::Dying, ..empty(TreeKind::Dying) };
    let table = settled(&[(1, tree(1, "a", 7)), (4, dying), (5, point(6)), (6, point(0))]);
    assert_eq!(table.entries.keys().copied().collect::<Vec<_>>(), [0, 1, 7]);
    assert_eq!(table.lost, BTreeSet::from([7]));
}

#[test]
fn circles_end() {
    let table = settled(&[(0, tree(0, "", 2)), (2, point(3)), (3, point(4)), (4, point(2))]);
    assert_eq!(table.steps().len(), 8, "{:?}", table.steps());
    let inside = |tree: u32| Ino(1).in_tree(tree).0;
    let named = [(0, tree(0, "", 0)), (1, tree(inside(2), "a", 0)), (2, tree(inside(1), "b", 0))];
    assert!(!settled(&named).homeless.is_empty());
}

#[test]
fn a_name_is_one_trees() {
    let table = settled(&[
        (0, tree(0, "", 0)),
        (1, tree(1, "a", 0)),
        (2, tree(1, "a", 0)),
        (3, tree(1 << 50, "x", 0)),
    ]);
    assert_eq!(table.homeless, BTreeSet::from([2, 3]));
}

#[test]
fn marks_that_most_trees_have_are_taken() {
    let mut table =
        settled(&[(0, tree(0, "", 9)), (1, tree(1, "a", 9)), (2, tree(1, "b", 9)), (9, point(0))]);
    let set = |table: &mut Table, number: u32, births, nodes| {
        let entry = table.entries.get_mut(&number).unwrap();
        (entry.births_below, entry.nodes_below) = (births, Generation(nodes));
    };
    set(&mut table, 0, 3, 10);
    set(&mut table, 1, 3, 10);
    set(&mut table, 2, 1, 4);
    table.set_marks(9, (2, Generation(7)), Generation(20), &mut Repairs::new(8));
    for number in [0, 1, 2] {
        let entry = &table.entries[&number];
        assert_eq!((entry.births_below, entry.nodes_below), (3, Generation(10)), "tree {number}");
    }
    // None of the entries' marks is above what the point has.
    table.set_marks(9, (8, Generation(12)), Generation(20), &mut Repairs::new(8));
    assert_eq!((table.entries[&2].births_below, table.birth), (8, 8));
    assert_eq!(table.points_up_to(2, 1), [9]);
}
