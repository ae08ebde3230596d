//! `kedge crash` under failures: killed in the middle, no space, recordings of other users,
//! checkers that do harm, files elsewhere. There must be no wrong verdict and no files left over.

use crate::common::{Place, is_running, needs_fuse, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

#[track_caller]
fn end_of(mut child: Child) -> (ExitStatus, String, String) {
    until("the end of kedge", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status, text(output.stdout), text(output.stderr))
}

/// Whether the signal has been sent but not yet delivered.
fn is_pending(child: &Child, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let sets =
        status.lines().filter_map(|line| line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:")));
    let all = sets.fold(0, |all, set| all | u64::from_str_radix(set.trim(), 16).unwrap());
    all & 1 << (signal.as_raw() - 1) != 0
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

/// Starts `kedge` in the background, with its temporary files in the test's directory.
fn start(place: &Place, words: &[&str]) -> Child {
    kedge(place, words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn kedge(place: &Place, words: &[&str]) -> Command {
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(words).env_remove("KEDGE_LOG").env("TMPDIR", place.path("tmp"));
    command
}

fn place() -> Place {
    let place = Place::new();
    for dir in ["tmp", "work"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    place
}

fn record(place: &Place, script: &str) -> (ExitStatus, String, String) {
    end_of(start(
        place,
        &["crash", "record", "--size", "64M", "--cd", "-o", "run.kcr", "--", "sh", "-ec", script],
    ))
}

fn left_in(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect()
}

const SCRIPT: &str = "echo a > f; sync f; echo b > g; sync g .; echo c > h";

/// A check that reports its pid and waits forever on each state except the complete one.
const SLOW: &str =
    "test -e h && exit 0; echo $$ > \"$OUT/pid.tmp\"; mv \"$OUT/pid.tmp\" \"$OUT/pid\"; exec sleep 1000";

fn explore_slowly(place: &Place) -> (Child, i32) {
    let words =
        ["crash", "explore", "run.kcr", "--jobs", "1", "--work", "work", "--timeout", "1h", "--check", SLOW];
    let child = kedge(place, &words)
        .env("OUT", place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("a checker", || place.path("pid").exists());
    let pid = fs::read_to_string(place.path("pid")).unwrap().trim().parse().unwrap();
    fs::remove_file(place.path("pid")).unwrap();
    (child, pid)
}

#[test]
fn an_interrupted_search_tells_what_it_has_and_leaves_nothing() {
    needs_fuse!();
    let place = place();
    assert!(record(&place, SCRIPT).0.success());
    for with in [Signal::INT, Signal::TERM] {
        let (child, checker) = explore_slowly(&place);
        assert_eq!(left_in(&place.path("work")).len(), 1);
        signal(&child, with);
        let (status, out, err) = end_of(child);
        assert_eq!(status.code(), Some(3), "{out}{err}");
        assert!(out.starts_with("no verdict: the search ended before any crash state was tried"), "{out}");
        assert!(out.contains("interrupted") && out.contains("NOT tried"), "{out}");
        assert_eq!(left_in(&place.path("work")), Vec::<PathBuf>::new());
        until("the end of the checker", || !is_running(checker));
    }
}

#[test]
fn what_a_killed_search_left_goes_with_the_next() {
    needs_fuse!();
    let place = place();
    assert!(record(&place, SCRIPT).0.success());
    let (child, checker) = explore_slowly(&place);
    signal(&child, Signal::KILL);
    assert!(!end_of(child).0.success());
    kill_process(Pid::from_raw(checker).unwrap(), Signal::KILL).unwrap();
    assert_eq!(left_in(&place.path("work")).len(), 1);
    // A later run keeps the files of a search that is still running.
    let (living, checker) = explore_slowly(&place);
    assert_eq!(left_in(&place.path("work")).len(), 1);
    place.run("crash explore run.kcr --check true --work work").ok();
    assert_eq!(left_in(&place.path("work")).len(), 1);
    assert!(is_running(checker));
    signal(&living, Signal::TERM);
    end_of(living);
    assert_eq!(left_in(&place.path("work")), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_recorder_leaves_a_recording_and_no_mount_for_long() {
    needs_fuse!();
    let place = place();
    let script = format!("{SCRIPT}; touch \"$TMPDIR/../ready\"; exec sleep 1000");
    let words = ["crash", "record", "--size", "64M", "--cd", "-o", "run.kcr", "--", "sh", "-ec", &script];
    let child = start(&place, &words);
    until("the command", || place.path("ready").exists());
    let tmp = left_in(&place.path("tmp"));
    assert_eq!(tmp.len(), 1, "{tmp:?}");
    let user = process_below(&tmp[0]);
    signal(&child, Signal::KILL);
    // The child holds the pipes of kedge's standard streams, so kill it too.
    kill_process(Pid::from_raw(user).unwrap(), Signal::KILL).unwrap();
    end_of(child);
    let is_mounted = || fs::read_to_string("/proc/mounts").unwrap().contains(tmp[0].to_str().unwrap());
    assert!(is_mounted());

    // The recording contains all completed calls, and the report says that it is incomplete.
    let run = place.run("crash explore run.kcr --check true --json");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("not whole: the end of the command is missing"), "{}", run.err);
    let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
    let written: Vec<&str> = trace.events.iter().map(|e| e.call.name()).filter(|n| *n == "write").collect();
    assert_eq!(written.len(), 3, "{:#?}", trace.events);

    assert!(record(&place, "echo x > f").0.success());
    assert!(!is_mounted());
    assert_eq!(left_in(&place.path("tmp")), Vec::<PathBuf>::new());
}

/// A process whose working directory is below `dir`.
fn process_below(dir: &Path) -> i32 {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    let is_below = |pid: &i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|to| to.starts_with(dir));
    pids.into_iter().find(is_below).unwrap()
}

#[test]
fn a_command_that_ignores_the_first_signal_is_killed_by_the_second() {
    needs_fuse!();
    let place = place();
    let script = "trap '' TERM; echo x > f; touch \"$TMPDIR/../ready\"; while :; do sleep 1; done";
    let child = start(
        &place,
        &["crash", "record", "--size", "64M", "--cd", "-o", "run.kcr", "--", "sh", "-ec", script],
    );
    until("the command", || place.path("ready").exists());
    signal(&child, Signal::TERM);
    // Wait, because two pending signals of one kind are delivered as one.
    until("the first signal is handled", || !is_pending(&child, Signal::TERM));
    signal(&child, Signal::TERM);
    let (status, out, err) = end_of(child);
    assert_eq!(status.code(), Some(137), "{out}{err}");
    assert_eq!(left_in(&place.path("tmp")), Vec::<PathBuf>::new());
    place.run("crash explore run.kcr --check true").ok();
}

#[test]
fn files_elsewhere_are_named() {
    needs_fuse!();
    let place = place();
    // The recorder checks open files from time to time, which is rare on a busy machine.
    let mut err = String::new();
    for seconds in [2, 20, 200] {
        let beside = format!("(exec 3> \"$TMPDIR/elsewhere.db\"; echo y >&3; sleep {seconds}; true)");
        let (status, _, said) = record(&place, &format!("echo x > f; {beside} > out"));
        assert!(status.success(), "{said}");
        err = said;
        if err.contains("elsewhere.db") {
            break;
        }
    }
    assert!(err.contains("outside the directory, and not recorded"), "{err}");
    assert!(err.contains("elsewhere.db (by ") && !err.contains("run.kcr (by"), "{err}");
    let (_, _, err) = record(&place, "echo x > f; exec 4< /etc/passwd; sleep 0.5");
    // The command may have inherited files from the runner of the tests.
    assert!(!err.contains("/etc/passwd"), "{err}");
}

#[test]
fn a_recording_of_another_version_is_not_guessed_at() {
    let place = place();
    let mut head = b"KEDGEKCR".to_vec();
    head.extend(2u32.to_le_bytes());
    // The CRC-32C of the twelve bytes before.
    head.extend(0x9b07d35cu32.to_le_bytes());
    fs::write(place.path("run.kcr"), &head).unwrap();
    let words = ["version 2", "knows version 1 only"];
    place.run("crash explore run.kcr --check true").refused(3, &words);
    place.run("crash replay run.kcr --state 1").refused(3, &words);
}

/// Mounts a tmpfs of that size on `small`; returns `false` if this user may not mount it.
fn mount_small(place: &Place, size: &str) -> bool {
    fs::create_dir(place.path("small")).unwrap();
    let options = format!("size={size}");
    let status = place.command("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs", "small"]).status();
    let is_done = status.is_ok_and(|s| s.success());
    if !is_done {
        kedge_base::skip::note("a full disk: tmpfs cannot be mounted");
    }
    is_done
}

#[test]
fn a_full_disk_is_no_verdict_on_the_program() {
    needs_fuse!();
    let place = place();
    if !mount_small(&place, "1M") {
        return;
    }
    let script = "head -c 700000 /dev/urandom > f; sync f .; cp f g; sync g .";
    assert!(record(&place, script).0.success());
    // No space for the state, for the checker, or for the report.
    let no_state = place.run("crash explore run.kcr --work small --check true");
    let filling = "cat f f f > more";
    let no_checker =
        place.kedge(["crash", "explore", "run.kcr", "--work", "small", "--budget", "3", "--check", filling]);
    let few = "head -c 700000 /dev/urandom > f; sync f .; echo > g";
    let recorded = end_of(start(
        &place,
        &[
            "crash",
            "record",
            "--size",
            "64M",
            "--cd",
            "-o",
            "small/run.kcr",
            "--",
            "sh",
            "-c",
            &format!("{few}; {few}"),
        ],
    ));
    fs::write(place.path("small/rest"), vec![1; 1 << 20]).unwrap_err();
    let no_report = place.run("crash explore run.kcr --check true --budget 3 --html small/page.html");
    let unmounted = place.command("umount").arg("small").status().unwrap();
    assert!(unmounted.success());
    assert_eq!(no_state.code, 3, "{}{}", no_state.out, no_state.err);
    assert!(
        no_state.out.contains("no verdict") && no_state.out.contains("No space left"),
        "{}",
        no_state.out
    );
    assert_eq!(no_checker.code, 3, "{}{}", no_checker.out, no_checker.err);
    assert!(no_checker.out.contains("no verdict"), "{}", no_checker.out);
    assert_eq!(recorded.0.code(), Some(1), "{}", recorded.2);
    assert!(recorded.2.contains("small/run.kcr") && recorded.2.contains("No space left"), "{}", recorded.2);
    no_report.refused(3, &["small/page.html", "No space left"]);
}

#[test]
fn checkers_that_do_harm() {
    needs_fuse!();
    let place = place();
    assert!(record(&place, "echo a > f; sync f .").0.success());
    let explore = |more: &[&str], check: &str| {
        let words = ["crash", "explore", "run.kcr", "--budget", "2", "--check", check];
        place.kedge(words.iter().chain(more))
    };
    // If memory runs out, the kernel kills the checker and not the search.
    explore(&[], "test $(cat /proc/self/oom_score_adj) = 1000").ok();
    let run = explore(&[], "test -e f || yes");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("printed more than 64 MiB"), "{}", run.out);
    let eats = "test -e f || { x=$(head -c 300000000 /dev/zero | tr '\\0' x); test -n \"$x\"; }";
    explore(&[], eats).ok();
    assert_eq!(explore(&["--memory", "100M"], eats).code, 1);
}

#[test]
fn limits_under_which_nothing_could_be_tried_are_refused() {
    let place = place();
    for words in ["--budget 0", "--budget 0s", "--max-failures 0", "--jobs 0"] {
        place
            .run(&format!("crash explore run.kcr --check true {words}"))
            .refused(2, &[words.split(' ').next().unwrap()]);
    }
    needs_fuse!();
    assert!(record(&place, SCRIPT).0.success());
    let run = place.run("crash explore run.kcr --check true --budget 0.001ms --json");
    assert_eq!(run.code, 3, "{}{}", run.out, run.err);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&report["states"], &report["passed"]), (&0.into(), &false.into()), "{report:#}");
}
