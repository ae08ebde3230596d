//! `kedge crash cluster`: a replicated log on three nodes loses power. Bugs that need all nodes, or
//! one that differs, are found; a log that syncs at a majority before it acknowledges is not
//! accused.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, Run, needs_fuse, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The program of each node. The leader `a` sends each entry to its followers. It acknowledges the
/// entry to the user once a follower has acknowledged it, since two of three nodes are a majority.
/// `SYNC` stands for what a node does before it acknowledges.
const NODE: &str = r#"
import os, select, socket, time

NAME, DIR = os.environ["KEDGE_NODE"], os.environ["KEDGE_DIR"]
log = os.open(DIR + "/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.fsync(os.open(DIR, os.O_RDONLY))

def listen():
    server = socket.socket(socket.AF_UNIX)
    server.bind(NAME + ".new")
    server.listen()
    os.rename(NAME + ".new", NAME + ".sock")
    return server.accept()[0]

def connect(node):
    while not os.path.exists(node + ".sock"):
        time.sleep(0.005)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(node + ".sock")
    return peer

def append(line):
    if NAME == "c":
        time.sleep(0.05)  # a slow machine
    os.write(log, line.encode())
    SYNC

def wait_for_one(peers, line):
    while True:
        for peer in select.select(peers, [], [])[0]:
            if line in peer.recv(100).decode():
                return

peers = [connect(node) for node in "bc"] if NAME == "a" else []
user = listen()
for line in user.makefile("r"):
    for peer in peers:
        peer.sendall(line.encode())
    append(line)
    if peers:
        wait_for_one(peers, line)
    user.sendall(line.encode())
"#;
/// The user. It ends when the slow node has everything.
const CLIENT: &str = r#"
import os, socket, time
while not os.path.exists("a.sock"):
    time.sleep(0.005)
peer = socket.socket(socket.AF_UNIX)
peer.connect("a.sock")
peer = peer.makefile("rw")
for n in range(1, 4):
    peer.write("entry%d\n" % n)
    peer.flush()
    print("committed", peer.readline().strip(), flush=True)
while os.path.getsize(os.environ["KEDGE_DIR"] + "/c/log") < 3 * len("entry1\n"):
    time.sleep(0.005)
"#;
/// The cluster starts again: a leader is elected, and must have every entry that was committed.
const CHECK: &str = r#"#!/bin/sh
# The entries of a node's log, up to the first that is not whole.
entries() {
  while read -r entry; do
    case "$entry" in entry[0-9]) printf "$entry " ;; *) break ;; esac
  done < "$1/log"
}
for node in a b c; do
  log=$(test -e $node/log && entries $node)
  if ELECT; then leader=$log; fi
done
echo "$KEDGE_ACKED" | while read -r _ entry; do
  case "$leader" in
  *"$entry"*) ;;
  *) echo "$entry was committed, and the leader has: $leader"; exit 1 ;;
  esac
done
"#;
const SYNC: &str = "os.fsync(log)";
const NO_SYNC: &str = "pass";
/// The node with the longest log becomes the leader.
const LONGEST: &str = "test ${#log} -gt ${#leader}";
/// A node becomes the leader although its log may lack entries.
const ANY: &str = "test $node = c";

const CLUSTER: &str = r#"
command = "python3 client.py"

[[node]]
name = "a"
command = "exec python3 node.py"

[[node]]
name = "b"
command = "exec python3 node.py"

[[node]]
name = "c"
command = "exec python3 node.py"
"#;

/// A recording of three entries.
fn recorded(sync: &str) -> Place {
    let place = Place::new();
    fs::write(place.path("node.py"), NODE.replace("SYNC", sync)).unwrap();
    fs::write(place.path("client.py"), CLIENT).unwrap();
    fs::write(place.path("cluster.toml"), CLUSTER).unwrap();
    let run = place.run("crash cluster record cluster.toml --size 64M --ack ^committed --timeout 60s");
    assert!(run.err.contains("3 marks recorded in run.cluster"), "{}", run.err);
    assert_eq!(run.ok(), "committed entry1\ncommitted entry2\ncommitted entry3\n");
    place
}

fn explore(place: &Place, elect: &str) -> (Run, serde_json::Value) {
    // Written under another name by another process: a child of another test may have inherited an
    // open file, and what is open for writing cannot be run.
    fs::write(place.path("check.new"), CHECK.replace("ELECT", elect)).unwrap();
    let mut copy = place.command("cp");
    copy.args(["check.new", "check.sh"]);
    common::tool(copy, "coreutils");
    fs::set_permissions(place.path("check.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let run = place.run("crash cluster explore --model ext4 --jobs 2 --json=report.json --check ./check.sh");
    let report = fs::read(place.path("report.json")).unwrap();
    (run, serde_json::from_slice(&report).unwrap())
}

fn lossy(report: &serde_json::Value) -> Vec<&str> {
    let losses = report["causes"][0]["losses"].as_array().unwrap();
    losses.iter().map(|loss| loss["node"].as_str().unwrap()).collect()
}

#[test]
fn a_log_that_acknowledges_before_it_syncs_is_found() {
    needs_fuse!();
    let place = recorded(NO_SYNC);
    let (run, report) = explore(&place, LONGEST);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert_eq!(report["causes"].as_array().unwrap().len(), 1, "{report:#}");
    // The entry is lost only if the leader and the follower that acknowledged it lose it. The third
    // node, too, if it had the entry by then.
    let nodes = lossy(&report);
    assert!(nodes.starts_with(&["a", "b"]), "{report:#}");
    for loss in report["causes"][0]["losses"].as_array().unwrap() {
        assert_eq!(loss["fixes"][0]["call"], "fsync(\"log\")", "{report:#}");
    }
    assert_eq!(report["causes"][0]["mended"][1], 0, "{report:#}");
    assert!(run.out.contains("must lose something") || run.out.contains("every node loses"), "{}", run.out);

    // The report's state is made again.
    let state = report["causes"][0]["state"].as_str().unwrap();
    let words = ["crash", "cluster", "replay", "--model", "ext4", "--check", "./check.sh", "--keep", "kept"];
    let again = place.kedge(words.into_iter().chain(["--state", state]));
    assert_eq!(again.code, 1, "{}{}", again.out, again.err);
    assert!(again.out.contains("the leader has: entry1 entry2"), "{}", again.out);
    let log = |node: &str| fs::read_to_string(place.path("kept").join(node).join("log")).unwrap();
    assert!(!log("a").contains("entry3") && !log("b").contains("entry3"));
}

#[test]
fn a_log_that_syncs_at_a_majority_is_not_accused_and_a_leader_that_lacks_entries_is_found() {
    needs_fuse!();
    let place = recorded(SYNC);
    for model in ["ext4", "posix"] {
        let line = format!("crash cluster explore --model {model} --jobs 2 --check true");
        place.run(&line).ok();
    }
    let (run, report) = explore(&place, LONGEST);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert!(report["complete"] == true && report["states"].as_u64().unwrap() > 20, "{report:#}");

    // Only one node differs: the slow one lacks an entry.
    let (run, report) = explore(&place, ANY);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let nodes = lossy(&report);
    assert!(nodes.is_empty() || nodes == ["c"], "{report:#}");
    assert!(run.out.contains("committed, and the leader has"), "{}", run.out);
}

/// The writer of `b` starts when `a` says so. Without one clock there would be states with the
/// effect and without its cause.
#[test]
fn what_a_message_caused_is_in_no_state_without_its_cause() {
    needs_fuse!();
    let place = Place::new();
    let text = r#"
[[node]]
name = "a"
command = "cd $KEDGE_DIR; for n in 1 2 3; do echo $n > $n; sync $n; sync .; echo $n >> $OLDPWD/box; done"
[[node]]
name = "b"
command = "cd $KEDGE_DIR; for n in 1 2 3; do until grep -q $n $OLDPWD/box; do sleep 0.01; done; echo $n > $n; done"
"#;
    fs::write(place.path("two.toml"), text).unwrap();
    fs::write(place.path("box"), "").unwrap();
    place.run("crash cluster record two.toml --size 64M -o two --timeout 60s").ok();
    let causes = "for n in 1 2 3; do if test -e b/$n; then test -s a/$n || exit 1; fi; done";
    let words = ["crash", "cluster", "explore", "two", "--quiet", "--check", causes];
    place.kedge(words).ok();
    // The check can fail: without the condition there are such states.
    let words = ["crash", "cluster", "explore", "two", "--quiet", "--check", "test -e a/3 || ! test -e a/1"];
    assert_eq!(place.kedge(words).code, 1);
}

#[test]
fn a_killed_recorder_leaves_recordings_and_the_next_one_removes_its_mounts() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("tmp")).unwrap();
    let node = |name: &str| {
        format!(
            "[[node]]\nname = \"{name}\"\ncommand = \"echo $$ > {name}.pid; echo x > $KEDGE_DIR/f; \
             echo > {name}.done; exec sleep 600\"\n"
        )
    };
    fs::write(place.path("sleep.toml"), node("a") + &node("b")).unwrap();
    let record = |out: &str| {
        let mut kedge = place.command(env!("CARGO_BIN_EXE_kedge"));
        kedge.args(["crash", "cluster", "record", "sleep.toml", "--size", "64M", "-o", out]);
        kedge.env("TMPDIR", place.path("tmp"));
        kedge
    };
    let mounts = || {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        mounts.lines().filter(|line| line.contains(&*place.path("tmp").to_string_lossy())).count()
    };
    let mut recorder = record("one").spawn().unwrap();
    until("both nodes have written", || {
        ["a.done", "b.done", "one/cluster.toml"].iter().all(|name| place.path(name).exists())
    });
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_eq!(mounts(), 2);
    for node in ["a.pid", "b.pid"] {
        let pid = fs::read_to_string(place.path(node)).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
    // What the killed one recorded can be explored.
    let run = place.run("crash cluster explore one --quiet --check true");
    assert!(run.err.contains("one/a.kcr: the end of the command is missing"), "{}", run.err);
    run.ok();

    let run = common::output_of({
        let mut kedge = record("two");
        kedge.args(["--timeout", "1s"]);
        kedge
    });
    let err = String::from_utf8(run.unwrap().stderr).unwrap();
    assert!(err.contains("its time was over"), "{err}");
    assert!(mounts() == 0 && fs::read_dir(place.path("tmp")).unwrap().count() == 0, "{err}");
}

#[test]
fn a_bad_description_is_refused_with_its_line() {
    let place = Place::new();
    let refused = |text: &str, words: &[&str]| {
        fs::write(place.path("bad.toml"), text).unwrap();
        place.run("crash cluster record bad.toml").refused(2, words);
        assert!(!place.path("run.cluster").exists());
    };
    let two = "[[node]]\nname = \"a\"\ncommand = \"true\"\n[[node]]\nname = \"b\"\n";
    refused("command = \n", &["bad.toml: line 1:"]);
    refused(&format!("{two}[[node]]\nname = \"../c\"\n"), &["bad.toml: line 7:", "\"../c\"", "no name"]);
    refused(&format!("{two}[[node]]\nname = \"a\"\n"), &["line 7:", "two nodes have the name \"a\""]);
    refused(&format!("{two}colour = \"red\"\n"), &["line 6:", "colour"]);
    refused("[[node]]\nname = \"a\"\ncommand = \"true\"\n", &["2 to 32 nodes, not 1"]);
    refused("[[node]]\nname = \"a\"\n[[node]]\nname = \"b\"\n", &["nothing would run"]);
    refused(&format!("{two}from = \"nowhere\"\n"), &["node \"b\" (line 5)", "nowhere is no directory"]);
    place.run("crash cluster record missing.toml").refused(1, &["missing.toml"]);
}

#[test]
fn a_directory_without_recordings_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("run.cluster")).unwrap();
    let explore = || place.run("crash cluster explore --check true");
    explore().refused(3, &["run.cluster is no recording of a cluster", "cluster.toml"]);
    fs::write(place.path("run.cluster/cluster.toml"), "nodes = [\"a\", \"../b\"]\n").unwrap();
    explore().refused(3, &["cluster.toml", "\"../b\" is no name of a node"]);
    fs::write(place.path("run.cluster/cluster.toml"), "nodes = [\"a\", \"b\"]\n").unwrap();
    explore().refused(3, &["run.cluster/a.kcr"]);
    place.run("crash cluster explore").refused(2, &["no checker is given"]);
}
