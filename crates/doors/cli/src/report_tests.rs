use super::*;
use serde_json::json;

fn sample() -> Value {
    let latency = kedge_base::Histogram::default();
    for ns in [0, 1, 700, 1_000_000] {
        latency.record(ns);
    }
    json!({
        "log": { "forces": 7, "by-cause": { "fsync": 5 } },
        "ops": { "fsync_ns": serde_json::to_value(latency.snapshot()).unwrap() },
        "cache": { "pages": 3 },
        "fuse": { "parked_bytes": 4096 },
        "device": { "latency": { "durable_write_ns": 12_000_000 } },
        "clean": true,
        "uuid": "abc",
        "groups": [{ "free": 1 }, { "free": 2 }],
    })
}

#[test]
fn a_table_shows_every_leaf_once() {
    let tree = sample();
    let table = table(&tree);
    assert_eq!(table.lines().count(), 10, "{table}");
    assert!(table.lines().any(|l| l.starts_with("log.forces ") && l.ends_with("  7")), "{table}");
    assert!(table.contains("groups.1.free"), "{table}");
    let line = table.lines().find(|l| l.starts_with("ops.fsync_ns")).unwrap();
    assert!(line.ends_with("count 4  average 250.2 µs  p50 1 ns  p99 1000.0 µs  max 1000.0 µs"), "{line}");
}

#[test]
fn times_have_units_in_a_table() {
    let h = json!({ "count": 1, "sum": 20_000, "max": 20_000, "histogram": [0, 1] });
    let table =
        table(&json!({ "operations": { "fsync": h }, "checkpoint": { "ns": h }, "log": { "group": h } }));
    let ends = |name: &str, max: &str| table.lines().any(|l| l.starts_with(name) && l.ends_with(max));
    assert!(ends("operations.fsync ", "max 20.0 µs") && ends("checkpoint.ns ", "max 20.0 µs"), "{table}");
    assert!(ends("log.group ", "max 20000"), "{table}");
}

#[test]
fn prometheus_gets_cumulative_buckets_and_clean_names() {
    let text = prometheus(&[(sample(), "/mnt/\"x\"".into())]);
    assert!(text.contains("kedgefs_log_by_cause_fsync{mount=\"/mnt/\\\"x\\\"\"} 5\n"), "{text}");
    assert!(text.contains("kedgefs_clean{mount=\"/mnt/\\\"x\\\"\"} 1\n"), "{text}");
    assert!(!text.contains("abc"), "words are no samples: {text}");
    for head in [
        "# HELP kedgefs_log_forces KedgeFS, log: forces, since the mount.\n# TYPE kedgefs_log_forces counter\n",
        "# HELP kedgefs_ops_fsync_ns KedgeFS, ops: fsync, in nanoseconds, since the mount.\n\
         # TYPE kedgefs_ops_fsync_ns histogram\n",
        "# TYPE kedgefs_cache_pages gauge\n",
        "# TYPE kedgefs_fuse_parked_bytes gauge\n",
        "# HELP kedgefs_device_latency_durable_write_ns KedgeFS, device: latency: durable write, in nanoseconds, \
         at present.\n# TYPE kedgefs_device_latency_durable_write_ns gauge\n\
         kedgefs_device_latency_durable_write_ns{mount=\"/mnt/\\\"x\\\"\"} 12000000\n",
        "# TYPE kedgefs_clean gauge\n",
    ] {
        assert!(text.contains(head), "{head} in {text}");
    }
    assert!(!text.contains("untyped"), "{text}");
    let fsync: Vec<_> = text.lines().filter(|l| l.starts_with("kedgefs_ops_fsync_ns")).collect();
    assert!(fsync[0].contains("le=\"0\"") && fsync[0].ends_with(" 1"), "{fsync:?}");
    assert!(fsync[1].contains("le=\"1\"") && fsync[1].ends_with(" 2"), "{fsync:?}");
    assert!(fsync.iter().any(|l| l.contains("le=\"1023\"") && l.ends_with(" 3")), "{fsync:?}");
    assert!(fsync.iter().any(|l| l.contains("+Inf") && l.ends_with(" 4")), "{fsync:?}");
    assert!(
        fsync.iter().any(|l| l.starts_with("kedgefs_ops_fsync_ns_sum") && l.ends_with(" 1000701")),
        "{fsync:?}"
    );
}

#[test]
fn bounds_cover_the_whole_range() {
    assert_eq!(Histogram::bound(0), 0);
    assert_eq!(Histogram::bound(1), 1);
    assert_eq!(Histogram::bound(10), 1023);
    assert_eq!(Histogram::bound(64), u64::MAX);
}

#[test]
fn the_samples_of_a_metric_stand_together() {
    let other = json!({ "log": { "forces": 9 }, "extra": 1 });
    let text = prometheus(&[(sample(), "/a".into()), (other, "/b".into())]);
    let forces = "kedgefs_log_forces{mount=\"/a\"} 7\nkedgefs_log_forces{mount=\"/b\"} 9\n";
    assert!(text.contains(forces), "{text}");
    let heads: Vec<_> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
    let names: std::collections::BTreeSet<_> = heads.iter().collect();
    assert_eq!(heads.len(), names.len(), "{text}");
    assert!(text.contains("# TYPE kedgefs_extra counter\nkedgefs_extra{mount=\"/b\"} 1\n"), "{text}");
}

#[test]
fn an_interval_is_what_was_added() {
    let latency = kedge_base::Histogram::default();
    latency.record(1_000_000);
    let before = serde_json::to_value(latency.snapshot()).unwrap();
    (0..9).for_each(|_| latency.record(100));
    let now = serde_json::to_value(latency.snapshot()).unwrap();
    let (before, now) = (Histogram::of(&before).unwrap(), Histogram::of(&now).unwrap());
    let passed = now.since(Some(&before));
    assert_eq!((passed.count, passed.sum, passed.quantile(0.99)), (9, 900, 127));
    let all = now.since(None);
    assert_eq!((all.count, all.quantile(0.99)), (10, 1_000_000));
    let none = now.since(Some(&now));
    assert_eq!((none.count, none.sum), (0, 0));
}
