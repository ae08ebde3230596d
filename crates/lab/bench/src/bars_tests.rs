use super::*;
use crate::contest::{Better, Metric, Side};
use crate::sample::Sample;

fn outcome(old: &[f64], new: &[f64]) -> Outcome {
    let side = |name, values: &[f64]| {
        let mut sample = Sample::default();
        values.iter().for_each(|v| sample.push(*v));
        Side { name, command: String::new(), samples: vec![sample], failed: None }
    };
    Outcome {
        title: "dbench".into(),
        metrics: vec![Metric::new("Rename average", "ms", Better::Lower)],
        goal: None,
        sides: vec![side("sync", old), side("lazy", new)],
        published: vec![],
    }
}

#[test]
fn medians_decide() {
    let bar =
        Bar::change(&outcome(&[2.0, 2.1, 1.9], &[0.1, 0.1, 0.1]), "Rename average", Want::AtMost(-94.0));
    assert!(bar.met && !bar.is_noisy());
    assert_eq!(bar.row(), ["dbench: Rename average", "≤ -94 %", "-95 %", "met"]);
    let bar =
        Bar::change(&outcome(&[2.0, 2.0, 2.0], &[0.2, 0.2, 0.2]), "Rename average", Want::AtMost(-94.0));
    assert!(!bar.met && !bar.is_noisy());
    assert_eq!(bar.complaint(), "dbench: Rename average: -90 %, wanted ≤ -94 %");
}

#[test]
fn rounds_that_disagree_are_noise() {
    let bar = Bar::change(&outcome(&[2.0, 1.0, 3.0], &[2.1, 1.5, 2.0]), "Rename average", Want::AtMost(0.0));
    assert!(!bar.is_noisy() || bar.row()[3].contains("too noisy"), "{bar:?}");
    assert!(bar.met == (2.0 <= 2.0));
    assert!(bar.is_noisy(), "one round of three says what the medians say: {bar:?}");
}

#[test]
fn what_was_not_measured_is_missed() {
    for bar in [
        Bar::change(&outcome(&[], &[]), "Rename average", Want::AtMost(0.0)),
        Bar::change(&outcome(&[1.0], &[1.0]), "Rename avrage", Want::AtMost(0.0)),
        Bar::change(&outcome(&[0.0], &[1.0]), "Rename average", Want::AtLeast(0.0)),
    ] {
        assert!(!bar.met && bar.reached.is_none(), "{bar:?}");
        assert!(bar.complaint().contains("not measured"));
    }
    let both_zero = Bar::change(&outcome(&[0.0], &[0.0]), "Rename average", Want::AtMost(0.0));
    assert!(both_zero.met);
}
