//! Compares sets of ranges with sets of numbers.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are compared")]

use super::{Later, Left, Ranges};
use std::collections::BTreeSet;

#[test]
fn ranges_are_those_of_a_set_of_numbers() {
    // Tries all ways to add three ranges of a few numbers.
    let bounds: Vec<(u64, u64)> = (0..6).flat_map(|from| (from..=6).map(move |to| (from, to))).collect();
    for a in &bounds {
        for b in &bounds {
            for c in &bounds {
                let (mut ranges, mut set) = (Ranges::default(), BTreeSet::new());
                for (from, to) in [a, b, c] {
                    ranges.add(*from..*to);
                    set.extend(*from..*to);
                }
                assert!((0..7).all(|at| ranges.has(at) == set.contains(&at)), "{a:?} {b:?} {c:?}");
                for from in [0, 1, 4] {
                    let left: Vec<u64> = ranges.without(from..6).into_iter().flatten().collect();
                    let want: Vec<u64> = (from..6).filter(|at| !set.contains(at)).collect();
                    assert_eq!(left, want, "{from}.. without {a:?} {b:?} {c:?}");
                }
            }
        }
    }
}

#[test]
fn a_write_whose_end_was_cleared_keeps_the_size() {
    let mut later = Later::default();
    later.cleared.add(5..20);
    assert_eq!(later.left_of(0..10), Left { pieces: Vec::from([0..5]), zero: Some(9) });
    later.settled.add(8..u64::MAX);
    assert_eq!(later.left_of(0..10), Left { pieces: Vec::from([0..5]), zero: None });
    assert_eq!(later.left_of(3..3), Left::default());
}
