//! `kedge crash explore --checker`: each checker that comes with kedge finds a planted bug in a
//! recorded program, and accuses no correct one.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, Run, needs_fuse, tool};
use std::fs;

/// A program: the script, with the persistence calls of the correct one in `SYNC` and `SYNC_DIR`.
struct Program {
    checker: &'static [&'static str],
    /// What is there at the start.
    from: fn(&Place),
    script: &'static str,
    /// What the correct program, and the wrong one, does in place of the words.
    right: [(&'static str, &'static str); 2],
    wrong: [(&'static str, &'static str); 2],
    model: &'static str,
    /// A word of the checker's message.
    message: &'static str,
}

const SYNCS: [(&str, &str); 2] = [("SYNC_DIR", "sync ."), ("SYNC", "sync")];
/// The bytes of the file are not synced.
const NO_BYTES: [(&str, &str); 2] = [("SYNC_DIR", "sync ."), ("SYNC", ": sync")];
/// The promise comes before the name is durable.
const NO_NAME: [(&str, &str); 2] = [("SYNC_DIR", ":"), ("SYNC", "sync")];

fn nothing(_: &Place) {}

/// A repository with one commit.
fn repository(place: &Place) {
    let git = |words: &[&str]| {
        let mut git = place.command("git");
        git.args(["-C", "from", "-c", "user.name=x", "-c", "user.email=x@example.org"]).args(words);
        tool(git, "git");
    };
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "first"]);
}

const PROGRAMS: &[Program] = &[
    Program {
        checker: &["sqlite"],
        from: nothing,
        script: "sqlite3 a.db 'create table t(n)'; sync a.db .; \
                 for n in 1 2 3; do sqlite3 a.db \"pragma synchronous=LEVEL; insert into t values($n)\"; done",
        right: [("LEVEL", "full"), ("", "")],
        wrong: [("LEVEL", "off"), ("", "")],
        model: "posix",
        message: "./a.db: ",
    },
    // With `full` SQLite does not sync the directory after it has removed the journal, so a crash
    // may roll a finished transaction back.
    Program {
        checker: &["sqlite", "--query", "select 'saved ' || n from t"],
        from: nothing,
        script: "sqlite3 a.db 'create table t(n)'; sync a.db .; \
                 for n in 1 2 3; do sqlite3 a.db \"pragma synchronous=LEVEL; insert into t values($n)\"; \
                 echo saved $n; done",
        right: [("LEVEL", "extra"), ("", "")],
        wrong: [("LEVEL", "full"), ("", "")],
        model: "posix",
        message: "promised, and not a row: saved ",
    },
    Program {
        checker: &["git"],
        from: repository,
        script: "echo text > file; for words in 'add file' 'commit -qm second'; do \
                 git -c user.name=x -c user.email=x@example.org -c gc.auto=0 -c core.fsync=LEVEL $words; done",
        right: [("LEVEL", "all"), ("", "")],
        wrong: [("LEVEL", "none"), ("", "")],
        model: "ext4",
        message: "./.git:",
    },
    Program {
        checker: &["json"],
        from: nothing,
        script: "echo '{\"a\": [1, 2]}' > new; SYNC new; mv new a.json; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "a.json: no JSON: ",
    },
    Program {
        checker: &["toml"],
        from: nothing,
        script: "mkdir conf; echo 'a = [1, 2]' > new; SYNC new; SYNC_DIR; mv new conf/a.toml; sync conf; SYNC_DIR; \
                 echo saved",
        right: SYNCS,
        wrong: NO_NAME,
        model: "posix",
        message: "conf/a.toml is missing, though it was promised",
    },
    Program {
        checker: &["tar"],
        from: nothing,
        script: "head -c 9000 /dev/urandom > data; tar -cf new data; SYNC new; mv new a.tar; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "a.tar: ",
    },
    Program {
        checker: &["gzip"],
        from: nothing,
        script: "head -c 9000 /dev/urandom > data; gzip -c data > new; SYNC new; mv new a.gz; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "./a.gz:",
    },
    Program {
        checker: &["zip"],
        from: nothing,
        script: "head -c 9000 /dev/urandom > data; zip -q new.zip data; SYNC new.zip; mv new.zip a.zip; SYNC_DIR; \
                 echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "./a.zip:",
    },
    Program {
        checker: &["ledger", "--files", "book"],
        from: nothing,
        script: "touch book; SYNC_DIR; for n in 1 2 3; do echo a=$n >> book; SYNC book; echo saved a=$n; done",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "posix",
        message: "promised, and not in the ledger: a=",
    },
];

fn record(place: &Place, script: &str) {
    let words = ["crash", "record", "--size", "64M", "--cd", "--from", "from", "--ack", "^saved", "--"];
    place.kedge(words.into_iter().chain(["sh", "-ec", script])).ok();
}

/// Explores and returns the printed report and the one in JSON.
fn explore(place: &Place, program: &Program) -> (Run, serde_json::Value) {
    let words =
        ["crash", "explore", "run.kcr", "--json=report.json", "--budget", "300", "--max-failures", "1"];
    let more = ["--explain", "0", "--model", program.model, "--checker"];
    let run = place.kedge(words.into_iter().chain(more).chain(program.checker.iter().copied()));
    let report =
        fs::read(place.path("report.json")).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err));
    (run, serde_json::from_slice(&report).unwrap())
}

#[test]
fn each_checker_finds_a_planted_bug_and_accuses_no_correct_program() {
    needs_fuse!();
    for program in PROGRAMS {
        let checker = program.checker;
        for (words, code) in [(program.right, 0), (program.wrong, 1)] {
            let place = Place::new();
            fs::create_dir(place.path("from")).unwrap();
            (program.from)(&place);
            let script = words.iter().filter(|(word, _)| !word.is_empty());
            let script = script.fold(program.script.to_owned(), |text, (from, to)| text.replace(from, to));
            record(&place, &script);
            let (run, report) = explore(&place, program);
            assert_eq!(run.code, code, "{checker:?} of {script}: {}{}", run.out, run.err);
            assert_eq!(report["checker"].as_str().unwrap().split(' ').nth(1), Some(checker[0]), "{report:#}");
            match code {
                0 => assert!(report["states"].as_u64().unwrap() > 5, "{report:#}"),
                _ => assert!(run.out.contains(program.message), "{checker:?} of {script}: {}", run.out),
            }
        }
    }
}

/// The table names each checker, and what it runs.
#[test]
fn the_checkers_can_be_listed() {
    let place = Place::new();
    let list = place.run("crash explore --checker list").ok();
    for (name, word) in [
        ("sqlite", "PRAGMA integrity_check"),
        ("git", "fsck --full"),
        ("json", "parse"),
        ("toml", "parse"),
        ("tar", "members"),
        ("gzip", "gzip -t"),
        ("zip", "unzip -tqq"),
        ("ledger", "promise"),
    ] {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {list}");
        assert!(list.contains(word), "{word} in {list}");
    }
    assert_eq!(list.matches("(judged by kedge itself)").count(), 4, "{list}");
}

#[test]
fn checkers_that_do_not_exist_or_have_nothing_to_judge() {
    let place = Place::new();
    place.run("crash explore run.kcr --checker sqlit").refused(2, &["sqlit", "git", "ledger", "list"]);
    place
        .run("crash explore run.kcr --checker git --check-files")
        .refused(2, &["--checker", "--check-files"]);
    place.run("crash explore --checker json").refused(2, &["no recording is given"]);
    needs_fuse!();
    fs::create_dir(place.path("from")).unwrap();
    record(&place, "echo 1 > file; git init -q repo");
    place.run("crash explore run.kcr --checker json").refused(3, &["nothing to judge", "--files"]);
    place.run("crash explore run.kcr --checker git").refused(3, &["nothing to judge", "--from", "--ack"]);
    place.run("crash explore run.kcr --checker ledger").refused(2, &["ledger needs --files"]);
    place.run("crash explore run.kcr --checker ledger --files file").refused(3, &["no promise"]);
    place.run("crash explore run.kcr --checker json --query x").refused(2, &["json takes no --query"]);
    place.run("crash explore run.kcr --check true --files *.json").refused(2, &["need --checker"]);
    // `1` is JSON, and the file under its name is written in two steps.
    let run = place.run("crash explore run.kcr --checker json --files file --model ext4");
    assert!(run.code == 1 && run.out.contains("file: no JSON"), "{}{}", run.out, run.err);
}

/// A checker whose program is not installed gives no verdict.
#[test]
fn a_checker_without_its_program_gives_no_verdict() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("from")).unwrap();
    record(&place, "echo text | gzip -c > new; sync new; mv new a.gz; sync .");
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let mut kedge = place.command(env!("CARGO_BIN_EXE_kedge"));
    kedge.args(["crash", "explore", "run.kcr", "--checker", "gzip"]).env("PATH", &empty);
    let output = common::output_of(kedge).unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{out}");
    assert!(out.contains("no verdict: the checker cannot be run (exit code 127)"), "{out}");
}
