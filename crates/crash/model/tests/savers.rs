//! The ways in which programs save a file, correct and wrong. Each wrong way must be found, with
//! the missing call; no correct way may be accused.

use kedge_crash::{Budget, Campaign, Case, Disk, Model, Report, Verdict, explore_in_memory};
use std::io::Result;

const OLD: &[u8] = b"the old text";

fn new_text() -> Vec<u8> {
    b"the new text, which is longer than a page ".repeat(200)
}

/// A disk with a durable `doc`; then `save` runs, and a mark follows.
fn saved(save: impl FnOnce(&Disk) -> Result<()>) -> Disk {
    let disk = Disk::new();
    disk.create("doc").unwrap().write_at(0, OLD).unwrap();
    disk.settle();
    save(&disk).unwrap();
    disk.tell("saved");
    disk
}

/// `doc` must hold the old or the new text; after the mark only the new text.
fn judge(disk: &Disk, told: &[&str]) -> std::result::Result<(), String> {
    let found = disk.read("doc").map_err(|e| format!("doc: {e}"))?;
    match found {
        text if text == new_text() => Ok(()),
        text if text == OLD && told.is_empty() => Ok(()),
        text if text == OLD => Err("the old text, though the user was told that the new one is saved".into()),
        text => Err(format!("{} bytes that are neither", text.len())),
    }
}

fn explore(model: &str, save: impl FnOnce(&Disk) -> Result<()>) -> Report {
    let model = Model::by_name(model).unwrap();
    let report = explore_in_memory(&saved(save).trace(), model, judge);
    assert!(report.fails_uncrashed.is_none(), "the saver works when nothing crashes");
    assert!(report.outcome.states > 1, "a save has crash states");
    report
}

fn write_new(disk: &Disk, name: &str) -> Result<()> {
    disk.create(name)?.write_at(0, &new_text())
}

fn in_place(disk: &Disk) -> Result<()> {
    let file = disk.open("doc")?;
    file.set_len(0)?;
    file.write_at(0, &new_text())?;
    file.sync_all()?;
    disk.sync("")
}

fn rename_only(disk: &Disk) -> Result<()> {
    write_new(disk, "doc.tmp")?;
    disk.rename("doc.tmp", "doc")?;
    disk.sync("")
}

fn no_dir_sync(disk: &Disk) -> Result<()> {
    write_new(disk, "doc.tmp")?;
    disk.open("doc.tmp")?.sync_all()?;
    disk.rename("doc.tmp", "doc")
}

fn right(disk: &Disk) -> Result<()> {
    write_new(disk, "doc.tmp")?;
    disk.open("doc.tmp")?.sync_all()?;
    disk.rename("doc.tmp", "doc")?;
    disk.sync("")
}

#[test]
fn in_place_is_caught_everywhere_and_no_call_can_help() {
    for model in ["strict", "kedgefs", "ext4", "xfs", "btrfs", "posix"] {
        let report = explore(model, in_place);
        assert!(report.failed(), "{model}");
        assert!(
            report.failures.iter().any(|f| f.sentence.contains("No persistence call")),
            "{model}: {report:#?}"
        );
    }
}

#[test]
fn rename_without_fsync_of_the_file_is_caught_where_rename_does_not_wait() {
    for model in ["kedgefs", "xfs", "btrfs", "ext4", "ext4-writeback", "posix"] {
        let report = explore(model, rename_only);
        assert!(report.failed(), "{model}");
        let first = &report.failures[0];
        assert!(first.fixes.iter().any(|f| f.call == "fsync(\"doc.tmp\")"), "{model}: {first:#?}");
        assert!(first.fixes.iter().all(|f| f.failing == 0), "{model}: {first:#?}");
        assert_eq!(report.mended.map(|m| m.1), Some(0), "{model}: {report:#?}");
    }
    let documented = explore("ext4-ordered", rename_only);
    assert!(!documented.failed(), "the bytes of a replacing rename are kept: {documented:#?}");
}

#[test]
fn a_missing_sync_of_the_directory_is_caught() {
    for model in ["kedgefs", "ext4", "xfs", "btrfs", "posix"] {
        let report = explore(model, no_dir_sync);
        assert!(report.failed(), "{model}");
        let first = &report.failures[0];
        assert!(
            first.sentence.contains("fsync(\".\") before #7 mark \"saved\" prevents it"),
            "{model}: {first:#?}"
        );
        assert_eq!(first.fixes[0].failing, 0, "{model}: {first:#?}");
    }
}

#[test]
fn the_right_way_is_accused_by_no_model() {
    for model in kedge_crash::MODELS {
        let report = explore(model.name, right);
        assert!(!report.failed(), "{}: {:#?}", model.name, report.failures);
        assert!(report.outcome.is_whole(), "{}: {:#?}", model.name, report.outcome);
    }
}

/// A header declares a record that spans two pages, without a persistence call between the record
/// and the header.
#[test]
fn a_torn_page_is_prevented_by_the_call_that_makes_it_durable() {
    let disk = Disk::new();
    let log = disk.create("log").unwrap();
    log.write_at(0, &[b'0'; 8192]).unwrap();
    disk.settle();
    log.write_at(4096, &[b'r'; 4096]).unwrap();
    log.write_at(0, b"1").unwrap();
    log.sync_all().unwrap();
    let model = Model::by_name("btrfs").unwrap();
    let torn = Model { torn_pages: true, ..model };
    for (model, fails) in
        [(Model { torn_pages: true, order: kedge_crash::Order::Total, ..model }, false), (torn, true)]
    {
        let report = explore_in_memory(&disk.trace(), model, |disk, _| {
            let log = disk.read("log").map_err(|e| e.to_string())?;
            let is_whole = log[4096..].iter().all(|b| *b == b'r');
            // This program detects that all bytes are missing, but does not detect a torn page.
            let is_missing = log[4096..].iter().all(|b| *b == b'0');
            if log[0] == b'0' || is_whole || is_missing { Ok(()) } else { Err("half a record".into()) }
        });
        assert_eq!(report.failed(), fails, "{report:#?}");
        if fails {
            let first = &report.failures[0];
            assert!(first.state.contains("torn"), "{first:#?}");
            assert_eq!(first.fixes[0].call, "fsync(\"log\")", "{first:#?}");
            assert_eq!(report.mended.map(|m| m.1), Some(0), "{report:#?}");
        }
    }
}

/// A check may take seconds, so the user limits their number.
#[test]
fn what_a_missing_call_mends_is_tried_on_no_more_states_than_the_user_wanted() {
    let trace = saved(rename_only).trace();
    let model = Model::by_name("posix").unwrap();
    let checker = |case: &Case<'_>| match judge(&Disk::after(case.state.clone()), case.told) {
        Ok(()) => Verdict::Good,
        Err(why) => Verdict::Bad(why),
    };
    for (states, most) in [(20, 20), (10_000, 400)] {
        let budget = Budget { states: Some(states), ..Budget::default() };
        let report = Campaign { trace: &trace, model, checker: &checker, budget, hear: None }.run();
        let tried: Vec<u64> = report.failures.iter().flat_map(|f| &f.fixes).map(|f| f.tried).collect();
        assert!(!tried.is_empty() && tried.iter().all(|n| (1..=most).contains(n)), "{tried:?}");
        assert_eq!(tried.iter().any(|n| *n > 20), states > 20, "{tried:?}");
        assert!(report.mended.unwrap().0 <= states, "{:?}", report.mended);
    }
}

#[test]
fn a_judge_who_accepts_all_finds_nothing() {
    let trace = saved(in_place).trace();
    for model in kedge_crash::MODELS {
        let seen = std::sync::atomic::AtomicU64::new(0);
        let report = explore_in_memory(&trace, model, |_, _| {
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        });
        assert_eq!((report.outcome.failing, report.failures.len()), (0, 0), "{}", model.name);
        assert_eq!(report.outcome.states, seen.into_inner(), "{}: as many as it says", model.name);
        assert!(
            report.outcome.states > 5 && report.outcome.is_whole(),
            "{}: {:?}",
            model.name,
            report.outcome
        );
    }
}
