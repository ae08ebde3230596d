//! Crash exploration: regressions that it found, and a proof that it detects a device that ignores
//! flushes.

use kedge_sim::explore::{Explorer, Plan, base_image};
use kedge_sim::ops::{Op, parse_ops};
use kedge_sim::workload::{Catalogue, Kind, Workload, WorkloadId};

fn explore(text: &str) {
    explore_on(false, text);
}

/// Explores the operations in `text`. `inline`: in an image that keeps the data of small files in
/// the tree.
fn explore_on(inline: bool, text: &str) {
    let ops: Vec<Op> = parse_ops(text).expect("operations as JSON lines");
    let id = WorkloadId { seq: 1, seed: 0, skeleton: 0, variant: 0 };
    let workload = Workload { id, ops, settled: 0 };
    let mut explorer = Explorer::new(&base_image(inline).expect("an image is made"), Plan::thorough(1));
    if let Some(failure) = explorer.explore(&workload, None) {
        panic!("{failure}");
    }
    assert!(explorer.tally.states > 20, "{:?}", explorer.tally);
}

/// An insert range moved a block, and an overwrite of the block went in place before the record of
/// the move was durable. A crash undid the move: the old offset then had bytes that had never been
/// written there.
#[test]
fn overwritten_blocks_were_moved_for_good() {
    explore(
        r#"{"create":{"path":"foo","mode":420}}
        {"write":{"on":{"path":"foo"},"offset":0,"len":9000,"fill":{"seed":1}}}
        "sync"
        {"fallocate":{"on":{"path":"foo"},"how":"insert","offset":4096,"len":8192}}
        {"write":{"on":{"path":"foo"},"offset":7000,"len":9000,"fill":{"seed":2}}}
        {"fdatasync":{"on":{"path":"foo"}}}"#,
    );
}

/// The same with a collapsed range: the data after it is overwritten at its new offset.
#[test]
fn overwritten_blocks_behind_a_collapsed_range_were_moved_for_good() {
    explore(
        r#"{"create":{"path":"foo","mode":420}}
        {"write":{"on":{"path":"foo"},"offset":0,"len":20000,"fill":{"seed":1}}}
        "sync"
        {"fallocate":{"on":{"path":"foo"},"how":"collapse","offset":4096,"len":8192}}
        {"write":{"on":{"path":"foo"},"offset":4096,"len":5000,"fill":{"seed":2}}}
        {"fdatasync":{"on":{"path":"foo"}}}"#,
    );
}

/// On a device that ignores flushes, the chosen workloads with a persistence point lose data, and
/// the exploration must report it.
#[test]
fn a_lying_device_is_found_out() {
    let base = base_image(false).expect("an image is made");
    let catalogue = Catalogue::new(1, 0);
    let (mut found, mut all) = (0, 0);
    for skeleton in (0..catalogue.len()).step_by(9) {
        let workload = catalogue.variants(skeleton).pop().expect("every operation has a workload");
        let mut explorer = Explorer::new(&base, Plan::quick(1)).on_lying_device();
        found += usize::from(explorer.explore(&workload, None).is_some());
        all += 1;
    }
    assert!(found == all, "{found} of {all} workloads fail on a device that ignores flushes");
}

/// A sample of the workloads of one operation on small files whose data is kept in the tree.
/// `--inline` explores all of them.
#[test]
fn small_files_survive_each_crash() {
    let base = base_image(true).expect("an image is made");
    let catalogue = Catalogue::new(1, 0);
    let mut explorer = Explorer::new(&base, Plan::quick(1));
    for skeleton in 0..catalogue.len() {
        let variants = catalogue.variants(skeleton);
        for workload in variants.into_iter().step_by(7) {
            if let Some(failure) = explorer.explore(&workload.small(), None) {
                panic!("{failure}");
            }
        }
    }
    println!("{:?}", explorer.tally);
    assert!(explorer.tally.states > 5000, "{:?}", explorer.tally);
}

/// Workloads of one and of two operations on a file around the length of the longest one that is
/// kept in the tree: writes, truncates and appends below, to and beyond that length, every
/// fallocate, clones, forks and a shrink. `KEDGE_LONG=1` explores all of them, as `--edges` does.
#[test]
fn files_around_the_longest_in_the_tree_survive_each_crash() {
    let is_long = std::env::var_os("KEDGE_LONG").is_some_and(|value| value == "1");
    let base = base_image(true).expect("an image is made");
    for (seq, one_in, least) in [(1, 6, 40), (2, 1500, 20)] {
        let one_in = if is_long { 1 } else { one_in };
        let catalogue = Catalogue::of(Kind::Edges, seq, 0);
        let mut explorer = Explorer::new(&base, Plan::quick(1));
        for workload in (0..catalogue.len()).flat_map(|skeleton| catalogue.variants(skeleton)) {
            if !workload.id.mixed().is_multiple_of(one_in) {
                continue;
            }
            if let Some(failure) = explorer.explore(&workload, None) {
                panic!("{failure}");
            }
        }
        println!("{:?}", explorer.tally);
        assert!(explorer.tally.workloads > least && explorer.tally.states > 1000, "{:?}", explorer.tally);
    }
}

/// A clone of a whole file used to be a truncate of the target and then a clone. The first clone
/// begins with a checkpoint. A crash after the checkpoint left the target empty.
#[test]
fn a_clone_of_a_file_is_one_change() {
    for target in [20_000, 3000] {
        explore(&format!(
            r#"{{"create":{{"path":"foo","mode":420}}}}
            {{"write":{{"on":{{"path":"foo"}},"offset":0,"len":9000,"fill":{{"seed":1}}}}}}
            {{"create":{{"path":"bar","mode":420}}}}
            {{"write":{{"on":{{"path":"bar"}},"offset":0,"len":{target},"fill":{{"seed":2}}}}}}
            "sync"
            {{"clone_file":{{"source":{{"path":"foo"}},"on":{{"path":"bar"}}}}}}
            {{"write":{{"on":{{"path":"foo"}},"offset":100,"len":50,"fill":{{"seed":3}}}}}}
            {{"fsync":{{"on":{{"path":"foo"}}}}}}
            {{"fsync":{{"on":{{"path":"bar"}}}}}}"#
        ));
    }
}

/// A file's older bytes were kept in the tree, and the log held newer ones from an fsync. An
/// fallocate took the file out of the tree and logged the older bytes after the newer ones. A crash
/// brought the older bytes back.
#[test]
fn older_bytes_of_the_tree_lay_over_newer_ones_of_the_log() {
    for falloc in [
        r#"{"fallocate":{"on":{"path":"foo"},"how":"alloc","offset":1000,"len":1048}}"#,
        r#"{"fallocate":{"on":{"path":"foo"},"how":"punch","offset":500,"len":300}}"#,
    ] {
        explore_on(
            true,
            &format!(
                r#"{{"create":{{"path":"foo","mode":420}}}}
                {{"write":{{"on":{{"path":"foo"}},"offset":0,"len":1500,"fill":{{"seed":1}}}}}}
                "sync"
                {{"write":{{"on":{{"path":"foo"}},"offset":0,"len":2049,"fill":{{"seed":2}}}}}}
                {{"fsync":{{"on":{{"path":"foo"}}}}}}
                {falloc}
                {{"create":{{"path":"bar","mode":420}}}}
                {{"fsync":{{"on":{{"path":"bar"}}}}}}"#
            ),
        );
    }
}

/// A block below the new end is promised to log-resident bytes. But all blocks there were just
/// freed, and can be reused only after a checkpoint. The shrink makes that checkpoint.
#[test]
fn a_shrink_waits_for_blocks_that_were_just_given_up() {
    explore_on(
        true,
        r#"{"create":{"path":"bar","mode":420}}
        {"write":{"on":{"path":"bar"},"offset":0,"len":1125,"fill":{"seed":1}}}
        "sync"
        {"fallocate":{"on":{"path":"bar"},"how":"punch","offset":3000,"len":4000}}
        {"fsync":{"on":{"path":"."}}}
        {"resize":{"bytes":25165824}}
        {"create":{"path":"filler","mode":420}}
        {"fallocate":{"on":{"path":"filler"},"how":"alloc","offset":0,"len":15728640}}
        {"create":{"path":"foo","mode":420}}
        {"write":{"on":{"path":"foo"},"offset":0,"len":1125,"fill":{"seed":2}}}
        {"write":{"on":{"path":"foo"},"offset":1125,"len":8750,"fill":{"seed":3}}}
        {"fdatasync":{"on":{"path":"foo"}}}
        {"unlink":{"path":"filler"}}
        {"resize":{"bytes":16777216}}
        {"fdatasync":{"on":{"path":"bar"}}}"#,
    );
}
