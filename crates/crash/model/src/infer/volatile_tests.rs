#![allow(clippy::unwrap_used)]

use super::*;

fn learned(one: &str, other: &str) -> Volatile {
    let mut volatile = Volatile::default();
    volatile.learn(one.as_bytes(), other.as_bytes()).unwrap();
    volatile
}

fn is_same(volatile: &Volatile, one: &str, other: &str) -> bool {
    volatile.normal(one.as_bytes()) == volatile.normal(other.as_bytes())
}

#[test]
fn words_that_differ_between_two_runs_are_not_compared() {
    let volatile = learned("start 12:03:44 pid 17\nrow 1\n", "start 12:03:45 pid 18\nrow 1\n");
    assert_eq!(volatile.shown(), ["\"start 12:03:# pid #\""]);
    assert!(is_same(&volatile, "start 12:03:59 pid 9\nrow 1\n", "start 12:03:00 pid 1\nrow 1\n"));
    assert!(!is_same(&volatile, "start 12:03:59 pid 9\nrow 1\n", "start 12:03:59 pid 9\nrow 2\n"));
    assert!(!is_same(&volatile, "start 12:03:59 pid 9\n", "stop 12:03:59 pid 9\n"));
    assert!(learned("row 1\n", "row 1\n").shown().is_empty());
}

#[test]
fn lines_of_another_length_keep_their_ends() {
    let volatile = learned("took 1.5 ms in all\nx\n", "took 900 us in all\nx\n");
    assert!(is_same(&volatile, "took 3 h in all\nx", "took 1.25 s in all\nx"));
    assert!(!is_same(&volatile, "took 3 h in part\nx", "took 1.25 s in all\nx"));
    // The first and the last words must not overlap.
    let volatile = learned("a b a\n", "a b b a\n");
    assert!(is_same(&volatile, "a b x b a", "a b b a") && !is_same(&volatile, "a", "a b a"));
}

#[test]
fn lines_that_come_and_go_and_orders() {
    let volatile = learned("one\nwarning: slow\ntwo\n", "one\ntwo\n");
    assert!(is_same(&volatile, "warning: slow\nthree", "three") && !is_same(&volatile, "one", "two"));
    let volatile = learned("one\ntwo\n", "two\none\n");
    assert!(is_same(&volatile, "a\nb\nc", "c\na\nb") && !is_same(&volatile, "a\nb", "a\na"));
}

#[test]
fn an_output_that_differs_as_a_whole_is_refused() {
    let run = |n: usize| (0..100).map(|line| format!("{}x{n}\n", "-".repeat(line))).collect::<String>();
    let mut volatile = Volatile::default();
    assert!(volatile.learn(run(1).as_bytes(), run(2).as_bytes()).unwrap_err().contains("as a whole"));
}
