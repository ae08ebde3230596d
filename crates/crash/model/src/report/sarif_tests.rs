#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::{Report, explore_in_memory};
use crate::disk::Disk;
use crate::model::Model;
use crate::report::{Rendered, Told};
use crate::run::Ended;
use crate::trace::Trace;

/// The part of the schema of SARIF 2.1.0 for objects that a report may have: the object's path, its
/// required properties, and the other properties that are used here. Further properties are not
/// permitted.
const SCHEMA_OF: &[(&str, &[&str], &[&str])] = &[
    ("", &["version", "runs"], &["$schema"]),
    ("/runs/*", &["tool"], &["automationDetails", "invocations", "results"]),
    ("/runs/*/tool", &["driver"], &[]),
    ("/runs/*/tool/driver", &["name"], &["semanticVersion", "rules"]),
    (
        "/runs/*/tool/driver/rules/*",
        &["id"],
        &["shortDescription", "fullDescription", "help", "defaultConfiguration"],
    ),
    ("/runs/*/tool/driver/rules/*/shortDescription", &["text"], &[]),
    ("/runs/*/tool/driver/rules/*/fullDescription", &["text"], &[]),
    ("/runs/*/tool/driver/rules/*/help", &["text"], &[]),
    ("/runs/*/tool/driver/rules/*/defaultConfiguration", &[], &["level"]),
    ("/runs/*/automationDetails", &[], &["id"]),
    ("/runs/*/invocations/*", &["executionSuccessful"], &["toolExecutionNotifications"]),
    ("/runs/*/invocations/*/toolExecutionNotifications/*", &["message"], &["level"]),
    ("/runs/*/invocations/*/toolExecutionNotifications/*/message", &["text"], &[]),
    (
        "/runs/*/results/*",
        &["message"],
        &["ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "stacks", "properties"],
    ),
    ("/runs/*/results/*/message", &["text"], &[]),
    ("/runs/*/results/*/locations/*", &[], &["physicalLocation"]),
    ("/runs/*/results/*/locations/*/physicalLocation", &["artifactLocation"], &["region"]),
    ("/runs/*/results/*/locations/*/physicalLocation/artifactLocation", &["uri"], &[]),
    ("/runs/*/results/*/locations/*/physicalLocation/region", &["startLine"], &[]),
    ("/runs/*/results/*/partialFingerprints", &[], &["cause/v1"]),
    ("/runs/*/results/*/properties", &[], &["model", "state"]),
    ("/runs/*/results/*/stacks/*", &["frames"], &["message"]),
    ("/runs/*/results/*/stacks/*/message", &["text"], &[]),
    ("/runs/*/results/*/stacks/*/frames/*", &[], &["location"]),
    ("/runs/*/results/*/stacks/*/frames/*/location", &[], &["message", "physicalLocation"]),
    ("/runs/*/results/*/stacks/*/frames/*/location/message", &["text"], &[]),
    ("/runs/*/results/*/stacks/*/frames/*/location/physicalLocation", &["artifactLocation"], &["region"]),
    ("/runs/*/results/*/stacks/*/frames/*/location/physicalLocation/artifactLocation", &["uri"], &[]),
    ("/runs/*/results/*/stacks/*/frames/*/location/physicalLocation/region", &["startLine"], &[]),
];
const LEVELS: [&str; 4] = ["none", "note", "warning", "error"];

/// Checks each object against the schema, and the values that the schema limits.
fn validate(at: &str, value: &Value) {
    match value {
        Value::Array(list) => list.iter().for_each(|item| validate(&format!("{at}/*"), item)),
        Value::Object(object) => {
            let row = SCHEMA_OF.iter().find(|row| row.0 == at);
            let (_, required, others) = row.unwrap_or_else(|| panic!("{at} is none of the schema's objects"));
            for name in *required {
                assert!(object.contains_key(*name), "{at} lacks {name}: {value:#}");
            }
            for (name, value) in object {
                let is_known = required.contains(&&name[..]) || others.contains(&&name[..]);
                assert!(is_known, "{at} may not have {name}");
                validate(&format!("{at}/{name}"), value);
            }
        }
        Value::String(text) if at.ends_with("/level") => assert!(LEVELS.contains(&&text[..]), "{text}"),
        Value::String(text) if at.ends_with("/uri") => {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:.-_~%".contains(c);
            assert!(!text.is_empty() && text.chars().all(is_plain), "{text:?} is no reference by URI");
        }
        Value::String(text) if at.ends_with("/text") => assert!(!text.is_empty(), "{at} is empty"),
        Value::Number(line) if at.ends_with("/startLine") => assert!(line.as_u64().unwrap() >= 1),
        _ => {}
    }
}

/// The SARIF report, which must be valid.
fn sarif(report: &Report, trace: &Trace, sources: &Path) -> Value {
    let told = Told { report, trace, name: "runs/a b.kcr", checker: "check", cut: None };
    let sarif: Value = serde_json::from_str(&told.sarif(sources)).unwrap();
    validate("", &sarif);
    assert_eq!(sarif["version"], "2.1.0");
    assert_eq!(sarif["runs"].as_array().unwrap().len(), 1);
    for result in results(&sarif) {
        let rule =
            &sarif["runs"][0]["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().unwrap() as usize];
        assert_eq!(rule["id"], result["ruleId"], "the index leads to the rule");
        assert_eq!(result["locations"].as_array().unwrap().len(), 1);
    }
    sarif
}

fn results(sarif: &Value) -> &[Value] {
    sarif["runs"][0]["results"].as_array().unwrap()
}

/// A report of a program that promises a file whose name was not synced.
fn failing() -> (Report, Trace) {
    let disk = Disk::new();
    let file = disk.create("f").unwrap();
    file.write_at(0, b"text").unwrap();
    file.sync_all().unwrap();
    disk.tell("saved \u{1b}[31m");
    (explore(&disk.trace()), disk.trace())
}

fn explore(trace: &Trace) -> Report {
    let model = Model::by_name("posix").unwrap();
    explore_in_memory(trace, model, |disk, told| {
        let is_there = told.is_empty() || disk.exists("f");
        if is_there { Ok(()) } else { Err("first line\nf is lost".to_owned()) }
    })
}

#[test]
fn a_finding_has_all_that_the_schema_demands() {
    let (report, trace) = failing();
    let sarif = sarif(&report, &trace, Path::new("/nowhere"));
    let [result] = results(&sarif) else { panic!("{sarif:#}") };
    assert_eq!(result["ruleId"], "missing-persistence-call");
    let text = result["message"]["text"].as_str().unwrap();
    assert!(
        text.contains("fsync(\".\")") && text.ends_with("The checker said: first line\nf is lost"),
        "{text}"
    );
    // Without callers the position is the recording.
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "runs/a%20b.kcr");
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], true);
    assert_eq!(result["properties"]["state"], report.failures[0].state);

    // The same cause in another recording of the program has the same fingerprint.
    let print = |sarif: &Value| results(sarif)[0]["partialFingerprints"]["cause/v1"].clone();
    let disk = Disk::new();
    disk.create("other").unwrap();
    disk.settle();
    let file = disk.create("f").unwrap();
    file.write_at(0, b"text").unwrap();
    file.sync_all().unwrap();
    disk.tell("saved");
    let again = super::tests::sarif(&explore(&disk.trace()), &disk.trace(), Path::new("/nowhere"));
    assert_eq!(print(&sarif), print(&again));
}

#[test]
fn a_finding_is_at_the_caller_whose_source_is_there() {
    let sources = tempfile::tempdir().unwrap();
    let src = sources.path().join("src dir");
    std::fs::create_dir(&src).unwrap();
    std::fs::write(src.join("save.c"), "").unwrap();
    let (mut report, trace) = failing();
    let file = src.join("save.c").display().to_string();
    report.failures[0].fixes[0].before_stack = vec![
        "write at /usr/lib/libc.so+0x12".to_owned(),
        "fwrite at /usr/src/libc/fwrite.c:9".to_owned(),
        format!("publish at {file}:12"),
        format!("main at {file}:30"),
        "evil at ../outside.c:1".to_owned(),
        "(callers unknown from here)".to_owned(),
    ];
    let sarif = sarif(&report, &trace, sources.path());
    let place = &results(&sarif)[0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "src%20dir/save.c");
    assert_eq!(place["region"]["startLine"], 12);
    let frames = results(&sarif)[0]["stacks"][0]["frames"].as_array().unwrap();
    let placed = frames.iter().filter(|frame| frame["location"].get("physicalLocation").is_some());
    assert_eq!((frames.len(), placed.count()), (6, 2), "{frames:#?}");
}

#[test]
fn a_run_without_findings_says_what_was_tried() {
    let disk = Disk::new();
    disk.create("f").unwrap().write_at(0, b"text").unwrap();
    let trace = disk.trace();
    let mut report = explore(&trace);
    let texts = |sarif: &Value| {
        let notes = sarif["runs"][0]["invocations"][0]["toolExecutionNotifications"].as_array().unwrap();
        notes.iter().map(|n| (n["level"].clone(), n["message"]["text"].to_string())).collect::<Vec<_>>()
    };
    let good = sarif(&report, &trace, Path::new("/"));
    assert!(results(&good).is_empty());
    assert!(texts(&good)[0].1.contains("no failure in"), "{good:#}");
    // A search that ended at its budget is not reported as a plain success.
    (report.outcome.ended, report.outcome.unreached) = (Ended::States, 5);
    let cut = sarif(&report, &trace, Path::new("/"));
    assert!(texts(&cut).iter().any(|(level, text)| level == "warning" && text.contains("NOT tried")));
    // The run has no verdict.
    report.outcome.broken = Some("the checker cannot be run".to_owned());
    let broken = sarif(&report, &trace, Path::new("/"));
    assert_eq!(broken["runs"][0]["invocations"][0]["executionSuccessful"], false);
    assert_eq!(texts(&broken)[0].0, "error");
    assert!(results(&broken).is_empty());
}

#[test]
fn failing_states_without_an_explanation_are_one_finding() {
    let (mut report, trace) = failing();
    report.failures.clear();
    let sarif = sarif(&report, &trace, Path::new("/"));
    assert_eq!(results(&sarif).len(), 1);
    assert_eq!(results(&sarif)[0]["ruleId"], "unexplained");
}

#[test]
fn a_failure_of_a_recovery_is_a_finding() {
    let (mut report, trace) = failing();
    let explanation = report.failures.pop();
    let failure = crate::recoveries::FailingRecovery {
        state: "4.durable/9".to_owned(),
        sentence: "In the recovery: it fails.".to_owned(),
        message: "bad".to_owned(),
        is_refusal: false,
        explanation,
        losses: Vec::new(),
    };
    let failures = vec![failure];
    report.again = Some(crate::recoveries::Recoveries { failing: 1, failures, ..Default::default() });
    report.outcome.failing = 0;
    report.outcome.failures.clear();
    let sarif = sarif(&report, &trace, Path::new("/"));
    let [result] = results(&sarif) else { panic!("{sarif:#}") };
    assert_eq!(
        (&result["ruleId"], &result["properties"]["state"]),
        (&"recovery".into(), &"4.durable/9".into())
    );
}
