use super::*;
use anyhow::bail;
use std::cell::RefCell;

const FILES: Metric =
    Metric { name: std::borrow::Cow::Borrowed(""), unit: "files/s", better: Better::Higher };

fn round(values: &[f64]) -> Result<Round> {
    Ok(Round { values: values.to_vec(), command: "work".into() })
}

fn hold(rounds: usize, amount: Amount, contestants: Vec<Contestant<'_>>) -> Outcome {
    let interrupt = Interrupt::new(|_| {});
    let plan = Plan { rounds, interrupt: &interrupt, progress: |_| {} };
    let contest = Contest {
        title: "t".into(),
        metrics: vec![FILES],
        amount,
        goal: Some(Goal::Ratio(2.0)),
        contestants,
    };
    plan.hold(contest).unwrap()
}

#[test]
fn contestants_take_turns_and_do_what_the_slowest_can() {
    let turns = RefCell::new(Vec::new());
    let contestant = |name, rate: f64| {
        let turns = &turns;
        Contestant::new(name, move |n| {
            turns.borrow_mut().push((name, n));
            round(&[rate])
        })
    };
    let amount = Amount::Scaled { pilot: 7, max: 1000, seconds: 2.0 };
    let outcome = hold(2, amount, vec![contestant("a", 90.0), contestant("b", 30.0)]);
    assert_eq!(*turns.borrow(), [("a", 7), ("b", 7), ("a", 60), ("b", 60), ("a", 60), ("b", 60)]);
    assert_eq!(outcome.ratio(0), Some(3.0));
    assert_eq!(outcome.meets_goal(), Some(true));
    assert_eq!(outcome.sides[0].command, "work");
}

#[test]
fn amounts_stay_in_bounds() {
    let scaled = Amount::Scaled { pilot: 7, max: 100, seconds: 2.0 };
    assert_eq!(scaled.after(&[1e9]), 100);
    assert_eq!(scaled.after(&[0.1]), 1);
    assert_eq!(scaled.after(&[]), 7);
    assert_eq!(Amount::Fixed(5).after(&[1e9]), 5);
}

#[test]
fn who_fails_is_out_and_the_others_go_on() {
    let mut left = 2;
    let failing = Contestant::new("a", |_| {
        left -= 1;
        if left == 0 { bail!("broken") } else { round(&[1.0]) }
    });
    let outcome = hold(3, Amount::Fixed(1), vec![failing, Contestant::new("b", |_| round(&[5.0]))]);
    assert_eq!(outcome.sides[0].failed.as_deref(), Some("broken"));
    assert_eq!(outcome.sides[1].median(0), Some(5.0));
    assert_eq!((outcome.ratio(0), outcome.meets_goal()), (None, None));
}

#[test]
fn one_alone_has_no_ratio() {
    let outcome = hold(1, Amount::Fixed(1), vec![Contestant::new("a", |_| round(&[1.0]))]);
    assert_eq!(outcome.ratio(0), None);
    assert_eq!(outcome.sides[0].median(0), Some(1.0));
}

#[test]
fn an_interrupt_is_no_failure_of_a_contestant() {
    let interrupt = Interrupt::new(|_| {});
    let plan = Plan { rounds: 3, interrupt: &interrupt, progress: |_| {} };
    let raised = interrupt.clone();
    let contestant = Contestant::new("a", move |_| {
        raised.raise();
        bail!("killed")
    });
    let contest = Contest {
        title: "t".into(),
        metrics: vec![FILES],
        amount: Amount::Fixed(1),
        goal: None,
        contestants: vec![contestant],
    };
    assert_eq!(plan.hold(contest).unwrap_err().to_string(), "interrupted");
}
