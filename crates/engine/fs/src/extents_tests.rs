use super::*;

fn set(items: &[(u64, u64, u32, bool)]) -> ExtentSet {
    let mut s = ExtentSet::default();
    for &(at, start, blocks, unwritten) in items {
        let item = ExtentItem { start: BlockNo(start), blocks, unwritten, birth: 0, counted: false };
        s.was.insert(at, item);
        s.now.insert(at, item);
    }
    s
}

fn edits(s: ExtentSet) -> usize {
    let mut record = RecordBuilder::new(kedge_format::record::RecordOp::WriteBack);
    s.emit(&mut record, Ino(5))
}

#[test]
fn an_append_grows_the_extent_before_it() {
    let mut s = set(&[(0, 100, 4, false)]);
    s.insert_new(4, Extent::new(BlockNo(104), 2), false, 0);
    assert_eq!(edits(s), 1);
}

#[test]
fn a_punch_in_the_middle_splits_and_frees() {
    let mut s = set(&[(0, 100, 10, false)]);
    assert_eq!(s.remove(3, 5).freed, vec![Extent::new(BlockNo(103), 2)]);
    assert_eq!(s.now.len(), 2);
    assert_eq!(edits(s), 2);
}

#[test]
fn writing_into_a_preallocation_splits_it_and_merges_with_the_written_part() {
    let mut s = set(&[(0, 100, 2, false), (2, 102, 8, true)]);
    s.set_written(2, 3);
    s.merge();
    assert_eq!(
        s.now[&0],
        ExtentItem { start: BlockNo(100), blocks: 3, unwritten: false, birth: 0, counted: false }
    );
    assert_eq!(
        s.now[&3],
        ExtentItem { start: BlockNo(103), blocks: 7, unwritten: true, birth: 0, counted: false }
    );
}

#[test]
fn nothing_changed_is_no_edit() {
    let mut s = set(&[(0, 100, 2, false), (7, 300, 8, true)]);
    s.set_written(0, 2);
    assert_eq!(edits(s), 0);
}
