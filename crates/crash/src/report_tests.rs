#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::explore_in_memory;
use crate::disk::Disk;
use crate::model::Model;
use crate::recipe::Recipe;

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

/// Sequences of a terminal in names, in what the checker says and in what the user was told.
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
    for text in [told.text(), told.json_text(), told.html(), told.junit()] {
        let bad = text.chars().find(|c| kedge_base::is_acted_upon(*c) && !matches!(c, '\n' | '\t'));
        assert_eq!(bad, None, "{text}");
    }
    let read: Value = serde_json::from_str(&told.json_text()).unwrap();
    assert_eq!(read, told.json(), "the same, written otherwise");
    assert!(read["causes"][0]["message"].as_str().unwrap().contains("\u{1b}[31m"));
}

#[test]
fn a_failure_stands_beside_the_last_good_state() {
    // Complete: the file is overwritten in two steps, between which it does not pass.
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
