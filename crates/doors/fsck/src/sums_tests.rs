use super::*;
use kedge_base::BlockNo;

fn extent(blocks: u32, unwritten: bool) -> ExtentItem {
    ExtentItem { start: BlockNo(1000), blocks, unwritten, birth: 0, counted: false }
}

fn sums(of: impl IntoIterator<Item = u64>) -> SumsItem {
    let mut item = SumsItem::default();
    of.into_iter().for_each(|block| item.set(block, 1));
    item
}

#[test]
fn each_written_block_needs_a_checksum() {
    let mut written = Written::default();
    written.extent(0, &extent(20, false));
    written.extent(30, &extent(4, true));
    written.extent(40, &extent(2, false));
    written.item(0, &sums(0..16));
    written.item(16, &sums(16..20));
    written.item(32, &sums(40..42));
    assert_eq!(written.finish(), None);
}

#[test]
fn what_is_missing_is_counted_from_the_first() {
    let mut written = Written::default();
    written.extent(5, &extent(40, false));
    written.item(16, &sums([16, 17, 19]));
    // Missing are 5 to 15, 18, 20 to 31, and 32 to 44.
    assert_eq!(written.finish(), Some((5, 11 + 1 + 12 + 13)));
    let mut written = Written::default();
    written.extent(0, &extent(u32::MAX, false));
    written.extent(u64::MAX - 1, &extent(9, false));
    assert_eq!(written.finish(), Some((0, u64::from(u32::MAX) + 1)));
}
