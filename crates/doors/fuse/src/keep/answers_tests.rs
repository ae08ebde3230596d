#![allow(clippy::unwrap_used)]

use super::*;

/// Servers that fail after they have stored their results store them again at each attempt.
#[test]
fn results_that_are_stored_again_push_no_others_out() {
    let area = Area::make().unwrap();
    let result = |unique, result| Answered { unique, result, ..Answered::new_zeroed() };
    Answers::load(&area).add(&area, result(2, 7));
    for attempt in 0..ANSWERS as u32 + 1 {
        let mut answers = Answers::load(&area);
        answers.add(&area, result(4, attempt));
        answers.add(&area, result(6, attempt));
    }
    let mut answers = Answers::load(&area);
    let mut stored = |unique| answers.take(unique).map(|answered| answered.result);
    assert_eq!([2, 4, 6].map(&mut stored), [Some(7), Some(ANSWERS as u32), Some(ANSWERS as u32)]);
}

/// The ring has room for `ANSWERS` results. The place of one that was overwritten is not used
/// again.
#[test]
fn a_result_that_was_overwritten_gets_a_new_place() {
    let area = Area::make().unwrap();
    let mut answers = Answers::load(&area);
    for unique in 1..=ANSWERS + 1 {
        answers.add(&area, Answered { unique, ..Answered::new_zeroed() });
    }
    answers.add(&area, Answered { unique: 1, result: 9, ..Answered::new_zeroed() });
    let mut answers = Answers::load(&area);
    assert_eq!(answers.take(1).map(|answered| answered.result), Some(9));
    assert!(answers.take(2).is_none(), "the oldest one is overwritten");
    assert!((3..=ANSWERS + 1).all(|unique| answers.take(unique).is_some()));
}
