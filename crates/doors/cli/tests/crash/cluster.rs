//! `kedge crash cluster`: a replicated log on three nodes loses power. Bugs that need a loss on all
//! nodes, or on one node only, are found; a log that syncs on a majority before it acknowledges is
//! not accused.

use crate::common::{Place, Run, needs_fuse, until};
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
/// The client, which is the user of the cluster. It ends when the slow node has all entries.
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
/// Restarts the cluster: a leader is elected, and must have every entry that was committed.
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
/// Elects the node with the longest log.
const LONGEST: &str = "test ${#log} -gt ${#leader}";
/// Elects a fixed node, whose log may lack entries.
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

/// Records a cluster that commits three entries.
fn recorded(sync: &str) -> Place {
    let place = Place::new();
    record(&place, &NODE.replace("SYNC", sync));
    place
}

fn record(place: &Place, node: &str) {
    fs::write(place.path("node.py"), node).unwrap();
    fs::write(place.path("client.py"), CLIENT).unwrap();
    fs::write(place.path("cluster.toml"), CLUSTER).unwrap();
    let run = place.run("crash cluster record cluster.toml --size 64M --ack ^committed --timeout 60s");
    assert!(run.err.contains("3 marks recorded in run.cluster"), "{}", run.err);
    assert_eq!(run.ok(), "committed entry1\ncommitted entry2\ncommitted entry3\n");
}

fn explore(place: &Place, elect: &str, model: &str) -> (Run, serde_json::Value) {
    write_check(place, &CHECK.replace("ELECT", elect));
    let line = "crash cluster explore --jobs 2 --json=report.json --junit junit.xml --sarif report.sarif \
                --html report.html --check ./check.sh --model";
    let run = place.kedge(line.split_whitespace().chain([model]));
    (run, json(place, "report.json"))
}

fn json(place: &Place, name: &str) -> serde_json::Value {
    serde_json::from_slice(&fs::read(place.path(name)).unwrap()).unwrap()
}

fn write_check(place: &Place, text: &str) {
    // Write another file first and let cp(1) copy it: a child of another test may have inherited an
    // open file, and a file that is open for writing cannot be run.
    fs::write(place.path("check.new"), text).unwrap();
    let mut copy = place.command("cp");
    copy.args(["check.new", "check.sh"]);
    crate::common::tool(copy, "coreutils");
    fs::set_permissions(place.path("check.sh"), fs::Permissions::from_mode(0o755)).unwrap();
}

fn lossy(report: &serde_json::Value) -> Vec<&str> {
    let losses = report["causes"][0]["losses"].as_array().unwrap();
    losses.iter().map(|loss| loss["node"].as_str().unwrap()).collect()
}

#[test]
fn a_log_that_acknowledges_before_it_syncs_is_found() {
    needs_fuse!();
    let place = recorded(NO_SYNC);
    let (run, report) = explore(&place, LONGEST, "ext4");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert_eq!(report["causes"].as_array().unwrap().len(), 1, "{report:#}");
    // The entry is lost only if the leader and the follower that acknowledged it both lose it, and
    // the third node too if it had received the entry by then.
    let nodes = lossy(&report);
    assert!(nodes.starts_with(&["a", "b"]), "{report:#}");
    for loss in report["causes"][0]["losses"].as_array().unwrap() {
        assert_eq!(loss["fixes"][0]["call"], "fsync(\"log\")", "{report:#}");
    }
    assert_eq!(report["causes"][0]["mended"][1], 0, "{report:#}");
    assert!(run.out.contains("must lose something") || run.out.contains("every node loses"), "{}", run.out);

    // Each report names the state, and the nodes with what each of them lost.
    let state = report["causes"][0]["state"].as_str().unwrap();
    let read = |name: &str| fs::read_to_string(place.path(name)).unwrap();
    let (junit, page) = (read("junit.xml"), read("report.html"));
    assert!(junit.contains("failures=\"1\" errors=\"0\"") && junit.contains(state), "{junit}");
    assert!(junit.contains(" a: A crash after") && junit.contains(" b: A crash after"), "{junit}");
    for words in ["<h3>Node a</h3>", "<h3>Node b</h3>", "All calls of node c", "missing here", state] {
        assert!(page.contains(words), "{words} is missing in {page}");
    }
    let found = &json(&place, "report.sarif")["runs"][0]["results"];
    assert_eq!(found.as_array().unwrap().len(), 1, "{found:#}");
    assert_eq!(found[0]["ruleId"], "missing-persistence-call", "{found:#}");
    assert_eq!(found[0]["properties"]["state"], state, "{found:#}");
    let place_of = &found[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert_eq!(place_of, "run.cluster/a.kcr", "{found:#}");

    // Replay the state that the report names.
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
        let (run, report) = explore(&place, LONGEST, model);
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        assert!(report["complete"] == true && report["states"].as_u64().unwrap() > 20, "{report:#}");
        let junit = fs::read_to_string(place.path("junit.xml")).unwrap();
        assert!(junit.contains("tests=\"1\" failures=\"0\" errors=\"0\""), "{junit}");
        let results = &json(&place, "report.sarif")["runs"][0]["results"];
        assert_eq!(results, &serde_json::json!([]), "{results:#}");
    }

    // In the failing states only the slow node differs: it lacks an entry.
    let (run, report) = explore(&place, ANY, "ext4");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let nodes = lossy(&report);
    assert!(nodes.is_empty() || nodes == ["c"], "{report:#}");
    assert!(run.out.contains("committed, and the leader has"), "{}", run.out);
}

/// The name of a new log is durable without an fsync of its directory on ext4, and not by POSIX.
#[test]
fn a_log_whose_name_is_not_synced_is_found_under_posix_only() {
    needs_fuse!();
    let place = Place::new();
    let sync_name = "os.fsync(os.open(DIR, os.O_RDONLY))";
    assert!(NODE.contains(sync_name));
    record(&place, &NODE.replace(sync_name, "pass").replace("SYNC", SYNC));
    for (model, code) in [("ext4", 0), ("posix", 1)] {
        let (run, report) = explore(&place, LONGEST, model);
        assert_eq!(run.code, code, "{model}: {}{}", run.out, run.err);
        let calls = report["causes"][0]["losses"].as_array().into_iter().flatten();
        let calls: Vec<&str> = calls.filter_map(|loss| loss["fixes"][0]["call"].as_str()).collect();
        assert!(
            calls.iter().all(|call| *call == "fsync(\".\")") && calls.is_empty() == (code == 0),
            "{calls:?}"
        );
    }
}

/// The check of a transfer of 10 between accounts on two nodes, which has a redo record when power
/// fails. `APPLY` stands for how the recovery applies the record.
const RECOVER: &str = r#"#!/bin/sh -e
put() { echo "$2" > "$1/sum.tmp"; sync "$1/sum.tmp"; mv "$1/sum.tmp" "$1/sum"; sync "$1"; }
if test -e a/log; then
  n=$(cat a/log)
  APPLY
  rm a/log
  sync a
fi
test $(($(cat a/sum) + $(cat b/sum))) = 200
"#;

#[test]
fn a_recovery_of_two_nodes_that_cannot_be_repeated_is_found() {
    needs_fuse!();
    let place = Place::new();
    let text = r#"
[[node]]
name = "a"
from = "from"
command = "cd $KEDGE_DIR; echo 10 > log.tmp; sync log.tmp; mv log.tmp log; sync .; echo saved"
[[node]]
name = "b"
from = "from"
"#;
    fs::create_dir(place.path("from")).unwrap();
    fs::write(place.path("from/sum"), "100\n").unwrap();
    fs::write(place.path("cluster.toml"), text).unwrap();
    place.run("crash cluster record cluster.toml --size 64M --ack ^saved --timeout 60s").ok();
    let again = |apply: &str| {
        write_check(&place, &RECOVER.replace("APPLY", apply));
        let line = "crash cluster explore --model ext4 --jobs 2 --again 1 --again-recoveries 2 --json=report.json \
                    --junit junit.xml --check ./check.sh";
        let run = place.run(line);
        let report = json(&place, "report.json");
        assert_eq!(report["failing"], 0, "{report:#}");
        (run, report)
    };
    // Only a crash of the recovery fails: the recovery has applied the record on `a` alone, and
    // then applies it again.
    let (run, report) = again("put a $(($(cat a/sum) - n)); put b $(($(cat b/sum) + n))");
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(report["again"]["failing"].as_u64().unwrap() > 0 && report["passed"] == false, "{report:#}");
    let state = report["again"]["causes"][0]["state"].as_str().unwrap();
    assert!(
        run.out.contains("In the recovery from the crash state a=") && run.out.contains(state),
        "{}",
        run.out
    );
    let junit = fs::read_to_string(place.path("junit.xml")).unwrap();
    assert!(junit.contains("failures=\"1\"") && junit.contains(state), "{junit}");

    // Replay the state that the report names. The replay prints the calls of the recovery.
    let words = ["crash", "cluster", "replay", "--model", "ext4", "--check", "./check.sh", "--keep", "kept"];
    let replayed = place.kedge(words.into_iter().chain(["--state", state]));
    assert_eq!(replayed.code, 1, "{}{}", replayed.out, replayed.err);
    assert!(replayed.out.contains("rename(\"sum.tmp\", \"sum\")"), "{}", replayed.out);
    let sum = |node: &str| fs::read_to_string(place.path("kept").join(node).join("sum")).unwrap();
    assert!(sum("a") == "90\n" && place.path("kept/a/log").exists(), "the record was not applied as a whole");

    // Absolute values can be written again.
    let (run, report) = again("put a $((100 - n)); put b $((100 + n))");
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let (states, idle) = (&report["again"]["states"], &report["again"]["idle"]);
    assert!(report["again"]["complete"] == true && states.as_u64().unwrap() > 5, "{report:#}");
    assert!(report["again"]["recoveries"].as_u64() > idle.as_u64(), "{report:#}");
}

/// The writer on `b` waits for a message from `a`. Without a common clock there would be states
/// with the effect of a message and without its cause.
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
    // A check can fail here: some states have `a/1` and lack `a/3`.
    let words = ["crash", "cluster", "explore", "two", "--quiet", "--check", "test -e a/3 || ! test -e a/1"];
    assert_eq!(place.kedge(words).code, 1);
}

/// One program uses directories on two file systems. Between these, mv(1) copies a file and removes
/// the old one, without a sync.
#[test]
fn a_file_that_moves_between_two_file_systems_is_lost_unless_its_copy_is_synced() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("from")).unwrap();
    fs::write(place.path("from/doc"), "text\n").unwrap();
    let synced = "cp a/doc b; sync b/doc b; rm a/doc; sync a";
    for (calls, code) in [("mv a/doc b", 1), (synced, 0)] {
        let text = format!(
            "command = \"cd $KEDGE_DIR; {calls}; echo moved\"\n[[node]]\nname = \"a\"\nfrom = \"from\"\n\
             [[node]]\nname = \"b\"\n"
        );
        fs::write(place.path("two.toml"), text).unwrap();
        place.run("crash cluster record two.toml --size 64M --ack ^moved --timeout 60s").ok();
        for model in ["ext4", "posix"] {
            let words =
                ["crash", "cluster", "explore", "--jobs", "2", "--json=report.json", "--model", model];
            let run = place.kedge(words.into_iter().chain(["--check", "grep -qsx text a/doc b/doc"]));
            assert_eq!(run.code, code, "{calls}, {model}: {}{}", run.out, run.err);
            let report = json(&place, "report.json");
            if code == 1 {
                assert_eq!(lossy(&report), ["b"], "{model}: {report:#}");
            } else {
                assert!(report["complete"] == true && report["states"].as_u64() > Some(5), "{report:#}");
            }
        }
    }
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
    // The recording that the killed recorder left can be explored.
    let run = place.run("crash cluster explore one --quiet --check true");
    assert!(run.err.contains("one/a.kcr: the end of the command is missing"), "{}", run.err);
    run.ok();

    let run = crate::common::output_of({
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
    place
        .run("crash cluster explore --infer cat")
        .refused(2, &["--infer does not judge a cluster", "--check"]);
    let judged_apart = ["--checker and --check-files judge files of one program"];
    place.run("crash cluster explore --checker sqlite").refused(2, &judged_apart);
    place.run("crash cluster replay --state a=1,b=1 --check-files").refused(2, &judged_apart);
}
