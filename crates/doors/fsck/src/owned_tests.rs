use super::*;

#[test]
fn a_second_owner_is_told_as_runs() {
    let mut owned = Owned::new(3);
    assert!(owned.claim(BlockNo(60), 100).is_empty());
    assert!(owned.claim(BlockNo(GROUP_BLOCKS - 1), 2).is_empty());
    assert_eq!(owned.used(), 102);
    assert_eq!(owned.claim(BlockNo(0), 200), vec![(BlockNo(60), 100)]);
    assert_eq!(owned.used(), 202);
    assert_eq!(owned.claim(BlockNo(GROUP_BLOCKS - 2), 4), vec![(BlockNo(GROUP_BLOCKS - 1), 2)]);
    assert!(owned.group(2).is_none() && owned.group(1).is_some());
}

#[test]
fn runs_of_a_word_join_across_words() {
    let mut runs = Vec::new();
    push_runs(&mut runs, 0, 1 << 63 | 0b101);
    push_runs(&mut runs, 64, u64::MAX);
    push_runs(&mut runs, 128, 1);
    assert_eq!(runs, vec![(BlockNo(0), 1), (BlockNo(2), 1), (BlockNo(63), 66)]);
}

#[test]
fn what_is_released_or_removed_is_free_again() {
    let mut owned = Owned::new(2);
    owned.claim(BlockNo(100), 200);
    owned.claim(BlockNo(GROUP_BLOCKS - 3), 6);
    let mut other = Owned::new(2);
    other.claim(BlockNo(150), 10);
    other.claim(BlockNo(GROUP_BLOCKS), 10);
    owned.release(BlockNo(100), 20);
    owned.remove(&other);
    assert_eq!(owned.taken(BlockNo(90), 300), [(BlockNo(120), 30), (BlockNo(160), 140)]);
    assert_eq!(owned.used(), 30 + 140 + 3);
    assert!(owned.is_free(BlockNo(GROUP_BLOCKS), 10) && !owned.is_free(BlockNo(110), 11));
    owned.add(&other);
    assert_eq!(owned.used(), 30 + 140 + 3 + 20);
    assert_eq!(owned.taken(BlockNo(GROUP_BLOCKS - 5), 20), [(BlockNo(GROUP_BLOCKS - 3), 13)]);
}
