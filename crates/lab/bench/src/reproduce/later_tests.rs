use super::super::tests::quick_in;
use super::super::{later, report};
use super::*;

/// The rows that need neither root nor a mount have figures. Counts do not depend on the machine,
/// so a short run meets their bars, too.
#[test]
fn in_process() {
    let dir = tempfile::tempdir().unwrap();
    let settings = quick_in(dir.path());
    let report = report(&settings, "bench later", 1, &[Part::Process], None, later::run).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(report.sections.len(), 3);
    for outcome in report.outcomes() {
        let first = &outcome.sides[0];
        assert!(first.failed.is_none(), "{outcome:#?}");
        assert!(first.samples.iter().all(|s| s.median().is_finite()), "{first:#?}");
    }
    let renames: Vec<_> = report.bars.iter().filter(|bar| bar.what.contains("lazy")).collect();
    assert_eq!(renames.len(), 3, "{:#?}", report.bars);
    assert!(renames.iter().all(|bar| bar.met), "{renames:#?}");
    // The old rule does force the log, so that a bar of no forces can be missed.
    let outcome = &report.sections[0].outcomes[0];
    assert!(outcome.median(0, "200 files: log forces by rename") > 0.0, "{outcome:#?}");
    assert!(report.bars.iter().all(|bar| bar.reached.is_some()), "{:#?}", report.bars);
}
