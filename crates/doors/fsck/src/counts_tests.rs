use super::Counts;
use crate::report::Findings;
use kedge_base::{BlockNo, Extent};
use kedge_format::counts::CountItem;
use kedge_format::item::ExtentItem;

/// Returns the findings for these extents (start, blocks, birth) and items (start, blocks, count,
/// birth).
fn found(extents: &[(u64, u32, u32)], items: &[(u64, u32, u32, u32)]) -> Vec<String> {
    let mut counts = Counts::default();
    for &(start, blocks, birth) in extents {
        let start = BlockNo(start);
        counts.extent(&ExtentItem { start, blocks, unwritten: false, birth, counted: true });
    }
    for &(start, blocks, count, birth) in items {
        let extent = Extent::new(BlockNo(start), blocks as u64);
        counts.item(extent, &CountItem { blocks, count, birth });
    }
    let mut findings = Findings::new(100);
    counts.judge(&mut findings);
    findings.kept_mut().iter().map(|finding| finding.what.clone()).collect()
}

#[test]
fn counts_that_are_right() {
    assert_eq!(found(&[], &[]), [""; 0]);
    assert_eq!(found(&[(10, 5, 0), (10, 5, 0)], &[(10, 5, 2, 0)]), [""; 0]);
    let parts = [(10, 3, 1, 4), (13, 2, 2, 4), (15, 1, 1, 4)];
    assert_eq!(found(&[(10, 5, 4), (13, 3, 4)], &parts), [""; 0]);
    let sharers = vec![(7, 1, 3); 65_000];
    assert_eq!(found(&sharers, &[(7, 1, 65_000, 3)]), [""; 0]);
}

#[test]
fn counts_that_are_wrong() {
    let two = [(10, 5, 0), (10, 5, 0)];
    assert_eq!(found(&two, &[]), ["5 blocks have a count of 0 and 2 extents"]);
    assert_eq!(found(&two, &[(10, 5, 3, 0)]), ["5 blocks have a count of 3 and 2 extents"]);
    assert_eq!(found(&[], &[(10, 5, 1, 0)]), ["5 blocks have a count of 1 and 0 extents"]);
    assert_eq!(found(&two, &[(10, 3, 2, 0), (13, 2, 1, 0)]), ["2 blocks have a count of 1 and 2 extents"]);
    assert_eq!(found(&[(9, 7, 0)], &[(10, 5, 1, 0)]).len(), 2, "a block before and one after");
    let births = "5 blocks have another birth than their extents";
    assert_eq!(found(&[(10, 5, 1), (10, 5, 3)], &[(10, 5, 2, 2)]), [births]);
    assert_eq!(found(&[(10, 5, 1)], &[(10, 5, 1, 0)]), [births]);
}
