//! `kedge crash explore --infer`: what the program shows without a crash is the standard for crash
//! states.

use crate::common::{Place, needs_fuse};

/// Saves two versions of a file. `SYNC` stands for the persistence call.
const SAVE: &str = "for n in 1 2; do head -c 9000 /dev/zero | tr '\\0' $n > new; SYNC new; mv new doc; sync .; \
                    echo saved $n; done";
const SHOW: &str = "echo now it is $(date +%s%N); test ! -e doc || cksum doc";

fn record(place: &Place, script: &str) {
    let words = ["crash", "record", "--size", "64M", "--cd", "--ack", "^saved", "--", "sh", "-ec", script];
    place.kedge(words).ok();
}

#[test]
fn a_planted_bug_is_found_without_a_check_and_a_correct_program_is_not_accused() {
    needs_fuse!();
    for (sync, code) in [("sync", 0), (": sync", 1)] {
        let place = Place::new();
        record(&place, &SAVE.replace("SYNC", sync));
        let words = ["crash", "explore", "run.kcr", "--model", "ext4", "--budget", "200", "--infer", SHOW];
        let run = place.kedge(words.into_iter().chain(["--json=report.json"]));
        assert_eq!(run.code, code, "{sync}: {}{}", run.out, run.err);
        assert!(run.err.contains("states without a crash; its exit code and output count"), "{}", run.err);
        assert!(run.err.contains("since it varies: \"now it is #\""), "{}", run.err);
        let report = std::fs::read_to_string(place.path("report.json")).unwrap();
        assert_eq!(report.contains("fsync"), code == 1, "{report}");
    }
}

/// After a crash and SQLite's own recovery, the rows must be those of some moment without a crash.
#[test]
fn a_database_is_judged_by_the_rows_that_it_shows() {
    needs_fuse!();
    for (level, code) in [("extra", 0), ("off", 1)] {
        let place = Place::new();
        let script = "sqlite3 a.db 'create table t(n)'; sync a.db .; echo saved; for n in 1 2; do \
                      sqlite3 a.db \"pragma synchronous=LEVEL; insert into t values($n)\"; echo saved $n; done";
        record(&place, &script.replace("LEVEL", level));
        let words = ["crash", "explore", "run.kcr", "--model", "posix", "--explain", "0", "--infer"];
        let run = place.kedge(words.into_iter().chain(["sqlite3 a.db 'select n from t'", "--budget", "300"]));
        assert_eq!(run.code, code, "{level}: {}{}", run.out, run.err);
        if code == 1 {
            // With `--infer-older` promises do not count, but the database is damaged all the same.
            let words = ["crash", "explore", "run.kcr", "--model", "posix", "--explain", "0", "--infer"];
            let more = ["sqlite3 a.db 'select n from t'", "--infer-older", "--budget", "300"];
            let run = place.kedge(words.into_iter().chain(more));
            assert_eq!(run.code, 1, "{}{}", run.out, run.err);
        }
    }
}

/// A recovery that was crashed must also lead to a state that the program has without a crash. A
/// replay judges a state in the same way.
#[test]
fn recoveries_and_replays_are_judged_too() {
    needs_fuse!();
    let place = Place::new();
    record(&place, &SAVE.replace("SYNC", "sync"));
    let show = "test ! -e new || rm new; test ! -e doc || cksum doc";
    let words = ["crash", "explore", "run.kcr", "--model", "ext4", "--budget", "60", "--again", "1"];
    let run = place.kedge(words.into_iter().chain(["--again-recoveries", "4", "--infer", show]));
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    assert!(run.out.contains("recover"), "{}", run.out);
    record(&place, &SAVE.replace("SYNC", ": sync"));
    let words = ["crash", "explore", "run.kcr", "--model", "ext4", "--explain", "0", "--max-failures", "1"];
    let run = place.kedge(words.into_iter().chain(["--infer", show]));
    let state = run.out.split("the first failing state is ").nth(1).unwrap_or_else(|| panic!("{}", run.out));
    let state = state.split_whitespace().next().unwrap();
    let words = ["crash", "replay", "run.kcr", "--model", "ext4", "--state", state, "--infer", show];
    let run = place.kedge(words);
    assert!(run.code == 1 && run.out.contains("no state without a crash gives"), "{}{}", run.out, run.err);
}

#[test]
fn what_cannot_be_inferred_is_said() {
    let place = Place::new();
    place.run("crash explore run.kcr --infer true --check true").refused(2, &["--infer", "--check"]);
    needs_fuse!();
    record(&place, &SAVE.replace("SYNC", "sync"));
    let infer = |command: &str| place.kedge(["crash", "explore", "run.kcr", "--infer", command]);
    infer("echo why >&2; exit 3").refused(3, &["fails without a crash", "exit code 3: why"]);
    infer("does-not-exist-1").refused(3, &["cannot be run"]);
    place.run("crash explore run.kcr --infer-older --check true").refused(2, &["--infer"]);
    place.run("crash explore run.kcr --check true --files doc").refused(2, &["need --checker"]);
    place.run("crash explore run.kcr --infer true --query x").refused(2, &["--query"]);
}
