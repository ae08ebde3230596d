#![allow(clippy::unwrap_used)]

use super::*;
use std::rc::Rc;

#[test]
fn a_witness_sees_the_records_of_its_call_and_no_others() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let committed = {
        let seen = seen.clone();
        Box::new(move |kind, end, ino| seen.borrow_mut().push((kind, end, ino)))
    };
    committed_outside();
    let time = Timespec { sec: 7, nsec: 8 };
    during(Witness { time: Some(time), number: Some(Ino(50)), committed: Some(committed) }, || {
        assert_eq!(super::time(), Some(time));
        assert_eq!((number(), number()), (Some(Ino(50)), None), "each number is returned once");
        super::committed(1, Lsn(10));
        numbered(Ino(50));
        super::committed(2, Lsn(20));
    });
    committed_outside();
    assert_eq!(*seen.borrow(), [(1, Lsn(10), None), (2, Lsn(20), Some(Ino(50)))]);
    assert_eq!((super::time(), number()), (None, None));
}

fn committed_outside() {
    numbered(Ino(1));
    committed(9, Lsn(9));
}

#[test]
fn a_panic_ends_the_witness() {
    let witness = Witness { time: Some(Timespec::default()), ..Witness::default() };
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        during(witness, || panic!("in a change"));
    }));
    assert!(ended.is_err() && time().is_none());
}
