use super::*;
use serde_json::json;

fn histogram(count: u64) -> Value {
    json!({ "count": count, "sum": count * 1_500_000, "max": 2_000_000, "average": 1.5, "histogram": [0, count] })
}

#[test]
fn a_page_stays_short_however_much_a_mount_has_seen() {
    let operations: serde_json::Map<String, Value> =
        (1..=27).map(|i| (format!("operation{i}"), histogram(i))).collect();
    let failed: serde_json::Map<String, Value> =
        (0..40).map(|i| (format!("REQUEST{i}"), json!({ "EIO": i, "ENOSPC": 1 }))).collect();
    let page = page(&json!({ "operations": operations, "fuse": { "failed": failed } }));
    assert!(page.lines().count() <= 29, "{page}");
    assert!(page.lines().nth(1).unwrap().starts_with("operation27 "), "most time first: {page}");
    assert!(page.contains("\nand 15 kinds more, which took less time\n"), "{page}");
    assert!(page.contains("REQUEST39 EIO 39 times, ") && page.contains(", and 73 kinds more\n"), "{page}");
}

#[test]
fn figures_have_units_and_zeroes_are_left_out() {
    let page = page(&json!({
        "operations": { "fsync": histogram(2) },
        "cache": { "pages": 256, "pages_max": 512, "tree_bytes": 8192, "tree_bytes_max": 16384, "times_given_back": 1 },
        "checkpoint": { "by_cause": { "log_space": 3, "request": 0 }, "node_stalls": 4 },
        "data": { "write_bytes": 1 << 20, "writes": 5, "bad_blocks": 7 },
        "device": { "latency": { "durable_write_ns": 1_376_439 }, "errors": { "writes": 9, "reads": 0 } },
        "fuse": { "failed": { "GETXATTR": { "ENODATA": 8 }, "WRITE": { "ENOSPC": 1 } } },
        "log": { "writes": 2, "write_ns": histogram(2), "group_forces": { "average": 1.5 }, "forces": { "fsync": 0 } },
    }));
    let row = page.lines().find(|line| line.starts_with("fsync ")).unwrap();
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>().join(" "),
        "fsync 2 1500.0 µs 1 ns 1 ns 2000.0 µs",
        "{page}"
    );
    for line in [
        "data         0 bytes read in 0 reads, 1 MiB written in place in 5 writes, 0 fsyncs with their data in the log",
        "cache        1 MiB of data (0 bytes dirty), at most 2 MiB; 8 KiB of metadata (0 bytes dirty), at most 16 KiB; \
         0 inodes (0 dirty); given back once as memory was short",
        "log writes   2 writes, average 1500.0 µs, p99 1 ns, longest 2000.0 µs; each for 1.5 waiting calls",
        "log forced   none",
        "checkpoints  log space 3 times",
        "waits        4 times for space for metadata",
        "latency      durable write 1376.4 µs",
        "errors       9 failed writes of the device, 7 bad blocks",
        "failed calls WRITE ENOSPC once",
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
}
