//! `kedge crash bisect` and `watch`: crash tests of the commits of a git repository.

use crate::common::{Place, needs_fuse, tool, until};
use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

const GOOD: &str =
    "cd \"$KEDGE_DIR\"; echo new > doc.tmp; sync doc.tmp; mv doc.tmp doc; sync .; echo saved\n";
const BAD: &str = "cd \"$KEDGE_DIR\"; echo new > doc.tmp; sync doc.tmp; mv doc.tmp doc; echo saved\n";
const CHECK: &str = "test -z \"$KEDGE_ACKED\" || grep -qx new doc";

fn git(place: &Place, words: &[&str]) -> String {
    let mut command = place.command("git");
    command.args(["-C", "repository", "-c", "user.name=t", "-c", "user.email=t@example.org"]).args(words);
    tool(command, "git")
}

fn commit(place: &Place, name: &str, program: &str, builds: bool) {
    fs::write(place.path("repository/save.sh"), program).unwrap();
    fs::write(place.path("repository/build.sh"), if builds { "exit 0" } else { "echo broken >&2; exit 1" })
        .unwrap();
    git(place, &["add", "-A"]);
    git(place, &["commit", "-q", "--allow-empty", "-m", name]);
    git(place, &["tag", name]);
}

/// A repository whose commit "four" forgets a sync; commit "three" does not build if `has_gap`.
fn repository(has_gap: bool) -> Place {
    let place = Place::new();
    fs::create_dir(place.path("repository")).unwrap();
    git(&place, &["init", "-q"]);
    for (name, program) in [("one", GOOD), ("two", GOOD), ("three", GOOD), ("four", BAD), ("five", BAD)] {
        commit(&place, name, program, !(has_gap && name == "three"));
    }
    place
}

fn words<'a>(command: &[&'a str]) -> Vec<&'a str> {
    let test = ["--build", "sh ./build.sh", "--ack", "^saved", "--check", CHECK, "--model", "ext4"];
    [&["crash"], command, &test, &["--budget", "2000", "--", "sh", "./save.sh"]].concat()
}

fn in_repository(place: &Place, command: &[&str]) -> (i32, String, String) {
    run_in_repository(place, &words(command))
}

fn run_in_repository(place: &Place, words: &[&str]) -> (i32, String, String) {
    let mut run = place.command(env!("CARGO_BIN_EXE_kedge"));
    run.current_dir(place.path("repository")).args(words);
    let out = run.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn the_first_commit_that_forgets_a_sync_is_found() {
    needs_fuse!();
    let place = repository(false);
    let before = git(&place, &["status", "--porcelain=v2", "--branch"]);
    let (code, out, err) = in_repository(&place, &["bisect", "one", "five"]);
    assert_eq!(code, 0, "{out}{err}");
    let last = out.lines().last().unwrap();
    assert!(last.starts_with("first bad commit: ") && last.ends_with(" four"), "{out}");
    assert!(out.contains(" three: good") && out.contains(" four: bad: "), "{out}");
    assert!(out.contains("rename(\"doc.tmp\", \"doc\")"), "{out}");
    assert_eq!(git(&place, &["status", "--porcelain=v2", "--branch"]), before);
    assert_eq!(git(&place, &["worktree", "list"]).lines().count(), 1, "the worktree is gone");
}

#[test]
fn a_commit_that_cannot_be_tested_is_left_open() {
    needs_fuse!();
    let place = repository(true);
    let (code, out, err) = in_repository(&place, &["bisect", "two", "five"]);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains(" three: no verdict: it does not build: broken"), "{out}");
    let (_, left) = out.split_once("one of these").unwrap();
    assert!(left.contains("three") && left.contains("four") && !left.contains("five"), "{out}");
}

/// A budget that ends before any crash state makes no commit a good one.
#[test]
fn a_commit_of_which_no_crash_state_was_tried_has_no_verdict() {
    needs_fuse!();
    let place = repository(false);
    let mut words = words(&["watch", "--commits", "1"]);
    let budget = words.iter().position(|word| *word == "2000").unwrap();
    words[budget] = "1";
    let (code, out, err) = run_in_repository(&place, &words);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.contains(" five: no verdict: the search ended before any crash state"), "{out}{err}");
}

/// A build and a program leave servers running, which keep their output open. Nothing waits for
/// them.
/// The servers end when this test removes their file.
#[test]
fn servers_that_are_left_behind_are_not_waited_for() {
    needs_fuse!();
    let place = repository(false);
    let runs = place.path("servers-run");
    File::create(&runs).unwrap();
    let server = format!("(while test -e '{}'; do sleep 0.1; done) &\n", runs.display());
    for (name, program) in [("six", GOOD), ("seven", BAD)] {
        fs::write(place.path("repository/build.sh"), &server).unwrap();
        fs::write(place.path("repository/save.sh"), format!("{server}{program}")).unwrap();
        git(&place, &["commit", "-q", "-a", "-m", name]);
        git(&place, &["tag", name]);
    }
    let out = place.path("bisected");
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.current_dir(place.path("repository")).args(words(&["bisect", "six", "seven"]));
    let mut child = command.stdout(Stdio::from(File::create(&out).unwrap())).spawn().unwrap();
    let ended = (0..1200).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        child.try_wait().unwrap().is_some()
    });
    fs::remove_file(&runs).unwrap();
    let code = child.wait().unwrap().code();
    let shown = fs::read_to_string(&out).unwrap();
    assert!(ended, "the servers are waited for: {shown}");
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.lines().last().unwrap().ends_with(" seven"), "{shown}");
}

#[test]
fn a_wrong_premise_is_refused() {
    needs_fuse!();
    let place = repository(false);
    for (good, bad, word) in [
        ("one", "two", "two: its crash test does not fail"),
        ("four", "five", "four: its crash test does not pass"),
    ] {
        let (code, out, err) = in_repository(&place, &["bisect", good, bad]);
        assert_eq!((code, err.lines().count()), (3, 1), "{out}{err}");
        assert!(err.starts_with("kedge: ") && err.contains(word), "{err}");
    }
    let (code, _, err) = in_repository(&place, &["bisect", "one", "nowhere"]);
    assert_eq!(code, 3);
    assert!(err.contains("nowhere"), "{err}");
    let outside = place.kedge(words(&["bisect", "one", "five"]));
    assert_eq!(outside.code, 3);
    assert!(outside.err.contains("not a git repository"), "{}", outside.err);
    assert_eq!(git(&place, &["worktree", "list"]).lines().count(), 1, "no worktree is left");
}

#[test]
fn each_new_commit_is_tested() {
    needs_fuse!();
    let place = repository(false);
    let out = place.path("watched");
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.current_dir(place.path("repository")).args(words(&["watch", "--commits", "2"]));
    let mut child = command.stdout(Stdio::from(File::create(&out).unwrap())).spawn().unwrap();
    until("the present commit is tested", || fs::read_to_string(&out).unwrap().contains(" five: "));
    let shown = fs::read_to_string(&out).unwrap();
    if !shown.contains(" five: bad: ") {
        // It would wait for the next commit.
        child.kill().unwrap();
        panic!("{shown}");
    }
    commit(&place, "six", GOOD, true);
    assert_eq!(child.wait().unwrap().code(), Some(0), "that of the last commit");
    let shown = fs::read_to_string(&out).unwrap();
    assert!(shown.lines().last().unwrap().ends_with(" six: good"), "{shown}");
}
