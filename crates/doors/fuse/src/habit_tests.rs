use super::*;

const QUICK: Duration = Duration::from_micros(80);

/// A wait during which `came` requests were received, if the turn was passed on, and `another` was
/// found after it, if not.
fn wait_and_look(habit: &Habit, took: Duration, came: u64, another: bool, until_look: Duration) {
    let began = Moment { at: QUICK, received: 7 };
    let ended = Moment { at: QUICK + took, received: 7 + came };
    let looked = Moment { at: ended.at + until_look, received: ended.received + another as u64 };
    habit.learn(Wait { began, ended: Some(ended), kept: habit.keeps() }, looked, another);
}

fn wait(habit: &Habit, took: Duration, came: bool) {
    wait_and_look(habit, took, (came && !habit.keeps()) as u64, came, Duration::ZERO);
}

fn after_many_in_vain() -> Habit {
    let habit = Habit::default();
    for _ in 0..IN_A_ROW {
        assert!(!habit.keeps());
        wait(&habit, QUICK, false);
    }
    assert!(habit.keeps());
    habit
}

#[test]
fn a_turn_is_kept_while_nobody_comes() {
    let habit = after_many_in_vain();
    for _ in 0..3 * IN_A_ROW {
        wait(&habit, QUICK, false);
        assert!(habit.keeps());
    }
}

#[test]
fn what_comes_after_the_answer_did_not_wait() {
    let habit = Habit::default();
    for _ in 0..IN_A_ROW {
        // Somebody else received it.
        wait_and_look(&habit, QUICK, 0, true, Duration::ZERO);
    }
    assert!(habit.keeps());
    wait_and_look(&habit, QUICK, 0, true, AT_ONCE);
    assert!(habit.keeps(), "of one who waited for the thread that was answered");
    wait_and_look(&habit, QUICK, 0, true, AT_ONCE / 2);
    assert!(!habit.keeps());
}

#[test]
fn one_request_that_came_meanwhile_ends_it() {
    let habit = after_many_in_vain();
    wait(&habit, QUICK, true);
    assert!(!habit.keeps());
    for _ in 1..IN_A_ROW {
        wait(&habit, QUICK, false);
    }
    assert!(!habit.keeps(), "the count starts again");
    wait(&habit, QUICK, true);
    wait(&habit, QUICK, false);
    assert!(!habit.keeps());
}

#[test]
fn a_slow_device_is_not_waited_for_with_the_turn() {
    let habit = after_many_in_vain();
    wait(&habit, SHORT, false);
    assert!(!habit.keeps());
    for _ in 0..3 * IN_A_ROW {
        wait(&habit, SHORT, false);
        assert!(!habit.keeps());
    }
}
