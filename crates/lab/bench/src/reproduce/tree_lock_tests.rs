use super::*;
use crate::contest::Side;
use crate::sample::Sample;
use serde_json::json;

fn outcome(first: Metric, published: &[Published]) -> Outcome {
    let metrics = metrics(first);
    let figure = |i: usize, name: &str| {
        let found = published.iter().find(|p| p.metric == name);
        found.and_then(|p| p.figures.get(i).copied()).unwrap_or(f64::NAN)
    };
    let sides = MODES.iter().enumerate().map(|(i, (name, _))| {
        let mut samples = vec![Sample::default(); metrics.len()];
        samples.iter_mut().zip(&metrics).for_each(|(s, m)| s.push(figure(i, &m.name)));
        Side { name, command: String::new(), samples, failed: None }
    });
    Outcome {
        title: "t".into(),
        metrics: metrics.clone(),
        goal: None,
        sides: sides.collect(),
        published: vec![],
    }
}

#[test]
fn the_published_figures_meet_what_they_claim() {
    let mut created = PUBLISHED_CREATE.to_vec();
    created.push(Published { metric: RATE, figures: &[1.6e6 / 147.307, 1.6e6 / 62.273] });
    // In a histogram of powers of two the longest wait fell from the row up to 1023 to that up to
    // 127: to an eighth.
    let of = |published: &[Published], name| outcome(Metric::new(name, "", Better::Higher), published);
    let bars = bars(&of(&created, RATE));
    // 147.307 divided by 62.273 is 2.366. The bar is this ratio rounded up.
    assert!(bars[0].reached.unwrap() > 2.36);
    assert!(bars[1].met && bars[2].met);
    assert!(!bars[3].met, "not measured is not met");
}

fn stats() -> Value {
    let kind = |n: u64| {
        // All waits are in the bucket up to 2^20 - 1 ns.
        let waits = [vec![0; 20], vec![n]].concat();
        json!({
            "acquisitions": n, "calls": n + 10, "wakeups": 2 * n,
            "wait_ns": { "count": n, "max": n * 1_000_000, "histogram": waits },
            "wait_us_histogram": if n > 1 { vec![0, 1, n] } else { vec![] },
            "wait_ms_histogram": if n > 3 { vec![0, 1, n] } else { vec![1] },
        })
    };
    json!({ "tree": {
        "lock": "pingpong", "restarts": 5, "conversions": 6,
        "latches": { "read_leaf": kind(1), "read_inner": kind(2), "write_leaf": kind(3), "write_inner": kind(4) },
    }})
}

#[test]
fn latches_are_summed_by_access() {
    let counters = Counters::parse(&stats().to_string()).unwrap();
    assert_eq!(latch_values(&counters).unwrap(), [27.0, 23.0, 7.0, 3.0, 10.0, 20.0, 1.048575, 4.0, 6.0, 5.0]);
    assert!(latch_values(&Counters::parse("{}").unwrap()).is_err(), "a counter that is not there is no zero");
}

#[test]
fn only_histograms_that_tell_something_are_shown() {
    let text = histograms(&stats().to_string()).unwrap().join("\n");
    assert_eq!(text.matches("usecs").count(), 3, "{text}");
    assert!(text.contains("# waits, tree_lock=pingpong, write latch of inner"), "{text}");
    assert!(!text.contains("read latch of leaf"), "{text}");
}
