//! Counts that are made from marked extents.

use super::*;

/// First block, number of blocks, count and birth.
type Counts = Vec<(u64, u32, u32, u32)>;

fn settled(extents: &[(u64, u32, u32)], items: &[(u64, u32, u32, u32)]) -> (Vec<u64>, Counts) {
    let mut shares = Shares::default();
    for (start, blocks, birth) in extents {
        let item = ExtentItem {
            start: BlockNo(*start),
            blocks: *blocks,
            unwritten: false,
            birth: *birth,
            counted: true,
        };
        shares.extent(&item);
    }
    for (start, blocks, count, birth) in items {
        shares.item(*start, CountItem { blocks: *blocks, count: *count, birth: *birth });
    }
    let (stay, added) = shares.settle(&mut Repairs::new(8));
    let added = added.into_iter().map(|(at, i)| (at, i.blocks, i.count, i.birth));
    (stay.into_keys().collect(), added.collect())
}

#[test]
fn right_counts_stay_as_they_are() {
    let extents = [(100, 10, 0), (100, 10, 0), (105, 2, 0)];
    let items = [(100, 5, 2, 0), (105, 2, 3, 0), (107, 2, 2, 0), (109, 1, 2, 0)];
    assert_eq!(settled(&extents, &items), (vec![100, 105, 107, 109], vec![]));
}

#[test]
fn lost_and_wrong_counts_are_made_again() {
    let extents = [(100, 10, 0), (104, 10, 0), (200, 1, 7)];
    assert_eq!(settled(&extents, &[]).1, [(100, 4, 1, 0), (104, 6, 2, 0), (110, 4, 1, 0), (200, 1, 1, 7)]);
    // In order: a count without extents, too high, too low, correct, and with a wrong birth.
    let items = [(50, 3, 1, 0), (100, 4, 2, 0), (104, 6, 1, 0), (110, 4, 1, 0), (200, 1, 1, 0)];
    let (stay, added) = settled(&extents, &items);
    assert_eq!((stay, added), (vec![110], vec![(100, 4, 1, 0), (104, 6, 2, 0), (200, 1, 1, 7)]));
}

#[test]
fn a_right_item_in_the_middle_of_a_run_is_kept() {
    assert_eq!(settled(&[(10, 9, 1)], &[(13, 2, 1, 1)]), (vec![13], vec![(10, 3, 1, 1), (15, 4, 1, 1)]));
}

#[test]
fn no_item_crosses_a_group() {
    let at = GROUP_BLOCKS - 2;
    assert_eq!(settled(&[(at, 2, 0), (at + 2, 3, 0)], &[]).1, [(at, 2, 1, 0), (at + 2, 3, 1, 0)]);
}
