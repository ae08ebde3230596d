use super::*;
use crate::contest::Side;
use crate::sample::Sample;
use serde_json::json;

fn counters(writes: u64, bytes: u64) -> Counters {
    let json = json!({
        "device": { "writes": writes + 10, "write_bytes": 2 * bytes, "flushes": 3 },
        "data": { "writes": writes, "write_bytes": bytes, "throttled_writes": 0 },
        "log": { "writes": 10 },
    });
    Counters::parse(&json.to_string()).unwrap()
}

#[test]
fn a_round_counts_what_was_written_in_it() {
    let (before, after) = (counters(5, 4096), counters(25, 4096 + 100 * 4096));
    let cpu = Cpu { user: 1.0, system: 2.0 };
    let values = values(100, 2.0, Some(cpu), &before, &after).unwrap();
    assert_eq!(values.len(), metrics().len());
    assert_eq!(values[..6], [50.0, 2.0, 3.0, 2.0, 20.0, 10.0]);
    assert_eq!(values[8..10], [20.0, 20.0], "20 writes of 20 KiB");
}

#[test]
fn data_that_was_left_dirty_is_an_error() {
    let (before, after) = (counters(0, 0), counters(25, 99 * 4096));
    assert!(values(100, 2.0, None, &before, &after).is_err());
}

#[test]
fn the_published_figures_meet_what_they_claim() {
    let metrics = metrics();
    let figure = |i: usize, name: &str| match (name, i) {
        (WRITES, 0) => 28_000.0,
        (WRITES, _) => 1_500.0,
        (CPU, 0) => 932.0,
        (CPU, _) => 808.0,
        _ => PUBLISHED.iter().find(|p| p.metric == name).map_or(f64::NAN, |p| p.figures[i]),
    };
    let sides = OPTIONS.iter().enumerate().map(|(i, name)| {
        let mut samples = vec![Sample::default(); metrics.len()];
        samples.iter_mut().zip(&metrics).for_each(|(s, m)| s.push(figure(i, &m.name)));
        Side { name, command: String::new(), samples, failed: None }
    });
    let outcome = Outcome {
        title: "t".into(),
        metrics: metrics.clone(),
        goal: None,
        sides: sides.collect(),
        published: vec![],
    };
    for bar in bars(&outcome, "p", true) {
        assert!(bar.met || bar.reached.unwrap() > 62.7 - 0.1, "{bar:?}");
    }
    assert_eq!(bars(&outcome, "p", false).len(), 2);
}
