use super::*;

const QUICK: Duration = Duration::from_micros(80);

/// Records a wait. `came` is the number of requests received during it if the turn was passed on;
/// `another` applies if the turn was kept.
fn wait_and_look(handoff: &HandOff, took: Duration, came: u64, another: bool, until_look: Duration) {
    let began = Moment { at: QUICK, received: 7 };
    let ended = Moment { at: QUICK + took, received: 7 + came };
    let looked = Moment { at: ended.at + until_look, received: ended.received + another as u64 };
    handoff.learn(Wait { began, ended: Some(ended), kept: handoff.keeps() }, looked, another);
}

fn wait(handoff: &HandOff, took: Duration, came: bool) {
    wait_and_look(handoff, took, (came && !handoff.keeps()) as u64, came, Duration::ZERO);
}

fn after_many_in_vain() -> HandOff {
    let handoff = HandOff::default();
    for _ in 0..IN_A_ROW {
        assert!(!handoff.keeps());
        wait(&handoff, QUICK, false);
    }
    assert!(handoff.keeps());
    handoff
}

#[test]
fn a_turn_is_kept_while_nobody_comes() {
    let handoff = after_many_in_vain();
    for _ in 0..3 * IN_A_ROW {
        wait(&handoff, QUICK, false);
        assert!(handoff.keeps());
    }
}

#[test]
fn what_comes_after_the_answer_did_not_wait() {
    let handoff = HandOff::default();
    for _ in 0..IN_A_ROW {
        // Another worker received the request.
        wait_and_look(&handoff, QUICK, 0, true, Duration::ZERO);
    }
    assert!(handoff.keeps());
    wait_and_look(&handoff, QUICK, 0, true, AT_ONCE);
    assert!(handoff.keeps(), "a later request may follow from the reply");
    wait_and_look(&handoff, QUICK, 0, true, AT_ONCE / 2);
    assert!(!handoff.keeps());
}

#[test]
fn one_request_that_came_meanwhile_ends_it() {
    let handoff = after_many_in_vain();
    wait(&handoff, QUICK, true);
    assert!(!handoff.keeps());
    for _ in 1..IN_A_ROW {
        wait(&handoff, QUICK, false);
    }
    assert!(!handoff.keeps(), "the count starts again");
    wait(&handoff, QUICK, true);
    wait(&handoff, QUICK, false);
    assert!(!handoff.keeps());
}

#[test]
fn a_slow_device_is_not_waited_for_with_the_turn() {
    let handoff = after_many_in_vain();
    wait(&handoff, SHORT, false);
    assert!(!handoff.keeps());
    for _ in 0..3 * IN_A_ROW {
        wait(&handoff, SHORT, false);
        assert!(!handoff.keeps());
    }
}
