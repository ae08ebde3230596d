use super::*;
use crate::contest::Side;
use crate::sample::Sample;

fn outcome(of: impl Fn(usize, &str) -> f64) -> Outcome {
    let metrics = metrics();
    let side = |i: usize, name| {
        let mut samples = vec![Sample::default(); metrics.len()];
        samples.iter_mut().zip(&metrics).for_each(|(s, m)| s.push(of(i, &m.name)));
        Side { name, command: String::new(), samples, failed: None }
    };
    let names = RULES.into_iter().chain([EXT4, XFS, NULL]);
    let sides = names.enumerate().map(|(i, name)| side(i, name)).collect();
    Outcome { title: "t".into(), metrics: metrics.clone(), goal: None, sides, published: PUBLISHED.to_vec() }
}

#[test]
fn the_published_figures_meet_what_they_claim() {
    let published = |i: usize, name: &str| {
        let found = PUBLISHED.iter().find(|p| p.metric == name);
        found.and_then(|p| p.figures.get(i).copied()).unwrap_or(f64::NAN)
    };
    let outcome = outcome(published);
    assert!(bars(&outcome, "t", 1, None)[0].met, "400 to 30 log forces a second");
    assert!(Bar::change(&outcome, RUNTIME, Want::AtMost(-39.0)).met);
}

#[test]
fn every_flush_is_accounted_for() {
    let counted = |threads: usize, flushes: f64, durable: f64, shared: f64| {
        let figure = move |_: usize, name: &str| match name {
            CALLS => 1000.0,
            FLUSHES => flushes,
            SHARED => shared,
            DURABLE => durable,
            _ => 1.0,
        };
        bars(&outcome(figure), "t", threads, Some(1.5))
    };
    let with = |threads: usize, flushes: f64, shared: f64| counted(threads, flushes, 0.0, shared);
    assert!(counted(1, 10.0, 990.0, 0.0)[1].met, "a durable write is a flush of what it writes");
    assert!(!counted(1, 1000.0, 1000.0, 0.0)[1].met, "both for each call");
    assert!(with(1, 1000.0, 0.0)[1].met);
    assert!(with(1, 1005.0, 0.0)[1].met, "a flush or two by others");
    assert!(!with(1, 300.0, 0.0)[1].met, "calls without a flush");
    assert!(!with(1, 2000.0, 0.0)[1].met, "two for each call");
    assert!(with(4, 300.0, 600.0)[1].met, "some found their bytes flushed");
    assert!(!with(4, 700.0, 600.0)[1].met, "more than one for a call");
    assert_eq!(with(4, 1000.0, 0.0).iter().filter(|b| b.what.contains("IOPS") && !b.met).count(), 2);
}

#[test]
fn the_floor_is_that_of_one_file() {
    let null = |rate: f64| {
        let figure = move |side: usize, name: &str| match name {
            RATE if side == 5 => rate,
            RATE => 900.0,
            _ => 1.0,
        };
        null_bars(&outcome(figure), "t", 0.0)
    };
    assert!(null(1000.0).iter().all(|bar| bar.met), "0.9 of it");
    assert!(null(1100.0).iter().all(|bar| !bar.met));
    let figure = |side: usize, name: &str| match name {
        RATE if side == 5 => 10_000.0,
        RATE => 900.0,
        _ => 1.0,
    };
    // A call takes 0.1 ms in the kernel, and 0.9 ms on the device.
    let slow = null_bars(&outcome(figure), "t", 0.9e-3);
    assert!(!slow[0].met && slow[1].met, "{slow:?}");
    let mut without = outcome(figure);
    without.sides.pop();
    assert!(null_bars(&without, "t", 0.0).iter().all(|bar| bar.reached.is_none() && !bar.met));
}
