use super::*;
use crate::contest::Side;
use crate::sample::Sample;

/// Applied to the published figures, the bars are met where the announcement claims an improvement.
#[test]
fn the_published_figures_meet_what_they_claim() {
    let metrics = metrics();
    let side = |i: usize, forces: f64| {
        let figure = |m: &Metric| {
            let found = PUBLISHED.iter().find(|p| p.metric == m.name);
            found.map_or(if m.name == FORCES_RENAME { forces } else { f64::NAN }, |p| p.figures[i])
        };
        let mut samples = vec![Sample::default(); metrics.len()];
        samples.iter_mut().zip(&metrics).for_each(|(s, m)| s.push(figure(m)));
        Side { name: RULES[i], command: String::new(), samples, failed: None }
    };
    let sides = vec![side(0, 900.0), side(1, 0.0)];
    let outcome = Outcome {
        title: "t".into(),
        metrics: metrics.clone(),
        goal: None,
        sides,
        published: PUBLISHED.to_vec(),
    };
    let missed: Vec<String> = bars(&outcome, "t").iter().filter(|b| !b.met).map(Bar::complaint).collect();
    // The announcement rounded 75.75 % and 29.41 %, and two of its figures got worse.
    let words = ["Rename maximum: -75.8 %", "Flush average: 17.9 %", "NTCreateX maximum: 189 %"];
    assert_eq!(missed.len(), words.len(), "{missed:?}");
    assert!(words.iter().zip(&missed).all(|(word, line)| line.contains(word)), "{missed:?}");
    assert!(PUBLISHED.iter().all(|p| metrics.iter().any(|m| m.name == p.metric)), "every figure has a row");
}

/// A rename takes 1 ms with sync and 0.5 ms with lazy. The time that is left after subtracting the
/// null file system's counts.
#[test]
fn the_way_through_the_kernel_is_not_counted() {
    let reached = |null: Option<f64>| {
        let metrics = vec![Metric::new(RENAME_AVERAGE, "ms", Better::Lower)];
        let side = |name, value| {
            let mut sample = Sample::default();
            sample.push(value);
            Side { name, command: String::new(), samples: vec![sample], failed: None }
        };
        let mut sides = vec![side(RULES[0], 1.0), side(RULES[1], 0.5)];
        sides.extend(null.map(|value| side(NULL, value)));
        let outcome = Outcome { title: "t".into(), metrics, goal: None, sides, published: vec![] };
        let bar = above_null(&outcome);
        assert_eq!(bar.met, bar.reached.is_some_and(|change| change <= -94.0));
        bar.reached
    };
    assert_eq!(reached(Some(0.0)), Some(-50.0));
    assert!(reached(Some(0.49)).unwrap() < -98.0);
    assert_eq!(reached(Some(2.0)), None, "slower than the old rule: nothing can be said");
    assert_eq!(reached(None), None);
}
