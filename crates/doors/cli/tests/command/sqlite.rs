//! Atomic writes on a mount: by the ioctls of F2FS, and by an SQLite that uses them.

#[path = "../../../sqlite/tests/library/mod.rs"]
mod library;

use crate::common::{Place, kill, needs_fuse, output_of};
use kedge_base::skip;
use library::{LIBRARY, PYTHON};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn mounted(options: &str) -> Place {
    let place = Place::after("mkfs --size 256M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&format!("mount{options} disk.kedge mnt")).ok();
    place
}

fn script(place: &Place, name: &str, arguments: &[&str]) -> Command {
    let mut command = place.command(PYTHON);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqlite").join(name)).args(arguments);
    command
}

#[track_caller]
fn run(command: Command) -> String {
    let output = output_of(command).unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    out.into_owned()
}

#[test]
fn a_commit_shows_all_pages_to_all_readers_and_an_abort_none() {
    needs_fuse!();
    for options in ["", " -o fuse"] {
        let place = mounted(options);
        assert_eq!(run(script(&place, "ioctls.py", &["mnt/f", "with"])), "done\n");
        let kept = fs::read(place.path("mnt/f")).unwrap();
        // Everything was committed, so it survives the death of the server.
        kill(&place, "mnt");
        crate::common::until("the image is free", || place.run("fsck disk.kedge").code != 8);
        place.run(&format!("mount{options} disk.kedge mnt")).ok();
        assert!(fs::read(place.path("mnt/f")).unwrap()[2 * 4096..] == kept[2 * 4096..]);
        place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn a_mount_with_a_writeback_cache_has_none_and_says_so() {
    needs_fuse!();
    let place = mounted(" -o writeback_cache");
    assert_eq!(run(script(&place, "ioctls.py", &["mnt/f", "without"])), "done\n");
    place.unmount_and_check("disk.kedge");
}

fn sqlite(place: &Place, arguments: &[&str]) -> Option<Command> {
    match &*LIBRARY {
        Err(why) => {
            skip::note(why);
            None
        }
        Ok(library) => {
            let mut command = script(place, "commits.py", arguments);
            command.env("LD_LIBRARY_PATH", library);
            Some(command)
        }
    }
}

fn atomic_writes(place: &Place) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats --json mnt").ok()).unwrap();
    stats["data"]["atomic_writes"].as_u64().unwrap()
}

#[test]
fn a_transaction_of_sqlite_is_one_atomic_write_without_a_journal() {
    needs_fuse!();
    let place = mounted("");
    let Some(command) = sqlite(&place, &["mnt/app.db", "200", "more"]) else { return };
    run(command);
    let commits = atomic_writes(&place);
    assert!(commits >= 200, "{commits} atomic writes");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_killed_server_keeps_whole_transactions_and_all_that_were_committed() {
    needs_fuse!();
    let place = mounted("");
    let mut last = 0;
    for round in 0..5 {
        let Some(mut command) = sqlite(&place, &["mnt/app.db", "100000"]) else { return };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.by_ref().take(30 + 11 * round) {
            last = line.unwrap().parse().unwrap();
        }
        // Kill the server in the middle of a transaction.
        kill(&place, "mnt");
        for line in lines {
            last = line.unwrap().parse().unwrap();
        }
        child.wait().unwrap();
        crate::common::until("the image is free", || place.run("fsck disk.kedge").code != 8);
        place.run("mount disk.kedge mnt").ok();
        let next = run(sqlite(&place, &["mnt/app.db", "1"]).unwrap());
        let next: u64 = next.trim().parse().unwrap();
        assert!(next == last + 1 || next == last + 2, "after {last} comes {next}");
        last = next;
    }
    place.unmount_and_check("disk.kedge");
}

/// A recording of the writes and flushes of an image file in which SQLite has its database.
/// `explore` then cuts the power.
struct Database<'a> {
    place: Place,
    library: &'a Path,
    journal: &'a str,
}

impl Database<'_> {
    fn recorded<'a>(journal: &'a str, synchronous: &str, commits: &str) -> Option<Database<'a>> {
        let library = match &*LIBRARY {
            Err(why) => {
                skip::note(why);
                return None;
            }
            Ok(library) => library,
        };
        let database = Database { place: Place::new(), library, journal };
        fs::create_dir(database.place.path("from")).unwrap();
        database.place.run("mkfs --size 32M from/disk.kedge").ok();
        let options = ["crash", "record", "--from", "from", "--ack", "^[0-9]+$", "-o", "run.kcr", "--"];
        let script = database.script("power.py");
        let words = ["sh", "-c", "IMAGE=$KEDGE_DIR/disk.kedge exec \"$@\"", "sh", PYTHON, &script];
        let recorded = database.kedge(&[&options[..], &words, &[journal, synchronous, commits]].concat());
        assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
        Some(database)
    }

    fn script(&self, name: &str) -> String {
        format!("{}/../sqlite/tests/py/{name}", env!("CARGO_MANIFEST_DIR"))
    }

    fn kedge(&self, words: &[&str]) -> Output {
        let extension = std::env::current_exe().unwrap().with_file_name("libkedgefs_sqlite.so");
        assert!(extension.exists(), "cargo built no {}", extension.display());
        let mut command = self.place.command(env!("CARGO_BIN_EXE_kedge"));
        command.args(words).env("LD_LIBRARY_PATH", self.library).env("EXTENSION", extension);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        output_of(command).unwrap()
    }

    fn explore(&self, model: &str, more: &[&str]) -> (i32, String) {
        let script = self.script("failed.py");
        let check = format!("IMAGE=$PWD/disk.kedge exec {PYTHON} {script} {}", self.journal);
        let options = ["crash", "explore", "run.kcr", "--model", model, "--check", &check];
        let output = self.kedge(&[&options[..], more].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }
}

#[test]
fn a_power_failure_leaves_whole_transactions_and_all_that_were_committed() {
    needs_fuse!();
    for journal in ["delete", "wal"] {
        let Some(database) = Database::recorded(journal, "full", "6") else { return };
        for model in ["ext4", "posix"] {
            let (code, text) = database.explore(model, &["--budget", "100"]);
            assert_eq!(code, 0, "{journal} {model}: {text}");
            assert!(text.contains("distinct crash states"), "{text}");
        }
    }
}

#[test]
fn a_commit_that_waits_for_nothing_does_not_survive_a_power_failure() {
    needs_fuse!();
    let Some(database) = Database::recorded("wal", "off", "3") else { return };
    let (code, text) = database.explore("ext4", &["--max-failures", "1", "--explain", "0"]);
    assert_eq!(code, 1, "{text}");
}
