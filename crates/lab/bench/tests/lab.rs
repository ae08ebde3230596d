//! `kedge-lab` refuses invalid arguments before it creates anything. Its measurements take minutes
//! on a quiet machine, and their results are for people to judge. One short experiment shows that
//! it measures.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory for each test, with the program and a stand-in for `kedge` next to it, since no test
/// here mounts.
struct Place {
    dir: tempfile::TempDir,
    lab: PathBuf,
}

struct Run {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let lab = dir.path().join("bin/kedge-lab");
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        // A hard link, not a copy: during the copying a child process of another test could inherit
        // the file open for writing, and the copy could not be executed then.
        std::fs::hard_link(env!("CARGO_BIN_EXE_kedge-lab"), &lab).unwrap();
        std::fs::write(dir.path().join("bin/kedge"), "").unwrap();
        Place { dir, lab }
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn run(&self, words: &str) -> Run {
        self.run_program(&self.lab, words)
    }

    fn run_program(&self, program: &Path, words: &str) -> Run {
        let words = words.split_whitespace();
        let output = Command::new(program).args(words).current_dir(self.work()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Whether the directory contains nothing: nothing was created, or everything was removed.
    fn is_empty(&self) -> bool {
        std::fs::read_dir(self.work()).unwrap().count() == 0
    }
}

impl Run {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self.out
    }

    /// Asserts that the exit code is `code`, and that stderr is one line that contains all of
    /// `words`.
    #[track_caller]
    fn refused(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "one line: {}", self.err);
        assert!(self.err.starts_with("kedge-lab: "), "{}", self.err);
        assert!(words.iter().all(|word| self.err.contains(word)), "{words:?} in {}", self.err);
    }
}

#[test]
fn requests_that_make_no_sense() {
    let place = Place::new();
    assert_eq!(place.run("bench").code, 2, "no experiment");
    place.run("bench baseline --only everything").refused(2, &["everything", "fs_mark, library, dbench"]);
    place.run("bench baseline --size 16M").refused(2, &["16M", "256M"]);
    place.run("bench baseline --rounds 0").refused(2, &["0"]);
    place.run("bench baseline --json --markdown").refused(2, &["--json", "--markdown"]);
    place.run("bench compare --peers ext5").refused(2, &["ext5", "ext4"]);
    place.run("bench compare --dir gone").refused(1, &["gone"]);
    place.run("bench compare --html gone/page.html").refused(1, &["gone/page.html"]);
    place.run("bench baseline --dir gone").refused(1, &["gone"]);
    place.run("bench scale --dir gone").refused(1, &["gone"]);
    place.run("bench scale --svg gone/plot.svg").refused(1, &["gone/plot.svg"]);
    assert_eq!(place.run("reproduce").code, 2, "no experiment");
    place
        .run("reproduce everything")
        .refused(2, &["everything", "rename, fdatasync, checkpoint, tree-lock, writeback, sync"]);
    place.run("reproduce rename --only nowhere").refused(2, &["nowhere", "mount, process, model"]);
    place.run("reproduce rename --dir gone").refused(1, &["gone"]);
    assert!(place.is_empty(), "nothing was made");
    std::fs::remove_file(place.lab.with_file_name("kedge")).unwrap();
    place.run("reproduce rename").refused(1, &["bin/kedge does not exist", "cargo build"]);
    assert!(place.run("bench baseline --help").ok().contains("--quick"));
}

/// Asserts that every contest of the report has the figures of both rules.
fn has_both_rules(report: &serde_json::Value, contests: usize) {
    let outcomes = report["sections"][0]["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), contests, "{report:#}");
    for outcome in outcomes {
        for (side, name) in [(0, "relog"), (1, "fields"), (2, "seq")] {
            let side = &outcome["sides"][side];
            assert_eq!(side["name"], name);
            assert!(side["failed"].is_null(), "{side:#}");
            assert!(side["samples"][0]["median"].as_f64().unwrap() > 0.0, "{side:#}");
        }
        assert!(!outcome["published"].as_array().unwrap().is_empty());
    }
    assert!(
        report["bars"].as_array().unwrap().iter().any(|b| b["what"].as_str().unwrap().contains("log forces"))
    );
}

#[test]
fn a_reproduction_in_memory() {
    let place = Place::new();
    let out = place.dir.path().join("report.json");
    let words = "reproduce fdatasync --quick --rounds 1 --only model --json --out";
    assert_eq!(place.run(&format!("{words} {}", out.display())).ok(), "");
    has_both_rules(&serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap(), 2);
    assert!(place.is_empty(), "nothing is left");
}

/// A comparison measures what needs no mount and no root, and its report names the rest.
#[test]
fn a_comparison_in_process() {
    let place = Place::new();
    let (json, html) = (place.dir.path().join("report.json"), place.dir.path().join("page.html"));
    let words = "bench compare --quick --rounds 1 --size 256M --peers library,raw,null";
    let text = place.run(&format!("{words} --json {} --html {}", json.display(), html.display())).ok();
    assert!(text.contains("Left out: null") && text.contains("append 100 bytes"), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let outcomes = report["sections"][0]["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 2 * 26, "free, and on one processor: {report:#}");
    for side in outcomes.iter().flat_map(|outcome| outcome["sides"].as_array().unwrap()) {
        assert!(side["failed"].is_null(), "{side:#}");
        assert!(side["samples"][0]["median"].as_f64().unwrap() > 0.0, "{side:#}");
    }
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.matches("<svg").count() == outcomes.len() && !page.contains("NaN"));
    // The page refers to no other file.
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains(" src="));
    assert!(place.is_empty(), "nothing is left");
}

/// No test here mounts, so the contestant KedgeFS fails. The report still lists it, and the exit
/// code is that of a requested contestant.
#[test]
fn a_comparison_names_kedgefs_without_being_asked() {
    let place = Place::new();
    let json = place.dir.path().join("report.json");
    let words = "bench compare --quick --rounds 1 --size 256M --only append --peers";
    let run = |peers: &str| {
        let run = place.run(&format!("{words} {peers} --json {}", json.display()));
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let sides = report["sections"][0]["outcomes"][0]["sides"].as_array().unwrap().clone();
        let names: Vec<String> = sides.iter().map(|side| side["name"].as_str().unwrap().to_owned()).collect();
        (run.code, names, sides[0]["failed"].is_null(), run.out)
    };
    let (code, names, fine, out) = run("raw");
    assert_eq!((names, fine), (vec!["KedgeFS".to_owned(), "durable writes".to_owned()], false), "{out}");
    assert_eq!(run("kedge,raw").0, code);
    // An earlier version takes part exactly when its program is named.
    let (_, names, ..) = run("raw --before /bin/false");
    assert_eq!(names, ["KedgeFS", "KedgeFS before", "durable writes"]);
    for (asked, part) in
        [("--peers before", "--before PROGRAM"), ("--before gone", "the program of --before")]
    {
        let refused = place.run(&format!("bench compare --quick {asked}"));
        assert!(refused.code == 1 && refused.err.contains(part), "{asked}: {}", refused.err);
    }
    assert!(place.is_empty(), "nothing is left");
    // The library runs no program such as dbench, and the report says so.
    let text = place.run("bench compare --quick --rounds 1 --size 256M --only dbench --peers library").ok();
    assert!(text.contains("Left out: dbench, 16 clients (none of the contestants can do it)"), "{text}");
}

/// ext4, XFS or loop devices may be missing here. KedgeFS is measured anyway.
#[test]
fn a_reproduction_in_process() {
    let place = Place::new();
    let run = place.run("reproduce fdatasync --quick --rounds 1 --size 512M --only process --json");
    if run.out.is_empty() {
        assert!(run.code == 1 && run.err.contains("(Debian package "), "{}", run.err);
    } else {
        has_both_rules(&serde_json::from_str(&run.out).unwrap(), 3);
    }
    assert!(place.is_empty(), "nothing is left");
}

#[test]
fn simulated_processors_need_a_program_of_their_own() {
    let place = Place::new();
    let refused = place.run("reproduce tree-lock --quick --processors 2");
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("--features simulated"), "{}", refused.err);
    let here = place.run("processors own-lookups --short --simulated 2");
    assert_eq!(here.code, 1);
    assert!(here.err.contains("built without simulated processors"), "{}", here.err);
    for (words, part) in [
        ("reproduce tree-lock --processors 0", "1 to 64"),
        ("reproduce tree-lock --processors 65", "1 to 64"),
        ("reproduce tree-lock --validate", "--processors"),
        ("reproduce tree-lock --processors 2 --only mount", "--only"),
        ("processors own-lookups", "--real"),
    ] {
        let usage = place.run(words);
        assert_eq!(usage.code, 2, "{words}: {}", usage.err);
        assert!(usage.err.contains(part), "{words}: {}", usage.err);
    }
    assert!(place.is_empty());
}

#[test]
fn a_load_runs_on_one_real_processor() {
    let place = Place::new();
    let answer = place.run("processors own-lookups --short --real 1").ok();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let run = &answer["runs"][0];
    assert_eq!(run["processors"], 1);
    assert!(run["values"][0].as_f64().unwrap() > 0.0, "{run}");
    let unknown = place.run("processors own-lookups --rule other --real 1");
    assert!(unknown.code == 1 && unknown.err.contains("own-lookups has no rule other"), "{}", unknown.err);
    let unknown = place.run("processors nothing --real 1");
    assert!(unknown.code == 1 && unknown.err.contains("no load nothing"), "{}", unknown.err);
}
