#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::{Campaign, Report};
use crate::disk::Disk;
use crate::model::Model;
use crate::run::Budget;

fn explore(
    command: &str,
    files: &[&str],
    is_older_allowed: bool,
    run: impl Fn(&Disk),
) -> Result<Report, String> {
    let disk = Disk::new();
    run(&disk);
    let trace = disk.trace();
    let runner = CommandChecker::new(command, Duration::from_secs(20), None, None).unwrap();
    let files = files.iter().map(|text| Pattern::new(text)).collect();
    let checker = InferChecker::new(&trace, runner, files, is_older_allowed)?;
    let model = Model::by_name("ext4").unwrap();
    let budget = Budget { states: Some(200), explain: Some(Duration::ZERO), ..Budget::default() };
    Ok(Campaign { trace: &trace, model, checker: &checker, budget, hear: None }.run())
}

#[track_caller]
fn passes(report: Result<Report, String>) {
    let report = report.unwrap();
    assert!(report.passed() && report.outcome.is_whole() && report.outcome.states > 3, "{report:#?}");
}

/// Asserts that the search fails, and that a message of a failing state has the word.
#[track_caller]
fn fails(report: Result<Report, String>, word: &str) {
    let report = report.unwrap();
    let messages: Vec<&str> = report.outcome.failures.iter().map(|f| &f.message[..]).collect();
    assert!(report.failed() && report.fails_uncrashed.is_none(), "{report:#?}");
    assert!(messages.iter().any(|message| message.contains(word)), "{messages:#?}");
}

/// Saves two versions of a file; `syncs` names the persistence calls that are made.
fn save(syncs: &'static [&'static str]) -> impl Fn(&Disk) {
    move |disk| {
        for n in 1..=2 {
            disk.create("new").unwrap().write_at(0, format!("version {n}\n").repeat(600).as_bytes()).unwrap();
            if syncs.contains(&"bytes") {
                disk.sync("new").unwrap();
            }
            disk.rename("new", "doc").unwrap();
            if syncs.contains(&"name") {
                disk.sync("").unwrap();
            }
            disk.tell(&format!("saved {n}"));
        }
    }
}

const SHOW: &str = "test ! -e doc || cat doc";

#[test]
fn a_promise_that_is_broken_is_found_without_a_check() {
    passes(explore(SHOW, &[], false, save(&["bytes", "name"])));
    fails(explore(SHOW, &[], false, save(&["bytes"])), "after the last promise it prints \"version 2\"");
    fails(explore(SHOW, &[], false, save(&["name"])), "no state without a crash gives this output");
    // If promises do not count, an older version is accepted too, but zeros are not.
    passes(explore(SHOW, &[], true, save(&["bytes"])));
    fails(explore(SHOW, &[], true, save(&[])), "no state without a crash gives this output");
}

#[test]
fn a_command_that_prints_nothing_is_judged_by_the_files_that_it_leaves() {
    let recover = "rm -f new";
    passes(explore(recover, &[], false, save(&["bytes", "name"])));
    fails(explore(recover, &[], false, save(&["bytes"])), "it leaves ");
    // The files that the user names are compared in addition to the output.
    passes(explore("echo x", &[], false, save(&[])));
    fails(explore("echo x; rm -f new", &["doc"], false, save(&[])), "it leaves ");
    passes(explore("echo x; rm -f new", &["other"], false, save(&[])));
}

#[test]
fn what_varies_between_two_runs_is_not_compared() {
    let run = "echo started at $(date +%s%N), process $$, in $KEDGE_DIR; test ! -e doc || cat doc";
    passes(explore(run, &[], false, save(&["bytes", "name"])));
    fails(explore(run, &[], false, save(&["bytes"])), "prints");
    // The command writes the time to one file, which is left out of the comparison. The other file
    // counts.
    let run = "date +%s%N > log; rm -f new";
    passes(explore(run, &[], false, save(&["bytes", "name"])));
    fails(explore(run, &[], false, save(&["bytes"])), "doc");
}

#[test]
fn a_program_that_does_not_survive_being_killed_is_found() {
    // The buggy program removes the old file before the new one has its name.
    let run = |is_careful: bool| {
        move |disk: &Disk| {
            for n in 1..=2 {
                disk.create("new").unwrap().write_at(0, format!("{n}\n").as_bytes()).unwrap();
                disk.sync("new").unwrap();
                if n == 2 && !is_careful {
                    disk.remove("doc").unwrap();
                }
                disk.rename("new", "doc").unwrap();
                disk.sync("").unwrap();
                disk.tell(&format!("saved {n}"));
            }
        }
    };
    passes(explore("cat doc", &[], false, run(true)));
    fails(explore("cat doc", &[], false, run(false)), "exit code 1: cat: doc: No such file");
}

#[test]
fn a_command_that_never_succeeds_or_never_shows_the_same_gives_no_verdict() {
    let run = |command: &str| explore(command, &[], false, save(&["bytes", "name"])).err().unwrap();
    assert!(run("echo no; exit 3").contains("fails without a crash, after "), "{}", run("echo no; exit 3"));
    assert!(run("does-not-exist-1").contains("cannot be run"), "{}", run("does-not-exist-1"));
    let noise = "for n in $(seq 200); do echo word$n $(date +%N); done";
    assert!(run(noise).contains("as a whole"), "{}", run(noise));
}

/// A database that is mapped is often a sparse file, much larger than the memory.
#[test]
fn a_sparse_file_of_any_size_is_compared() {
    let run = |is_synced: bool| {
        move |disk: &Disk| {
            let map = disk.create("map").unwrap();
            map.set_len(1 << 40).unwrap();
            map.sync_all().unwrap();
            disk.sync("").unwrap();
            for n in 1..=2u8 {
                map.write_at((1 << 40) - 4096 * u64::from(n), &[n; 512]).unwrap();
                if is_synced {
                    map.sync_data().unwrap();
                }
                disk.tell(&format!("saved {n}"));
            }
        }
    };
    for (command, files) in [("cat log 2> /dev/null; echo x", &["*"][..]), ("true", &[])] {
        passes(explore(command, files, false, run(true)));
        fails(explore(command, files, false, run(false)), "it leaves map with a content");
    }
    // The file is not compared, since the command prints something.
    passes(explore("echo x", &[], false, run(false)));
}
