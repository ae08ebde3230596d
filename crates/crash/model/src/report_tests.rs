#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::{Campaign, explore_in_memory};
use crate::disk::Disk;
use crate::model::Model;
use crate::recipe::Recipe;
use crate::run::{Budget, Case, Verdict};

fn told<'a>(report: &'a Report, trace: &'a Trace) -> Told<'a> {
    Told { report, trace, name: "run<1>.kcr", checker: "test \"$x\" & <y>", cut: None }
}

fn failing() -> (Report, Trace) {
    let disk = Disk::new();
    disk.create("a<b>").unwrap().write_at(0, b"</pre><script>").unwrap();
    disk.tell("saved & \u{1} <sound>");
    let trace = disk.trace();
    let report = explore_in_memory(&trace, Model::by_name("posix").unwrap(), |disk, told| {
        let is_there = disk.read("a<b>").is_ok_and(|b| b == b"</pre><script>");
        if told.is_empty() || is_there { Ok(()) } else { Err("lost <it>".into()) }
    });
    assert!(report.failed());
    (report, trace)
}

#[test]
fn nothing_that_a_program_wrote_becomes_markup() {
    let (report, trace) = failing();
    let told = told(&report, &trace);
    let page = told.html();
    assert!(
        page.contains("run&lt;1&gt;.kcr") && page.contains("a&lt;b&gt;") && page.contains("lost &lt;it&gt;")
    );
    assert!(!page.contains("<script>") && !page.contains("<sound>"), "{page}");
    for place in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(place), "the page is self-contained: {place}");
    }
    let xml = told.junit();
    assert!(!xml.contains("<it>") && !xml.contains('\u{1}'), "{xml}");
}

/// A budget of one state judges only the complete state, in which nothing is lost.
#[test]
fn a_search_that_judged_the_complete_state_only_has_no_verdict() {
    let disk = Disk::new();
    disk.create("f").unwrap();
    let run = |trace: &Trace, states| {
        let checker = |_: &Case<'_>| Verdict::Good;
        let budget = Budget { states: Some(states), ..Budget::default() };
        let model = Model::by_name("posix").unwrap();
        Campaign { trace, model, checker: &checker, budget, hear: None }.run()
    };
    let trace = disk.trace();
    let report = run(&trace, 1);
    let told = told(&report, &trace);
    assert_eq!((report.outcome.states, report.passed(), report.failed()), (1, false, false));
    assert!(told.verdict().starts_with("no verdict: the search ended"), "{}", told.verdict());
    assert!(told.junit().contains("errors=\"1\""), "{}", told.junit());
    assert!(run(&trace, 2).passed());
    // Without a change there is no other state.
    let unchanged = Disk::new();
    unchanged.settle();
    let report = run(&unchanged.trace(), 10);
    assert_eq!((report.outcome.states, report.passed()), (1, true));
}

/// Terminal escape sequences in names, in the checker's output and in marks are escaped.
#[test]
fn no_report_has_a_character_that_a_terminal_acts_upon() {
    let disk = Disk::new();
    disk.create("a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}").unwrap().write_at(0, b"\x1b[2J").unwrap();
    disk.tell("saved \u{1b}c\u{9b}\u{2066}");
    let trace = disk.trace();
    let report = explore_in_memory(&trace, Model::by_name("posix").unwrap(), |disk, told| {
        let is_there = disk.read_dir("").is_ok_and(|names| !names.is_empty());
        if told.is_empty() || is_there { Ok(()) } else { Err("lost \u{1b}[31m\u{9b}\u{202e}".into()) }
    });
    assert!(report.failed());
    let told = told(&report, &trace);
    let sarif = told.sarif(std::path::Path::new("/"));
    for text in [told.text(), told.json_text(), told.html(), told.junit(), sarif] {
        let bad = text.chars().find(|c| kedge_base::is_acted_upon(*c) && !matches!(c, '\n' | '\t'));
        assert_eq!(bad, None, "{text}");
    }
    let read: Value = serde_json::from_str(&told.json_text()).unwrap();
    assert_eq!(read, told.json(), "the same, written otherwise");
    assert!(read["causes"][0]["message"].as_str().unwrap().contains("\u{1b}[31m"));
}

#[test]
fn a_failure_stands_beside_the_last_good_state() {
    // The check fails when only the first of two overwrites was made, which needs no crash.
    let disk = Disk::new();
    let file = disk.create("f").unwrap();
    file.write_at(0, b"old old").unwrap();
    disk.sync("f").unwrap();
    disk.sync("").unwrap();
    disk.settle();
    file.write_at(0, b"new").unwrap();
    file.write_at(4, b"new").unwrap();
    let trace = disk.trace();
    let report = explore_in_memory(&trace, Model::by_name("strict").unwrap(), |disk, _| {
        match disk.read("f").as_deref() {
            Ok(b"old old" | b"new new") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let failure = &report.failures[0];
    let at = failure.state.parse::<Recipe>().unwrap().at;
    assert_eq!(failure.last_good_state, Some((at - 1).to_string()), "{failure:?}");
    let page = told(&report, &trace).html();
    assert!(page.contains("<th>the last good state</th>"), "{page}");
    assert!(page.contains("<pre>old old</pre>") && page.contains("<pre>new old</pre>"), "{page}");

    let (report, trace) = failing();
    let failure = &report.failures[0];
    let at = failure.state.parse::<Recipe>().unwrap().at;
    assert_eq!(failure.last_good_state, Some(at.to_string()), "had nothing been lost");
    assert!(told(&report, &trace).html().contains("passes at that moment"));
}

#[test]
fn a_failure_without_a_good_state_before_says_so() {
    let disk = Disk::new();
    let file = disk.create("f").unwrap();
    for i in 0..40 {
        file.write_at(i, b"x").unwrap();
    }
    file.write_at(40, b"y").unwrap();
    let trace = disk.trace();
    let report = explore_in_memory(&trace, Model::by_name("strict").unwrap(), |disk, _| {
        let bytes = disk.read("f").unwrap_or_default();
        if bytes.len() == 30 || bytes.len() > 40 { Ok(()) } else { Err("short".into()) }
    });
    let none = report.failures.iter().find(|f| f.last_good_state.is_none());
    let none = none.expect("the first state is far from any good one");
    assert!(none.state.parse::<Recipe>().unwrap().at < 31, "{none:?}");
    assert!(told(&report, &trace).html().contains("No complete state shortly before"));
}

#[test]
fn machines_read_the_same_verdict() {
    let (report, trace) = failing();
    let told = told(&report, &trace);
    let json = told.json();
    assert_eq!(json["passed"], false);
    assert_eq!(json["failing"], report.outcome.failing);
    assert_eq!(json["causes"].as_array().unwrap().len(), report.failures.len());
    assert!(json["causes"][0]["sentence"].as_str().unwrap().contains("fsync"));
    let xml = told.junit();
    assert_eq!(xml.matches("<failure ").count(), report.failures.len());
    assert!(xml.contains(&format!("failures=\"{}\"", report.failures.len())), "{xml}");
}

#[test]
fn a_budget_that_ends_early_is_said_and_is_no_plain_pass() {
    let (mut report, trace) = failing();
    report.outcome.failing = 0;
    report.outcome.failures.clear();
    report.failures.clear();
    report.outcome.ended = Ended::States;
    report.outcome.unreached = 5;
    let told = told(&report, &trace);
    assert!(told.verdict().contains("not all was tried"), "{}", told.verdict());
    assert!(told.text().contains("5 of"), "{}", told.text());
    assert_eq!(told.json()["complete"], false);
    assert!(told.junit().contains("NOT tried"));
}

#[test]
fn a_checker_that_fails_without_a_crash_is_no_verdict_on_crashes() {
    let disk = Disk::new();
    disk.create("a").unwrap();
    let trace = disk.trace();
    let report = explore_in_memory(&trace, Model::by_name("posix").unwrap(), |_, _| Err("no".into()));
    assert!(report.failures.is_empty());
    let told = told(&report, &trace);
    assert!(told.verdict().contains("without any crash"), "{}", told.verdict());
    assert!(told.junit().contains("<error ") && told.junit().contains("errors=\"1\""));
}

/// Each check takes at least 5 ms, and every crash state but the complete one fails.
fn slow_campaign(
    explain: Option<std::time::Duration>,
    hear: Option<crate::run::Hear<'_>>,
) -> (Report, Trace, u64) {
    use crate::campaign::Campaign;
    use crate::run::{Budget, Case, Verdict};
    use std::sync::atomic::{AtomicU64, Ordering};
    let disk = Disk::new();
    for name in ["a", "b", "c", "d"] {
        disk.create(name).unwrap().write_at(0, b"xyz").unwrap();
    }
    disk.tell("all");
    let trace = disk.trace();
    let checks = AtomicU64::new(0);
    let checker = |case: &Case<'_>| {
        checks.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let disk = Disk::after(case.state.clone());
        let is_whole = ["a", "b", "c", "d"].iter().all(|n| disk.read(n).is_ok_and(|b| b == b"xyz"));
        if case.told.is_empty() || is_whole { Verdict::Good } else { Verdict::Bad("lost".into()) }
    };
    let budget = Budget { states: Some(40), explain, ..Budget::default() };
    let model = Model::by_name("posix").unwrap();
    let report = Campaign { trace: &trace, model, checker: &checker, budget, hear }.run();
    let checks = checks.load(Ordering::Relaxed);
    (report, trace, checks)
}

#[test]
fn search_and_explaining_are_counted_apart_and_announced() {
    use crate::run::{Phase, Progress};
    let heard = parking_lot::Mutex::new(Vec::new());
    let hear = |progress: Progress| heard.lock().push((progress.phase, progress.checked));
    let (report, trace, checks) = slow_campaign(None, Some(&hear));
    let explaining = report.explaining;
    assert_eq!(report.outcome.states + explaining.checks, checks);
    assert!(explaining.checks > report.outcome.states, "the search is the smaller part: {explaining:?}");
    assert!(explaining.took.as_millis() >= u128::from(explaining.checks) * 5);
    assert!(report.outcome.took.as_millis() >= u128::from(report.outcome.states) * 5);
    assert_eq!(explaining.cut_at, None);
    let heard = heard.into_inner();
    assert_eq!(heard.iter().filter(|h| h.0 == Phase::Search).count() as u64, report.outcome.states);
    assert_eq!(heard.iter().filter(|h| h.0 == Phase::Explain).count() as u64, explaining.checks);
    let told = told(&report, &trace);
    let words = format!("explaining {:.1} s ({} checks)", explaining.took.as_secs_f64(), explaining.checks);
    assert!(told.text().contains(&words) && told.text().contains("searching took"), "{}", told.text());
    assert!(told.junit().contains(&words) && told.html().contains(&words), "{}", told.junit());
    let total = format!("time=\"{:.3}\"", (report.outcome.took + explaining.took).as_secs_f64());
    assert!(told.junit().contains(&total), "{total}: {}", told.junit());
    let json = told.json();
    assert_eq!(json["explain_checks"], explaining.checks);
    assert_eq!(json["explain_seconds"], explaining.took.as_secs_f64());
    assert_eq!(json["explain_cut"], serde_json::Value::Null);
}

#[test]
fn a_limit_on_explaining_holds_and_is_said_where_it_cut() {
    // No check begins after the limit, and each takes at least 5 ms, so at most 11 checks are made.
    let limit = std::time::Duration::from_millis(50);
    let (report, trace, _) = slow_campaign(Some(limit), None);
    assert!((1..=11).contains(&report.explaining.checks), "{:?}", report.explaining);
    assert_eq!(report.explaining.cut_at, Some(limit));
    let told_of = told(&report, &trace);
    let sentence = "explaining was cut off at its limit of 0.1 s (--explain): ";
    for text in [told_of.text(), told_of.junit(), told_of.html(), told_of.json().to_string()] {
        assert!(text.contains(sentence), "{text}");
    }
    // The report must not claim that no fix exists if none was searched for.
    for failure in report.failures.iter().filter(|f| f.fixes.is_empty()) {
        assert!(failure.is_cut && !failure.sentence.contains("No single persistence call"), "{failure:?}");
    }
    assert!(!told_of.html().contains("No complete state shortly before"));

    let (report, trace, checks) = slow_campaign(Some(std::time::Duration::ZERO), None);
    assert_eq!((report.explaining.checks, report.outcome.states), (0, checks));
    assert_eq!(report.unexplained, report.outcome.failing);
    let text = told(&report, &trace).text();
    let count = count(report.outcome.failing, "failing state");
    assert!(text.contains(&format!("{count} not examined")), "{text}");
    assert!(text.contains("the first failing state is"), "{text}");
}

/// The last line of a checker's output may be only the mark below a line of source.
#[test]
fn the_checkers_last_lines_are_shown_with_its_exit_code() {
    let (mut report, trace) = failing();
    let lines = [
        "exit code 1: Traceback",
        "",
        "a",
        "b",
        "File x, line 3",
        "    y = 1 +",
        "        ^",
        "SyntaxError: y",
    ];
    report.failures[0].message = lines.join("\n");
    let told = told(&report, &trace);
    let text = told.text();
    assert!(text.contains("checker: exit code 1: Traceback\n            …\n"), "{text}");
    assert!(text.contains("            SyntaxError: y\n   state:"), "{text}");
    assert!(!text.contains("            b\n"), "{text}");
    assert!(told.sarif(std::path::Path::new("/")).contains("SyntaxError: y"));
    assert_eq!(last_lines("exit code 9"), ["exit code 9"]);
}
