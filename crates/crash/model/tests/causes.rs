//! How failures are grouped into causes: by the call that prevents them, and by whether a promise
//! was broken.

use kedge_crash::{Disk, Model, Report, explore_in_memory};

fn explore(disk: &Disk, model: &str, judge: impl Fn(&Disk, &[&str]) -> Result<(), String> + Sync) -> Report {
    explore_in_memory(&disk.trace(), Model::by_name(model).unwrap(), judge)
}

fn holds(what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn write(disk: &Disk, name: &str) {
    let file = disk.create(name).unwrap();
    file.write_at(0, name.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

fn is_there(disk: &Disk, name: &str) -> bool {
    disk.read(name).is_ok_and(|bytes| bytes == name.as_bytes())
}

/// Without the directory's fsync each of the names can be lost alone, and one call prevents all of
/// these losses.
#[test]
fn failures_that_one_call_prevents_are_one_cause() {
    let disk = Disk::new();
    disk.create("old").unwrap();
    disk.settle();
    ["alpha", "beta", "gamma"].iter().for_each(|name| write(&disk, name));
    disk.tell("saved");
    let report = explore(&disk, "posix", |disk, told| {
        let all = ["alpha", "beta", "gamma"].iter().all(|name| is_there(disk, name));
        holds("a file is missing", told.is_empty() || all)
    });
    let [cause] = &report.failures[..] else { panic!("{:#?}", report.failures) };
    let fix = &cause.fixes[0];
    assert_eq!((fix.call.as_str(), fix.before), ("fsync(\".\")", 9), "after the last create");
    assert_eq!((cause.fixes.len(), fix.failing), (1, 0), "{cause:#?}");
    assert!(!cause.also.is_empty(), "{cause:#?}");
    let all: String = cause.also.iter().map(|also| also.loss.clone()).chain([cause.loss.clone()]).collect();
    for name in ["alpha", "beta", "gamma"] {
        assert!(
            all.contains(&format!(
                "the directory entry that #{} create({name:?}) made",
                match name {
                    "alpha" => 2,
                    "beta" => 5,
                    _ => 8,
                }
            )),
            "{name}: {all}"
        );
    }
}

/// Two calls are missing, and neither prevents the losses that the other prevents: these are two
/// causes.
#[test]
fn failures_of_different_calls_stay_apart() {
    // The losses without the first call also occur without the second, which hides them.
    let disk = Disk::new();
    disk.create("old").unwrap();
    disk.settle();
    disk.create("doc").unwrap().write_at(0, b"doc").unwrap();
    disk.tell("saved");
    let report = explore(&disk, "posix", |disk, told| holds("doc", told.is_empty() || is_there(disk, "doc")));
    let mut calls: Vec<&str> =
        report.failures.iter().flat_map(|f| &f.fixes).map(|f| f.call.as_str()).collect();
    calls.sort_unstable();
    assert_eq!(calls, ["fsync(\".\")", "fsync(\"doc\")"], "{:#?}", report.failures);
    assert_eq!(report.mended.map(|m| m.1), Some(0), "{report:#?}");
}

/// A log is synced after each entry except one. Only that position is reported.
#[test]
fn places_that_have_the_call_are_not_named() {
    let disk = Disk::new();
    let log = disk.create("log").unwrap();
    disk.sync("").unwrap();
    disk.settle();
    for n in 0..6u8 {
        log.append(&[b'a' + n]).unwrap();
        if n != 3 {
            log.sync_all().unwrap();
        }
        disk.tell(&n.to_string());
    }
    let report = explore(&disk, "posix", |disk, told| {
        let log = disk.read("log").unwrap_or_default();
        let kept = (0..told.len()).all(|n| log.get(n) == Some(&(b'a' + n as u8)));
        holds("an entry is missing", kept)
    });
    let fixes: Vec<_> = report.failures.iter().flat_map(|f| &f.fixes).collect();
    assert!(!fixes.is_empty());
    for fix in fixes {
        assert_eq!((fix.call.as_str(), fix.before_text.as_str()), ("fsync(\"log\")", "mark \"3\""));
        assert!(fix.also_before.is_empty(), "{fix:#?}");
        assert_eq!(fix.failing, 0, "{fix:#?}");
    }
}

/// A program that makes its files in two steps, and never syncs after the second promise.
fn starts_up() -> Disk {
    let disk = Disk::new();
    write(&disk, "head");
    write(&disk, "body");
    disk.sync("").unwrap();
    disk.tell("ready");
    disk.open("body").unwrap().append(b"!").unwrap();
    disk.tell("saved");
    disk
}

fn judge_start_up(disk: &Disk, told: &[&str]) -> Result<(), String> {
    let (head, body) = (disk.read("head"), disk.read("body"));
    if told.contains(&"saved") {
        return holds("saved and lost", body.is_ok_and(|bytes| bytes == b"body!"));
    }
    match (head, body) {
        (Ok(head), Ok(body)) if head == b"head" && body.starts_with(b"body") => Ok(()),
        (Err(_), Err(_)) if told.is_empty() => Ok(()),
        _ => Err("the store does not open".to_owned()),
    }
}

#[test]
fn failures_before_the_first_promise_stand_apart() {
    let report = explore(&starts_up(), "ext4", judge_start_up);
    assert!(report.outcome.failing_early > 0, "{report:#?}");
    assert!(report.outcome.failing > report.outcome.failing_early, "{report:#?}");
    assert!(!report.is_early());
    let first_early = report.failures.iter().position(|f| f.is_early).unwrap();
    assert!(first_early > 0, "broken promises come first: {:#?}", report.failures);
    let (broken, early) = report.failures.split_at(first_early);
    assert!(early.iter().all(|f| f.is_early && f.told.is_none()), "{early:#?}");
    assert!(broken.iter().all(|f| f.told.is_some()), "{broken:#?}");
    assert!(broken.iter().any(|f| f.message == "saved and lost"), "{broken:#?}");
}

/// Files that exist at the start can be lost before any promise.
#[test]
fn with_files_at_the_start_no_failure_is_early() {
    let disk = Disk::new();
    disk.create("doc").unwrap().write_at(0, b"old").unwrap();
    disk.settle();
    let doc = disk.open("doc").unwrap();
    doc.set_len(0).unwrap();
    doc.write_at(0, b"new").unwrap();
    doc.sync_all().unwrap();
    disk.tell("saved");
    let report = explore(&disk, "ext4", |disk, _| {
        holds("neither old nor new", matches!(disk.read("doc").as_deref(), Ok(b"old" | b"new")))
    });
    assert!(report.failed() && !report.is_early(), "{report:#?}");
    assert_eq!(report.outcome.failing_early, 0);
}

#[test]
fn a_program_that_only_starts_up_badly_is_early() {
    let disk = Disk::new();
    write(&disk, "head");
    write(&disk, "body");
    disk.sync("").unwrap();
    disk.tell("ready");
    let report = explore(&disk, "ext4", judge_start_up);
    assert!(report.failed() && report.is_early(), "{report:#?}");
}
