use super::*;
use crate::contest::Side;
use crate::sample::Sample;
use serde_json::json;

const CPU_TIME: Cpu = Cpu { user: 1.0, system: 2.0 };

/// Measurements in this process, on an image file.
fn seen() -> Seen {
    Seen { files: 100, wall: 2.0, cpu: CPU_TIME, server: None, disk: None }
}

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
    let disk = DiskCounts { writes: 8, merges: 2, bytes: 64 << 10, flushes: 1 };
    let seen = Seen { disk: Some(disk), server: Some(CPU_TIME), ..seen() };
    let with = values(&seen, &before, &after).unwrap();
    assert_eq!(with.len(), metrics(Ground::Loop).len());
    let at = |values: &[f64], name: &str| {
        values[metrics(Ground::Loop).iter().position(|m| m.name == name).unwrap()]
    };
    assert_eq!((at(&with, RATE), at(&with, "wall time"), at(&with, WRITES)), (50.0, 2.0, 20.0));
    assert_eq!((at(&with, DATA_WRITES), at(&with, "mean data write")), (20.0, 20.0));
    assert_eq!((at(&with, CPU), at(&with, "system time")), (6.0, 4.0), "of the client and the server");
    assert_eq!(at(&with, "processor time of the serving process"), 3.0);
    assert_eq!((at(&with, KERNEL_WRITES), at(&with, "the kernel's count: mean write")), (8.0, 8.0));
    assert_eq!(at(&with, "the kernel's count: sectors"), 128.0);
    let limits = at(&with, HARD_LIMITS);
    assert!((limits - 409_600.0 / f64::from(48 << 20)).abs() < 1e-9, "48 MiB with the default cache");
    let without = values(&self::seen(), &before, &after).unwrap();
    assert_eq!(at(&without, CPU), 3.0);
    assert_eq!(without.len(), metrics(Ground::File).len());
    assert_eq!(without[..4], [50.0, 2.0, 3.0, 2.0]);
    assert!(at(&without, "processor time of the serving process").is_nan());
}

#[test]
fn data_that_was_left_dirty_is_an_error() {
    let (before, after) = (counters(0, 0), counters(25, 99 * 4096));
    assert!(values(&seen(), &before, &after).is_err());
}

#[test]
fn the_published_figures_meet_what_they_claim() {
    let metrics = metrics(Ground::Loop);
    let figure = |i: usize, name: &str| match (name, i) {
        (WRITES | KERNEL_WRITES, 0) => 28_000.0,
        (WRITES | KERNEL_WRITES, _) => 1_500.0,
        (HARD_LIMITS, _) => 4.0,
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
    for bar in bars(&outcome, "p", false) {
        assert!(bar.met || bar.reached.unwrap() > 62.7 - 0.1, "{bar:?}");
    }
    assert_eq!((bars(&outcome, "p", false).len(), bars(&outcome, "p", true).len()), (5, 4));
}
