use super::*;
use kedge_base::ManualClock;

#[test]
fn numbers_are_those_of_the_engine_until_the_first_tree_is_replaced() {
    let numbers = Numbers::default();
    for ino in [Ino::ROOT, Ino(57), Ino(57).in_tree(3)] {
        assert_eq!((numbers.inward(ino), numbers.outward(ino)), (ino, ino));
    }
}

#[test]
fn two_trees_exchange_their_numbers_and_the_root_keeps_its_own() {
    let numbers = Numbers::default();
    numbers.replace().done(9);
    assert_eq!(numbers.inward(Ino::ROOT), Ino::ROOT);
    assert_eq!(numbers.inward(Ino(57)), Ino(57).in_tree(9));
    assert_eq!(numbers.inward(Ino(57).in_tree(9)), Ino(57));
    assert_eq!(numbers.inward(Ino(57).in_tree(3)), Ino(57).in_tree(3));
    assert_eq!(numbers.outward(Ino(57)), Ino(57).in_tree(9));
    // After the next replacement the numbers of the first dying tree are not translated any more.
    numbers.replace().done(12);
    assert_eq!(numbers.inward(Ino(57).in_tree(9)), Ino(57).in_tree(9));
    assert_eq!(numbers.inward(Ino(57)), Ino(57).in_tree(12));
}

#[test]
fn a_call_beside_a_replacement_gets_nothing_of_two_trees() {
    let (numbers, clock) = (Numbers::default(), ManualClock::default());
    let beside = |ino| {
        numbers.steady(&clock, ino, |inside| {
            numbers.replace().done(numbers.0.load(SeqCst) as u32 + 1);
            Ok(inside)
        })
    };
    assert!(beside(Ino(57)).is_err());
    assert!(beside(Ino::ROOT).is_err());
    let other = Ino(57).in_tree(77);
    assert_eq!(beside(other).unwrap(), other);
    assert_eq!(numbers.steady(&clock, Ino(5), Ok).unwrap(), Ino(5).in_tree(3));
    // A replacement that fails leaves the numbers unchanged.
    drop(numbers.replace());
    assert_eq!(numbers.inward(Ino(5)), Ino(5).in_tree(3));
}
