use super::*;

const FS_MARK: &str = "
#  fs_mark  -d  d  -D  16  -t  2  -n  200  -s  4096  -S  1  -L  2 
#\tVersion 3.3, 2 thread(s) starting at Sat Nov 21 01:01:11 2026
#\tApp overhead is time in microseconds spent in the test not doing file writing related system calls.

FSUse%        Count         Size    Files/sec     App Overhead
    73          400         4096       1832.9             6505
    73          800         4096       1201.4             5207
";

#[test]
fn fs_mark_table() {
    assert_eq!(fs_mark(FS_MARK).unwrap(), 1201.4, "the last loop");
    // fs_mark may print the head of its table and then fail.
    let dead = FS_MARK.split("    73").next().unwrap();
    assert!(format!("{:#}", fs_mark(dead).unwrap_err()).contains("empty"));
    for bad in [
        "",
        "fs_mark: command line",
        "FSUse% Count\n 1 2",
        "FSUse% Files/sec\n 1",
        "FSUse% Files/sec\n 1 nan",
    ] {
        assert!(fs_mark(bad).is_err(), "{bad}");
    }
}

const DBENCH: &str = "\
   4     37746   440.62 MB/sec  execute   2 sec  latency 41.524 ms
   0  cleanup   3 sec

 Operation      Count    AvgLat    MaxLat
 ----------------------------------------
 Flush           2785     2.249    76.473

Throughput 440.62 MB/sec  4 clients  4 procs  max_latency=45.278 ms
";

#[test]
fn dbench_sum() {
    assert_eq!(dbench(DBENCH).unwrap(), Dbench { throughput: 440.62, max_latency: 45.278 });
    // With -s, dbench adds a remark.
    let synced = "Throughput 3.5 MB/sec (sync open)  1 clients  1 procs  max_latency=5.000 ms";
    assert_eq!(dbench(synced).unwrap(), Dbench { throughput: 3.5, max_latency: 5.0 });
    for bad in [
        "",
        "Throughput",
        "Throughput 3 kB/sec max_latency=1 ms",
        "Throughput 3 MB/sec",
        "Throughput 0 MB/sec max_latency=1 ms",
    ] {
        assert!(dbench(bad).is_err(), "{bad}");
    }
}

#[test]
fn dbench_table_of_operations() {
    let table = DBENCH.replace(
        " Flush ",
        " NTCreateX      11471098     0.012   448.281\n Rename         485746     0.123   267.183\n Flush ",
    );
    let rows = dbench_operations(&table).unwrap();
    assert_eq!(rows.iter().map(|r| &*r.0).collect::<Vec<_>>(), ["NTCreateX", "Rename", "Flush"]);
    assert_eq!(rows[1].1, DbenchOperation { count: 485746.0, average: 0.123, max: 267.183 });
    for bad in [
        "",
        "Operation Count AvgLat MaxLat\n---\n\nThroughput",
        "Operation Count AvgLat MaxLat\n---\nFlush 1 x 2",
        "Operation Count AvgLat MaxLat\n---\nFlush 1 2",
    ] {
        assert!(dbench_operations(bad).is_err(), "{bad}");
    }
}
