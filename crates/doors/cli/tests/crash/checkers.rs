//! `kedge crash explore --checker`: each checker that comes with kedge finds a planted bug in a
//! recorded program, and accuses no correct one.

use crate::common::{Place, Run, needs_fuse, tool};
use std::fs;

/// A program to record. In its script `SYNC` and `SYNC_DIR` stand for the persistence calls.
struct Program {
    checker: &'static [&'static str],
    /// Makes the initial contents of the directory.
    from: fn(&Place),
    script: &'static str,
    /// What the correct and the wrong program have in place of `SYNC` and `SYNC_DIR`.
    right: [(&'static str, &'static str); 2],
    wrong: [(&'static str, &'static str); 2],
    model: &'static str,
    /// A word of the checker's message.
    message: &'static str,
}

const SYNCS: [(&str, &str); 2] = [("SYNC_DIR", "sync ."), ("SYNC", "sync")];
/// The replacements of a program that does not sync the bytes of the file.
const NO_BYTES: [(&str, &str); 2] = [("SYNC_DIR", "sync ."), ("SYNC", ": sync")];
/// The replacements of a program that promises the file before its name is durable.
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

/// The directories of a maildir.
fn maildir(place: &Place) {
    for dir in ["tmp", "new", "cur"] {
        fs::create_dir_all(place.path("from/mail").join(dir)).unwrap();
    }
}

/// A mailbox with one message, and a file with another message.
fn mailbox(place: &Place) {
    let message =
        |n: u32| format!("From a Thu Jan  1 00:00:00 1970\nSubject: {n}\n\n{}\n\n", "x".repeat(5000));
    fs::write(place.path("from/mbox"), message(1)).unwrap();
    fs::write(place.path("from/message"), message(2)).unwrap();
}

/// A store of LMDB with rows, under a name that the checker does not judge.
fn lmdb(place: &Place) {
    let rows = (0..200).map(|n| format!(" key{n:03}\n {}\n", "v".repeat(100))).collect::<String>();
    let dump = format!("VERSION=3\nformat=print\ntype=btree\nHEADER=END\n{rows}DATA=END\n");
    fs::write(place.path("dump"), dump).unwrap();
    let mut load = place.command("mdb_load");
    load.args(["-n", "-f", "dump", "store"]);
    tool(load, "lmdb-utils");
}

/// A store of RocksDB with rows in a table.
fn rocksdb(place: &Place) {
    for words in [&["--create_if_missing", "put", "a", "b"][..], &["put", "c", "d"], &["compact"]] {
        let mut ldb = place.command("ldb");
        ldb.arg("--db=store").args(words);
        tool(ldb, "rocksdb-tools");
    }
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
        checker: &["yaml"],
        from: nothing,
        script: "echo 'a: [1, 2]' > new; SYNC new; mv new a.yml; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "a.yml: no YAML: ",
    },
    Program {
        checker: &["maildir"],
        from: maildir,
        script: "cd mail; for n in 1 2; do (echo Subject: $n; head -c 5000 /dev/zero | tr '\\0' x) > tmp/$n; \
                 SYNC tmp/$n; mv tmp/$n new/$n; sync new; echo saved $n; done; SYNC_DIR",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "mail/new/1: it ",
    },
    Program {
        checker: &["mbox"],
        from: mailbox,
        script: "cat mbox message > new; SYNC new; mv new mbox; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_NAME,
        model: "posix",
        message: "mbox: the message is missing, though it was promised",
    },
    Program {
        checker: &["lmdb"],
        from: lmdb,
        script: "cp \"$STORE\" new; SYNC new; mv new a.mdb; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "./a.mdb:",
    },
    Program {
        checker: &["rocksdb"],
        from: rocksdb,
        script: "cp -r \"$STORE\" new; SYNC new/* new; mv new db; SYNC_DIR; echo saved",
        right: SYNCS,
        wrong: NO_BYTES,
        model: "ext4",
        message: "./db: ",
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
    let mut kedge = place.command(env!("CARGO_BIN_EXE_kedge"));
    kedge.args(words).args(["sh", "-ec", script]).env("STORE", place.path("store"));
    kedge.env("SOCKET", place.path("socket"));
    tool(kedge, "fuse3");
}

/// Explores. Returns the run, which has the printed report, and the JSON report.
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
        ("yaml", "parse"),
        ("postgres", "pg_dumpall"),
        ("lmdb", "mdb_dump"),
        ("rocksdb", "ldb"),
        ("maildir", "messages"),
        ("mbox", "messages"),
        ("tar", "members"),
        ("gzip", "gzip -t"),
        ("zip", "unzip -tqq"),
        ("ledger", "promise"),
    ] {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {list}");
        assert!(list.contains(word), "{word} in {list}");
    }
    assert_eq!(list.matches("(judged by kedge itself)").count(), 7, "{list}");
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
    // The file has the contents `1`, which is JSON, but is written in two steps under its final
    // name.
    let run = place.run("crash explore run.kcr --checker json --files file --model ext4");
    assert!(run.code == 1 && run.out.contains("file: no JSON"), "{}{}", run.out, run.err);
}

/// With `fsync` on, a cluster of PostgreSQL loses no promised row; with `fsync` off it does. Each
/// check starts a server, so few states are tried. Only root can start a server as another user.
#[test]
fn postgres_is_judged_by_starting_a_server() {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: skipped");
        return;
    }
    let place = Place::new();
    let mut prepare = place.command("sh");
    prepare.args(["-ec", POSTGRES_MAKE]);
    tool(prepare, "postgresql");
    for (fsync, code) in [("on", 0), ("off", 1)] {
        record(&place, &POSTGRES_RUN.replace("FSYNC", fsync));
        let words =
            ["crash", "explore", "run.kcr", "--model", "ext4", "--budget", "12", "--max-failures", "1"];
        let checker = ["--explain", "0", "--checker", "postgres", "--query", "select 'saved ' || n from t"];
        let run = place.kedge(words.into_iter().chain(checker));
        assert_eq!(run.code, code, "fsync = {fsync}: {}{}", run.out, run.err);
        if code == 1 {
            // The loss of the table itself is also a failure.
            let messages = ["./data: ", "not a row: saved ", "relation \"t\" does not exist"];
            assert!(messages.iter().any(|message| run.out.contains(message)), "{}", run.out);
        }
    }
}

const POSTGRES_MAKE: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | tail -n 1)
test -n "$bin" || { echo "initdb is not installed; on Debian, as root, run: apt-get install -y postgresql"; exit 1; }
chmod 755 .; mkdir -p from/data socket; chown postgres from/data socket
su postgres -s /bin/sh -c "'$bin/initdb' -D '$PWD/from/data' --auth=trust --no-sync --no-locale"
printf "listen_addresses = ''\nshared_buffers = 1MB\nwal_init_zero = off\nautovacuum = off\n" >> from/data/postgresql.conf"#;

const POSTGRES_RUN: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); dir=$(pwd)
as() { su postgres -s /bin/sh -c "cd /; $1"; }
sql() { as "'$bin/psql' -qAt -h '$SOCKET' -d postgres -c \"$1\""; }
as "'$bin/pg_ctl' -s -w -D '$dir/data' -l '$SOCKET/log' -o \"-k '$SOCKET' -c fsync=FSYNC\" start"
sql 'create table t(n int)'
for n in 1 2; do sql "insert into t values($n)"; echo saved $n; done
as "'$bin/pg_ctl' -s -w -D '$dir/data' -m immediate stop""#;

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
    let output = crate::common::output_of(kedge).unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{out}");
    assert!(out.contains("no verdict: the checker cannot be run (exit code 127)"), "{out}");
}
