#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::{Campaign, Report};
use crate::disk::Disk;
use crate::explore::SearchOrder;
use crate::model::Model;
use crate::run::Budget;

/// Explores the recording of `run` in both orders of the search.
fn explore(run: impl Fn(&Disk)) -> [Report; 2] {
    let disk = Disk::new();
    run(&disk);
    let trace = disk.trace();
    let (checker, model) = (FilesChecker::new(&trace), Model::by_name("ext4").unwrap());
    [SearchOrder::Updates, SearchOrder::Turns].map(|order| {
        let budget = Budget { order, ..Budget::default() };
        Campaign { trace: &trace, model, checker: &checker, budget, hear: None }.run()
    })
}

#[track_caller]
fn passes(run: impl Fn(&Disk)) {
    for report in explore(run) {
        assert!(report.passed() && report.outcome.is_whole() && report.outcome.states > 3, "{report:#?}");
    }
}

#[track_caller]
fn fails(run: impl Fn(&Disk), message: &str) {
    for report in explore(run) {
        let found = report.outcome.failures.iter().any(|failure| failure.message == message);
        assert!(found && report.fails_uncrashed.is_none(), "{report:#?}");
    }
}

/// Saves `doc` by a rename, and promises it.
fn save(disk: &Disk, text: &str, is_name_synced: bool) {
    disk.create("doc.tmp").unwrap().write_at(0, text.as_bytes()).unwrap();
    disk.sync("doc.tmp").unwrap();
    disk.rename("doc.tmp", "doc").unwrap();
    if is_name_synced {
        disk.sync("").unwrap();
    }
    disk.tell(text);
}

/// A crash before the program removes the file may not lose it, one after that may.
#[test]
fn a_file_that_is_removed_later_is_there_until_then() {
    let run = |is_name_synced: bool| {
        move |disk: &Disk| {
            save(disk, "one", is_name_synced);
            disk.remove("doc").unwrap();
            disk.sync("").unwrap();
            disk.tell("removed");
        }
    };
    fails(run(false), "doc is missing, though the user was told of it");
    passes(run(true));
}

/// The last save brings back the first content. Before that save it is an old one.
#[test]
fn a_content_that_comes_back_later_is_old_until_then() {
    let run = |is_name_synced: bool| {
        move |disk: &Disk| {
            save(disk, "A", true);
            save(disk, "B", is_name_synced);
            save(disk, "A", true);
        }
    };
    fails(run(false), "doc is older than what the user was told of");
    passes(run(true));
}

/// A write that nothing follows yet is a version as soon as it was made.
#[test]
fn bytes_between_two_moments_count() {
    passes(|disk: &Disk| {
        save(disk, "A", true);
        let doc = disk.open("doc").unwrap();
        doc.write_at(0, b"B").unwrap();
        disk.create("other").unwrap();
        doc.sync_data().unwrap();
        disk.sync("").unwrap();
        disk.tell("B");
    });
}
