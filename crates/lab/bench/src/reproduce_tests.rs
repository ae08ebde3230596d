use super::*;
use crate::Interrupt;

/// The settings of one short round that needs no mount.
pub(super) fn quick_in(dir: &std::path::Path) -> Settings {
    Settings {
        dir: Some(dir.to_owned()),
        size: 1 << 30,
        rounds: Some(1),
        quick: true,
        written: false,
        kedge: "none is needed off the mount".into(),
        before: None,
        interrupt: Interrupt::new(|_| {}),
        progress: |_| {},
    }
}

fn report(experiment: Experiment, part: Part) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let settings = quick_in(dir.path());
    let report = run(&settings, experiment, &[part], None).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    report
}

/// Checks that all contestants of the first section have figures, and that every bar was measured.
fn is_whole(report: &Report, contests: usize, contestants: usize, bars: usize) {
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let outcomes = &report.sections[0].outcomes;
    assert_eq!(outcomes.len(), contests);
    for outcome in outcomes {
        assert_eq!(outcome.sides.len(), contestants);
        assert!(outcome.sides.iter().all(|s| s.failed.is_none()), "{outcome:#?}");
        assert!(!outcome.published.is_empty());
    }
    assert!(
        report.bars.len() >= bars && report.bars[..bars].iter().all(|b| b.reached.is_some()),
        "{:#?}",
        report.bars
    );
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["bars"].as_array().unwrap().len(), report.bars.len());
}

#[test]
fn writeback_in_process() {
    let report = report(Experiment::Writeback, Part::Process);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let missing = crate::disk::LoopDevice::missing(crate::place::effective_uid(&status) == Some(0));
    is_whole(&report, if missing.is_some() { 1 } else { 2 }, 2, 3);
    assert!(report.bars[0].met, "few device writes: {:?}", report.bars[0]);
    match missing {
        Some(why) => kedge_base::skip::note(why),
        None => {
            let on_loop = &report.sections[0].outcomes[1];
            let figure = |side, name: &str| on_loop.median(side, &format!("the kernel's count: {name}"));
            for side in [0, 1] {
                let bytes = on_loop.median(side, "mean device write") * on_loop.median(side, "device writes");
                let (counted, bytes) = (figure(side, "sectors") * 512.0, bytes * 1024.0);
                assert!((counted / bytes - 1.0).abs() < 0.01, "{counted} of {bytes} bytes");
                // Each write is one request or was merged into another. A flush may count as a
                // request.
                let requests = figure(side, "writes") + figure(side, "requests merged into another");
                assert!(requests >= on_loop.median(side, "device writes"), "{on_loop:#?}");
            }
        }
    }
}

#[test]
fn rename_with_a_modelled_flush() {
    if need("dbench").is_err() {
        return kedge_base::skip::note("dbench, whose load file this takes, is not installed");
    }
    let report = report(Experiment::Rename, Part::Model);
    is_whole(&report, 1, 2, 7);
    assert!(report.bars[0].met, "no force by rename: {:?}", report.bars[0]);
    let average = |side| report.sections[0].outcomes[0].median(side, "Rename average");
    assert!(average(0) > 0.9, "one that forces takes a flush: {} ms", average(0));
    assert!(average(1) < average(0), "{} ms without", average(1));
    assert!(report.bars.iter().all(|b| b.what.starts_with("process, flush of 1 ms, ")), "{:?}", report.bars);
}

#[test]
fn sync_in_process() {
    let report = report(Experiment::Sync, Part::Process);
    is_whole(&report, 1, 4, 3);
}

/// Other file systems may be missing here, or the rights to make them.
#[test]
fn tree_lock_in_process() {
    let tools = ["mkfs.ext4", "mkfs.btrfs", "mount", "dbench"];
    if let Some(missing) = tools.iter().find(|tool| need(tool).is_err()) {
        kedge_base::skip::note(&format!("{missing} is not installed"));
    } else {
        let report = report(Experiment::TreeLock, Part::Process);
        is_whole(&report, 2, 4, 2);
        // A short run may have no wait by which to divide. Everything else must be present.
        let figures: Vec<_> = report.bars.iter().filter(|b| !b.what.contains("longest wait")).collect();
        assert_eq!(figures.len(), report.bars.len() - 1, "{:#?}", report.bars);
        assert!(figures.len() >= 8 && figures.iter().all(|b| b.reached.is_some()), "{figures:#?}");
        let histograms = report.sections[0].setup.iter().filter(|l| l.contains("distribution"));
        assert!(histograms.count() > 0);
    }
}
