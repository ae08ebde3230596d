//! `kedge bench` refuses what makes no sense before it makes anything. What it measures is for people to see: it takes
//! minutes and a quiet machine. That it measures is shown with one short experiment.
#![allow(clippy::unwrap_used)]

mod common;
use common::Place;

#[test]
fn requests_that_make_no_sense() {
    let place = Place::new();
    assert_eq!(place.run("bench").code, 2, "no experiment");
    place.run("bench baseline --only everything").refused(2, &["everything", "fs_mark, library, dbench"]);
    place.run("bench baseline --size 16M").refused(2, &["16M", "256M"]);
    place.run("bench baseline --rounds 0").refused(2, &["0"]);
    place.run("bench baseline --json --markdown").refused(2, &["--json", "--markdown"]);
    place.run("bench baseline --dir gone").refused(1, &["gone"]);
    assert_eq!(place.run("bench reproduce").code, 2, "no experiment");
    place
        .run("bench reproduce everything")
        .refused(2, &["everything", "rename, fdatasync, checkpoint, tree-lock, writeback, sync"]);
    place.run("bench reproduce rename --only nowhere").refused(2, &["nowhere", "mount, process, model"]);
    place.run("bench reproduce rename --dir gone").refused(1, &["gone"]);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "nothing was made");
    assert!(place.run("bench baseline --help").ok().contains("--quick"));
}

/// Every contest of the report has the figures of both rules.
fn has_both_rules(report: &serde_json::Value, contests: usize) {
    let outcomes = report["sections"][0]["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), contests, "{report:#}");
    for outcome in outcomes {
        for (side, name) in [(0, "relog"), (1, "seq")] {
            let side = &outcome["sides"][side];
            assert_eq!(side["name"], name);
            assert!(side["failed"].is_null(), "{side:#}");
            assert!(side["samples"][0]["median"].as_f64().unwrap() > 0.0, "{side:#}");
        }
        assert!(!outcome["published"].as_array().unwrap().is_empty());
    }
    assert!(
        report["bars"].as_array().unwrap().iter().any(|b| b["what"].as_str().unwrap().contains("log forces"))
    );
}

#[test]
fn a_reproduction_in_memory() {
    let place = Place::new();
    let run = place.run("bench reproduce fdatasync --quick --rounds 1 --only model --json");
    has_both_rules(&serde_json::from_str(&run.ok()).unwrap(), 2);
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "nothing is left");
}

/// ext4 and XFS may be missing here, or loop devices: KedgeFS is measured all the same.
#[test]
fn a_reproduction_in_process() {
    let place = Place::new();
    let run = place.run("bench reproduce fdatasync --quick --rounds 1 --size 512M --only process --json");
    if run.out.is_empty() {
        assert!(run.code == 1 && run.err.contains("(Debian package "), "{}", run.err);
    } else {
        has_both_rules(&serde_json::from_str(&run.out).unwrap(), 3);
    }
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "nothing is left");
}
