use super::*;
use serde_json::json;

fn reading(fsyncs: u64, used: u64) -> Value {
    let latency = kedge_base::Histogram::default();
    (0..fsyncs).for_each(|_| latency.record(1_000_000));
    let latency = serde_json::to_value(latency.snapshot()).unwrap();
    json!({
        "operations": { "lookup": { "count": 5, "sum": 50, "max": 10, "buckets": [0, 0, 0, 0, 5] }, "fsync": latency },
        "log": { "ring_bytes": 1 << 20, "used_bytes": used, "writes": fsyncs, "bytes_written": fsyncs * 4096,
                 "bytes_appended": fsyncs * 100, "group_records": { "count": fsyncs, "sum": fsyncs * 2 } },
        "cache": { "dirty_pages": 3, "dirty_inodes": 2 },
        "checkpoint": { "generation": 7 },
        "device": { "latency": { "read_ns": 80_000, "durable_write_ns": 12_000_000 } },
        "state": { "reason": null },
    })
}

#[test]
fn figures_are_of_the_interval() {
    let text = picture(Path::new("/mnt"), &reading(100, 0), &reading(150, 1 << 19), 2.0);
    let line = |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("log  ").contains("[##########          ] 50 % of 1024.0 KiB, 2500 B/s"), "{text}");
    assert!(line("log writes").contains("25/s, 4096 B each, 2.0 records"), "{text}");
    assert!(line("dirty").contains("12.0 KiB in 2 files"), "{text}");
    assert!(line("latency").contains("read 80.0 µs") && line("latency").contains("durable write 12.0 ms"));
    assert!(line("checkpoint").contains("generation 7, 0.00/s"), "{text}");
    let fsync: Vec<_> = line("fsync").split_whitespace().collect();
    assert_eq!(fsync, ["fsync", "25.0", "1000.0", "µs", "1000.0", "µs", "150"], "{text}");
    let lookup: Vec<_> = line("lookup").split_whitespace().collect();
    assert_eq!(lookup, ["lookup", "0.0", "-", "-", "5"], "what rests has no times: {text}");
    assert!(text.find("fsync ") < text.find("lookup "), "the busiest first: {text}");
}

#[test]
fn a_mount_that_was_replaced_meanwhile_gives_no_nonsense() {
    let text = picture(Path::new("/mnt"), &reading(100, 0), &reading(1, 0), 0.0);
    assert!(text.contains("log writes  0/s"), "{text}");
    let text = picture(
        Path::new("/mnt"),
        &json!({}),
        &json!({ "state": { "reason": "gone", "since": "now" } }),
        1.0,
    );
    assert!(text.contains("SHUT DOWN since now: gone"), "{text}");
}
