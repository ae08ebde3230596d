use super::*;
use crate::policy::order::{ByLocation, OldestFirst};

fn sorted(order: &dyn WritebackOrder) -> Vec<u64> {
    let mut inodes: Vec<DirtyInode> = [(3, 5, Some(10)), (1, 7, None), (2, 6, Some(4))]
        .map(|(ino, since, location)| DirtyInode {
            ino: Ino(ino),
            since: Duration::from_secs(since),
            location,
        })
        .into();
    order.sort(&mut inodes);
    inodes.iter().map(|i| i.ino.0).collect()
}

#[test]
fn the_queue_gives_each_inode_once_and_not_those_that_are_busy() {
    let set = OwnSet::default();
    for ino in 1..=5 {
        set.add(DirtyHandle::detached(Ino(ino), Duration::from_secs(10 - ino)));
    }
    let take = |max, busy: u64, order: &dyn WritebackOrder| -> Vec<u64> {
        set.batch(max, &|ino| ino == Ino(busy), order).iter().map(|handle| handle.ino.0).collect()
    };
    assert_eq!(take(2, 3, &OldestFirst), [5, 4]);
    set.remove(Ino(2));
    assert_eq!(take(2, 3, &OldestFirst), [1], "what is clean by now is left out");
    assert_eq!(take(9, 3, &ByLocation), [1, 4, 5], "filled anew when it is empty");
    for ino in [1, 4, 5] {
        set.remove(Ino(ino));
    }
    assert!(take(9, 3, &ByLocation).is_empty());
    assert_eq!(take(9, 0, &OldestFirst), [3]);
}

#[test]
fn orders_sort_as_they_say() {
    assert_eq!(sorted(&OldestFirst), [3, 2, 1]);
    assert_eq!(sorted(&ByLocation), [2, 3, 1]);
}
