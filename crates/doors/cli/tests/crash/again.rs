//! `kedge crash explore --again`: recoveries that do not survive a second crash are found, and
//! those that do are not accused.

use crate::common::{Place, Run, needs_fuse, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// The check of a transfer of 10 from `a` to `b`, which has a redo record when power fails. `APPLY`
/// stands for how the recovery applies the record.
const RECOVER: &str = r#"#!/bin/sh -e
put() { echo "$2" > "$1.tmp"; sync "$1.tmp"; mv "$1.tmp" "$1"; sync .; }
if test -e log; then
  n=$(cat log)
  APPLY
  rm log
  sync .
fi
test $(($(cat a) + $(cat b))) = 200
"#;
/// Applies absolute values, so the recovery can be repeated.
const VALUES: &str = "put a $((100 - n)); put b $((100 + n))";
/// Applies differences: a recovery that crashes in the middle applies them twice.
const DIFFERENCES: &str = "put a $(($(cat a) - n)); put b $(($(cat b) + n))";
/// Does not sync the values, so they may be lost although the log is removed.
const NOT_SYNCED: &str = "echo $((100 - n)) > a.tmp; mv a.tmp a; echo $((100 + n)) > b.tmp; mv b.tmp b";

/// A recording of the transfer.
fn place() -> Place {
    let place = Place::new();
    for dir in ["from", "tmp"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    for file in ["from/a", "from/b"] {
        fs::write(place.path(file), "100\n").unwrap();
    }
    let script = "echo 10 > log.tmp; sync log.tmp; mv log.tmp log; sync .; echo saved";
    record(&place, script);
    place
}

fn record(place: &Place, script: &str) {
    let words = ["crash", "record", "--size", "64M", "--cd", "--from", "from", "--ack", "^saved", "--"];
    place.kedge(words.into_iter().chain(["sh", "-ec", script])).ok();
}

fn write_check(place: &Place, text: &str) {
    let path = place.path("check.sh");
    // Write another file first and let cp(1) copy it: a child of another test may have inherited
    // the open file, and a file that is open for writing cannot be run.
    fs::write(place.path("check.new"), text).unwrap();
    let mut copy = place.command("cp");
    copy.args(["check.new", "check.sh"]);
    crate::common::tool(copy, "coreutils");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Explores with `check.sh`. Temporary files are made in the test's directory, and none may be
/// left.
fn explore(place: &Place, model: &str, depth: &str) -> (Run, serde_json::Value) {
    let words =
        ["crash", "explore", "run.kcr", "--json=report.json", "--check", "./check.sh", "--model", model];
    let mut kedge = place.command(env!("CARGO_BIN_EXE_kedge"));
    kedge.args(words).args(["--again", depth]).env("TMPDIR", place.path("tmp"));
    let output = crate::common::output_of(kedge).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (code, out, err) = (output.status.code().unwrap(), text(output.stdout), text(output.stderr));
    assert_eq!(fs::read_dir(place.path("tmp")).unwrap().count(), 0, "{out}{err}");
    let report = fs::read(place.path("report.json")).unwrap();
    (Run { code, out, err }, serde_json::from_slice(&report).unwrap())
}

#[test]
fn a_recovery_that_cannot_be_repeated_is_found_in_one_command() {
    needs_fuse!();
    let place = place();
    write_check(&place, &RECOVER.replace("APPLY", DIFFERENCES));
    // Without crashes of the recovery nothing is found.
    place.run("crash explore run.kcr --check ./check.sh").ok();
    for model in ["posix", "ext4"] {
        let (run, report) = explore(&place, model, "1");
        assert_eq!(run.code, 1, "{}{}", run.out, run.err);
        assert_eq!(report["failing"], 0, "{report:#}");
        assert!(report["again"]["failing"].as_u64().unwrap() > 0 && report["passed"] == false, "{report:#}");
        assert!(run.out.contains("In the recovery from the crash state "), "{}", run.out);

        // Replay the state that the report names. The replay prints the calls of the recovery.
        let state = report["again"]["causes"][0]["state"].as_str().unwrap();
        assert!(state.contains('/'), "{state}");
        let words =
            ["crash", "replay", "run.kcr", "--model", model, "--state", state, "--check", "./check.sh"];
        let keep = format!("kept-{model}");
        let again = place.kedge(words.into_iter().chain(["--keep", &keep]));
        assert_eq!(again.code, 1, "{}{}", again.out, again.err);
        assert!(again.out.contains("rename(\"a.tmp\", \"a\")"), "{}", again.out);
        let text = |name: &str| fs::read_to_string(place.path(&keep).join(name)).unwrap();
        assert!(text("log") == "10\n" && text("a") == "90\n" && text("b") == "100\n", "a half-made transfer");
    }
}

#[test]
fn a_recovery_that_can_be_repeated_is_not_accused() {
    needs_fuse!();
    let place = place();
    write_check(&place, &RECOVER.replace("APPLY", VALUES));
    let states = |depth: &str| {
        let (run, report) = explore(&place, "posix", depth);
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        let again = &report["again"];
        assert!(again["failing"] == 0 && again["complete"] == true, "{report:#}");
        assert!(again["recoveries"].as_u64() > again["idle"].as_u64(), "{report:#}");
        again["states"].as_u64().unwrap()
    };
    let (one, two) = (states("1"), states("2"));
    assert!(one > 5 && two > 2 * one, "{one} and {two} states");
}

#[test]
fn a_call_that_is_missing_in_a_recovery_is_named() {
    needs_fuse!();
    let place = place();
    write_check(&place, &RECOVER.replace("APPLY", NOT_SYNCED));
    let (run, report) = explore(&place, "ext4", "1");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let causes = report["again"]["causes"].as_array().unwrap();
    let fixes = causes.iter().flat_map(|cause| cause["explanation"]["fixes"].as_array().unwrap());
    let calls: Vec<&str> = fixes.map(|fix| fix["call"].as_str().unwrap()).collect();
    assert!(calls.contains(&"fsync(\"a.tmp\")") || calls.contains(&"fsync(\"b.tmp\")"), "{report:#}");
}

/// Promises made before the first crash hold in the crash states of the recovery as well.
#[test]
fn a_recovery_that_gives_up_a_promise_is_found() {
    needs_fuse!();
    let place = Place::new();
    for dir in ["from", "tmp"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    record(&place, "echo new > t; sync t; mv t doc; sync .; echo saved");
    let check = "#!/bin/sh -e\ntest -z \"$KEDGE_ACKED\" || grep -qx new doc\n\
                 if test -e doc; then cp doc t; SYNC mv t doc; sync .; fi\n";
    for (sync, code) in [("sync t;", 0), ("", 1)] {
        write_check(&place, &check.replace("SYNC", sync));
        let (run, report) = explore(&place, "ext4", "1");
        assert_eq!((run.code, &report["failing"]), (code, &0.into()), "{sync}: {}{}", run.out, run.err);
    }
}

#[test]
fn a_check_that_works_only_once_is_told_apart() {
    needs_fuse!();
    let place = place();
    write_check(&place, "#!/bin/sh -e\ntest ! -e mine\ntouch mine\nsync mine .\n");
    let (run, _) = explore(&place, "posix", "1");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("without a crash in between"), "{}", run.out);
}

#[test]
fn a_database_that_rolls_back_survives_a_second_crash() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("from")).unwrap();
    let insert =
        "sqlite3 a.db 'pragma synchronous=extra; insert into t values(randomblob(9000))'; echo saved";
    record(&place, &format!("sqlite3 a.db 'create table t(n)'; sync a.db .; {insert}"));
    let words = ["crash", "explore", "run.kcr", "--json", "--model", "ext4", "--budget", "200"];
    let more = ["--checker", "sqlite", "--again", "1", "--again-recoveries", "4"];
    let run = place.kedge(words.into_iter().chain(more));
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(run.code, 0, "{report:#}");
    let again = &report["again"];
    assert!(again["recoveries"].as_u64() > again["idle"].as_u64(), "a journal is rolled back: {again:#}");
}

/// A signal ends the check that is being recorded, and its mount.
#[test]
fn an_interrupted_recording_leaves_nothing() {
    needs_fuse!();
    let place = place();
    let check =
        "#!/bin/sh\ncase $KEDGE_DIR in */kedge-record-*) touch \"$OUT/ready\"; exec sleep 1000 ;; esac\n";
    write_check(&place, check);
    let mut kedge = place.command(env!("CARGO_BIN_EXE_kedge"));
    kedge.args(["crash", "explore", "run.kcr", "--timeout", "1h", "--check", "./check.sh", "--again", "1"]);
    kedge.env("TMPDIR", place.path("tmp")).env("OUT", place.path("")).stdout(Stdio::piped());
    let mut child = kedge.spawn().unwrap();
    until("the check is recorded", || place.path("ready").exists());
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    until("the end of kedge", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{out}");
    assert!(out.contains("a limit or a signal ended that early"), "{out}");
    assert_eq!(fs::read_dir(place.path("tmp")).unwrap().count(), 0, "{out}");
}

#[test]
fn checks_that_recover_nothing_are_refused() {
    needs_fuse!();
    let place = place();
    place
        .run("crash explore run.kcr --check-files --again 1")
        .refused(2, &["--check-files", "recovers nothing"]);
    place
        .run("crash explore run.kcr --checker json --files a --again 1")
        .refused(2, &["--checker json", "recovers nothing"]);
    place.run("crash explore run.kcr --check true --again 9").refused(2, &["9"]);
    place.run("crash replay run.kcr --state 4/5").refused(2, &["--check CMD"]);
    place.run("crash replay run.kcr --state 4/x --check true").refused(2, &["4/x"]);
}

/// A budget of one state ends the search before any crash state. The recoveries start from crash
/// states, and the check fails on some of these.
#[test]
fn a_crash_state_that_the_search_did_not_reach_is_a_failure() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("from")).unwrap();
    record(&place, "echo one > doc.tmp; mv doc.tmp doc; echo saved one");
    let words = ["crash", "explore", "run.kcr", "--model", "ext4", "--budget", "1", "--html", "page.html"];
    let check = ["--check", "test -z \"$KEDGE_ACKED\" || test \"$(cat doc)\" = one"];
    let run = place.kedge(words.into_iter().chain(check).chain(["--again", "1"]));
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.starts_with("the check fails on "), "{}", run.out);
    assert!(run.out.contains(", which the search did not reach."), "{}", run.out);
    assert!(fs::read_to_string(place.path("page.html")).unwrap().contains("<h2>Failing state</h2>"));
    let run = place.kedge(words.into_iter().chain(check));
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
}

/// JUnit and HTML reports have the failure of the recovery too.
#[test]
fn every_report_has_the_failure_of_a_recovery() {
    needs_fuse!();
    let place = place();
    write_check(&place, &RECOVER.replace("APPLY", DIFFERENCES));
    let run = place.run(
        "crash explore run.kcr --check ./check.sh --again 1 --junit junit.xml --html page.html --budget 1m",
    );
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    for file in ["junit.xml", "page.html"] {
        let text = fs::read_to_string(place.path(file)).unwrap();
        assert!(text.contains("In the recovery from the crash state "), "{file}: {text}");
    }
    assert!(fs::read_to_string(place.path("junit.xml")).unwrap().contains("failures=\"1\""));
}
