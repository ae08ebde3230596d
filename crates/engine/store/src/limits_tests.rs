use super::{Charge, Delta, LimitId, Limits, Spent, check};
use kedge_base::Ino;
use kedge_format::limits::{DEPTH_MAX, LimitEntry};
use std::collections::BTreeMap;
use std::sync::Arc;

fn id(number: u32) -> LimitId {
    LimitId { tree: 0, number }
}

fn entry(dir: u64, parent: u32, blocks_max: Option<u64>) -> LimitEntry {
    LimitEntry { dir: Ino(dir), parent, blocks_max, inodes_max: None, blocks: 0, inodes: 0 }
}

/// Limit 1 with 10 blocks, limit 2 inside it with 8 blocks, and limit 3, which has no parent and no
/// maximum.
fn limits() -> Arc<Limits> {
    let limits = Limits::new();
    let all = [(1, entry(10, 0, Some(10))), (2, entry(20, 1, Some(8))), (3, entry(30, 1, None))];
    for (number, entry) in all {
        limits.set(id(number), entry, false);
    }
    let uses = |number| Delta { id: id(number), blocks: 0, inodes: 1 };
    limits.settle(&[uses(1), uses(2), uses(3)], &[], false);
    Arc::new(limits)
}

#[test]
fn a_promise_never_passes_a_maximum_on_the_way() {
    let limits = limits();
    let inner = Charge::blocks(&limits, id(2), 100);
    assert_eq!(inner.held_blocks(), 8);
    let beside = Charge::blocks(&limits, id(3), 100);
    assert_eq!(beside.held_blocks(), 2, "the outer limit has 10");
    assert_eq!(Charge::blocks(&limits, id(1), 1).held_blocks(), 0);
    drop(inner);
    assert_eq!(Charge::blocks(&limits, id(3), 100).held_blocks(), 8);
}

#[test]
fn a_record_turns_a_promise_into_use_at_once() {
    let limits = limits();
    let mut charge = Charge::blocks(&limits, id(2), 8);
    limits.settle(
        &[Delta { id: id(2), blocks: 5, inodes: 0 }],
        &[Spent { id: id(2), blocks: 5, inodes: 0 }],
        false,
    );
    charge.spent(5, 0);
    let state = limits.get(id(1)).unwrap();
    assert_eq!((state.entry.blocks, state.promised.blocks), (5, 3));
    drop(charge);
    assert_eq!(Charge::blocks(&limits, id(2), 100).held_blocks(), 3);
}

#[test]
fn a_nested_limit_takes_its_use_along() {
    let limits = limits();
    limits.settle(&[Delta { id: id(2), blocks: 4, inodes: 0 }], &[], false);
    limits.set(id(4), entry(40, 1, None), false);
    limits.nest(id(2), 4);
    let used = |number| limits.get(id(number)).map(|state| (state.entry.blocks, state.entry.inodes));
    assert_eq!((used(1), used(4), used(2)), (Some((4, 3)), Some((4, 1)), Some((4, 1))));
    limits.nest(id(2), 0);
    assert_eq!((used(1), used(4), used(2)), (Some((0, 2)), Some((0, 0)), Some((4, 1))));
}

#[test]
fn a_limit_goes_with_its_last_inode() {
    let limits = limits();
    assert!(limits.take_changes().iter().all(|(_, entry)| entry.is_some()));
    limits.settle(&[Delta { id: id(2), blocks: 0, inodes: -1 }], &[], false);
    let changes = limits.take_changes();
    assert!(changes.iter().any(|(key, entry)| key.offset == 2 && entry.is_none()), "{changes:?}");
    assert!(limits.get(id(2)).is_none());
    // A limit whose number is still to be assigned to inodes stays.
    limits.set(id(7), entry(70, 0, None), true);
    limits.take_changes();
    assert!(limits.get(id(7)).is_some());
}

#[test]
fn a_fork_has_limits_of_its_own() {
    let limits = limits();
    limits.settle(&[Delta { id: id(2), blocks: 4, inodes: 0 }], &[], false);
    limits.fork(0, 5);
    let forked = LimitId { tree: 5, number: 2 };
    assert_eq!(Charge::blocks(&limits, forked, 100).held_blocks(), 4);
    assert_eq!(limits.count(5), 3);
    limits.delete_tree(5);
    assert_eq!((limits.count(5), limits.count(0)), (0, 3));
    // A promise for a limit of a deleted tree has no effect.
    assert_eq!(Charge::blocks(&limits, forked, 100).held_blocks(), 100);
}

#[test]
fn damaged_tables_are_refused() {
    let table = |entries: &[(u32, LimitEntry)]| {
        let entries: BTreeMap<_, _> = entries.iter().map(|(number, entry)| (id(*number), *entry)).collect();
        check(&entries, |tree| tree == 0)
    };
    table(&[(1, entry(10, 0, None)), (2, entry(20, 1, None))]).unwrap();
    let two = [(1, entry(10, 2, None)), (2, entry(20, 1, None))];
    assert!(table(&two).is_err(), "a circle");
    assert!(table(&[(1, entry(10, 1, None))]).is_err(), "its own parent");
    assert!(table(&[(1, entry(10, 9, None))]).is_err(), "no parent");
    assert!(table(&[(1, entry(10, 0, None)), (2, entry(10, 0, None))]).is_err(), "one directory");
    let deep =
        |count: usize| (1..=count as u32).map(|n| (n, entry(n as u64, n - 1, None))).collect::<Vec<_>>();
    table(&deep(DEPTH_MAX)).unwrap();
    assert!(table(&deep(DEPTH_MAX + 1)).is_err());
    let of_point = BTreeMap::from([(LimitId { tree: 3, number: 1 }, entry(10, 0, None))]);
    assert!(check(&of_point, |tree| tree == 0).is_err());
}
