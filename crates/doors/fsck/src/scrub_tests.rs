use super::*;
use crate::test_image::{Built, Image, write_superblock};
use crate::{Replay, ReplaySummary};
use kedge_base::{BlockNo, Error, Lsn, Result};
use kedge_device::MemDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A log with this number of writes; 99 stands for a damaged log.
struct Log(u64);

impl Replay for Log {
    fn log_writes(&self, _: &dyn Device, _: &Superblock) -> Result<u64> {
        match self.0 {
            99 => Err(Error::corrupt_log(Lsn(4096), "torn".to_owned())),
            n => Ok(n),
        }
    }

    fn replay(&self, _: Arc<dyn Device>) -> Result<ReplaySummary> {
        panic!("a scrub replays nothing")
    }
}

fn flip(device: &MemDevice, block: BlockNo) {
    device.corrupt(block.byte_offset() + 2000, |bytes| bytes[0] ^= 4);
}

/// Scrubs, and calls `change` with the pass's number at the beginning and at the end of each pass.
fn beside(
    built: Built,
    log: u64,
    mounted: bool,
    change: impl Fn(&Built, u64, bool) + Send + Sync + 'static,
) -> ScrubReport {
    let built = Arc::new(built);
    let (hook, number) = (built.clone(), AtomicU64::new(0));
    let options = CheckOptions {
        replay: Some(Arc::new(Log(log))),
        progress: Some(Arc::new(move |p| match p.phase {
            "log" => change(&hook, number.fetch_add(1, Ordering::Relaxed) + 1, true),
            "space" if p.done == p.total => change(&hook, number.load(Ordering::Relaxed), false),
            _ => {}
        })),
        ..CheckOptions::default()
    };
    scrub(&built.device, &options, mounted)
}

#[test]
fn all_that_was_read_is_told() {
    for mounted in [false, true] {
        let built = Image::sample().build();
        let nodes = built.superblock.checkpoint.nodes;
        let report = beside(built, 0, mounted, |_, _, _| {});
        assert_eq!((report.exit_code(), report.passes, report.confirmed), (0, 1, true), "{report}");
        let c = report.report.counters;
        assert_eq!((report.superblocks, c.index_blocks, c.bitmaps), (2, 1, 2));
        assert_eq!((c.nodes, report.log_writes), (nodes, Some(0)));
        assert!(report.to_string().ends_with("clean"), "{report}");
    }
}

#[test]
fn damage_is_found_and_confirmed() {
    for (mounted, passes) in [(false, 1), (true, 2)] {
        let built = Image::sample().build();
        flip(&built.device, *built.nodes[0].last().unwrap());
        flip(&built.device, BlockNo(16));
        let report = beside(built, 0, mounted, |_, _, _| {});
        assert_eq!((report.exit_code(), report.passes, report.superblocks), (4, passes, 1), "{report}");
        assert_eq!(report.report.count(FindingKind::NodeBad), 1, "{report}");
        assert!(report.to_string().contains("/dir/sub/many199"), "{report}");
    }
}

#[test]
fn a_damaged_log_is_found() {
    let report = beside(Image::sample().build(), 99, false, |_, _, _| {});
    assert_eq!((report.exit_code(), report.log_writes), (4, None), "{report}");
    assert_eq!(report.report.count(FindingKind::ReplayFailed), 1, "{report}");
    let report = beside(Image::sample().build(), 3, false, |_, _, _| {});
    assert_eq!(report.report.count(FindingKind::SuperblockCleanWithLog), 1, "{report}");
}

/// A block that is reused while it is read is not damaged: the next pass does not report it.
#[test]
fn what_only_one_pass_sees_does_not_count() {
    let report = beside(Image::sample().build(), 0, true, |built, pass, _| {
        if pass == 1 {
            flip(&built.device, built.nodes[0][3]); // undone at the end of the pass
        }
    });
    assert_eq!((report.exit_code(), report.passes, report.confirmed), (0, 2, true), "{report}");
}

#[test]
fn what_every_pass_sees_elsewhere_is_not_certain() {
    let report = beside(Image::sample().build(), 0, true, |built, pass, _| {
        flip(&built.device, built.nodes[0][pass as usize]);
    });
    assert_eq!((report.exit_code(), report.passes), (8, PASSES_MAX), "{report}");
    assert!(report.to_string().contains("not certain"), "{report}");
}

/// If each pass finds another checkpoint, only findings about nodes that both passes refer to are
/// certain.
#[test]
fn under_changing_checkpoints_only_nodes_are_certain() {
    let checkpoint = |built: &Built, pass: u64, begins: bool| {
        if !begins {
            let mut sb = built.superblock.clone();
            sb.checkpoint.written_sec = pass as i64;
            write_superblock(&built.device, &sb);
        }
    };
    let built = Image::sample().build();
    flip(&built.device, built.bitmaps[0]);
    let report = beside(built, 0, true, checkpoint);
    assert_eq!((report.exit_code(), report.confirmed), (8, false), "{report}");
    assert_eq!(report.report.counters.bitmaps, 1, "what is not valid is not counted");

    let built = Image::sample().build();
    flip(&built.device, *built.nodes[0].last().unwrap());
    let report = beside(built, 0, true, checkpoint);
    assert_eq!((report.exit_code(), report.passes), (4, 2), "{report}");
}
