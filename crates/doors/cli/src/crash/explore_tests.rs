use super::*;
use std::time::Duration;

#[test]
fn progress_says_what_is_done() {
    let line =
        |phase| progress_line(Progress { phase, checked: 7, failing: 2, time: Duration::from_secs(3) });
    assert_eq!(line(Phase::Search), "7 states, 2 failing, 3 s ");
    assert_eq!(line(Phase::Explain), "explaining 2 failing states: 7 checks, 3 s ");
}
