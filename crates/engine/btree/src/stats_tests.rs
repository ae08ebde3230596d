use super::*;

#[test]
fn a_histogram_is_printed_with_bars() {
    // Three samples of 0, one of 1, none in 2..=3, two in 4..=7.
    let text = histogram_text("usecs", &[3, 1, 0, 2]);
    let want = "     usecs               : count     distribution\n         0 -> 1          : 4        \
                |****************************************|\n         2 -> 3          : 0        |                                        \
                |\n         4 -> 7          : 2        |********************                    |\n";
    assert_eq!(text, want);
    assert_eq!(
        histogram_text("msecs", &[]).lines().count(),
        2,
        "an empty one has its head and a row of nothing"
    );
}

#[test]
fn waits_are_kept_in_three_units() {
    let stats = TreeStats::default();
    stats.waited(Kind::WriteLeaf, 1_999, 1);
    stats.waited(Kind::WriteLeaf, 4_000_000, 3);
    let report = stats.report(TreeLock::Optimistic);
    let leaf = report.kinds.iter().find(|k| (k.access, k.level) == ("write", "leaf")).expect("all kinds");
    assert_eq!((leaf.wakeups, leaf.wait_ns.count, leaf.wait_ns.max), (4, 2, 4_000_000));
    assert_eq!(leaf.wait_us.buckets[1], 1, "one microsecond, rounded down");
    assert_eq!(leaf.wait_ms.buckets, [1, 0, 0, 1], "none and four milliseconds");
    assert_eq!((report.waits(), report.wakeups(), report.longest_wait_ns()), (2, 4, 4_000_000));
}
