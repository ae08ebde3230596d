use super::*;
use crate::contest::{Metric, Published, Side};
use crate::sample::Sample;

fn side(name: &'static str, values: &[f64]) -> Side {
    let mut sample = Sample::default();
    values.iter().for_each(|v| sample.push(*v));
    Side { name, command: format!("work on {name}"), samples: vec![sample], failed: None }
}

fn outcome(title: &str, goal: Option<Goal>, sides: Vec<Side>) -> Outcome {
    let metrics =
        vec![Metric { name: std::borrow::Cow::Borrowed(""), unit: "files/s", better: Better::Higher }];
    Outcome { title: title.into(), metrics, goal, sides, published: vec![] }
}

fn report(outcomes: Vec<Outcome>) -> Report {
    Report {
        experiment: "baseline",
        version: "1",
        machine: Machine {
            cores: 8,
            memory_mib: 4096,
            kernel: "6.1".into(),
            host: "xfs".into(),
            load: 0.1,
            durable_write: vec![85.0, 90.0],
        },
        rounds: 3,
        sections: vec![Section {
            title: "Section".into(),
            setup: vec!["make".into()],
            outcomes,
            reading: Reading::Ratio,
        }],
        bars: vec![],
        notes: vec![],
        failures: vec![],
    }
}

#[test]
fn tables() {
    let report = report(vec![
        outcome("1 thread", Some(Goal::Ratio(1.0)), vec![side("K", &[1200.0, 1180.0]), side("e", &[1000.0])]),
        outcome("4 threads", Some(Goal::Value(2000.0)), vec![side("K", &[3000.0])]),
    ]);
    let text = report.text();
    let line = |start: &str| text.lines().find(|l| l.trim_start().starts_with(start)).unwrap().trim_start();
    assert_eq!(line("unit"), "unit              K           e  K / e  expected");
    assert_eq!(line("1 thread"), "1 thread   files/s  1,190 ±1 %  1,000 ±0 %   1.19  ≥ 1: met");
    assert_eq!(line("4 threads"), "4 threads  files/s  3,000 ±0 %    left out      -  ≥ 2,000: met");
    assert!(text.contains("  make\n  work on K\n  work on e\n"), "{text}");
    assert!(text.contains("8 cores, 4 GiB of memory, Linux 6.1, images on xfs"), "{text}");
    assert!(text.contains("85.0 (afterwards 90.0) µs"), "{text}");

    let markdown = report.markdown();
    assert!(
        markdown.contains("| 1 thread  | files/s | 1,190 ±1 % | 1,000 ±0 % |  1.19 | ≥ 1: met     |"),
        "{markdown}"
    );
    assert!(
        markdown.contains("|-----------|---------|-----------:|-----------:|------:|--------------|"),
        "{markdown}"
    );
    assert!(!report.failed());
}

#[test]
fn what_is_below_failed_or_noisy_is_said() {
    let broken = || Side { failed: Some("no loop device".into()), ..side("e", &[]) };
    let report = report(vec![
        outcome("slow", Some(Goal::Ratio(3.0)), vec![side("K", &[50.0, 100.0, 150.0]), side("e", &[100.0])]),
        outcome("empty", Some(Goal::Value(2000.0)), vec![side("K", &[1999.0])]),
        outcome("half", Some(Goal::Ratio(1.0)), vec![side("K", &[1.0]), broken()]),
        outcome("third", None, vec![side("K", &[1.0]), broken()]),
    ]);
    let text = report.text();
    for want in [
        "Below the expectation: slow: K reaches 1.00 times e's figure, expected is at least 3.",
        "Below the expectation: empty: K reaches 1,999 files/s, expected are at least 2,000.",
        "FAILED: e in half; third: no loop device",
        "≥ 1: not measured",
        "Rounds differ much: slow (K ±50 %).",
    ] {
        assert!(text.contains(want), "'{want}' in {text}");
    }
    assert!(report.failed());
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["sections"][0]["outcomes"][0]["sides"][0]["samples"][0]["median"], 100.0);
    assert_eq!(json["sections"][0]["outcomes"][0]["goal"]["ratio"], 3.0);
}

#[test]
fn changes_stand_beside_what_was_published() {
    let metrics = vec![
        Metric::new("Rename average", "ms", Better::Lower),
        Metric::new("log forces by sync", "", Better::Neither),
    ];
    let with_forces = |name, values: &[f64]| {
        let mut side = side(name, values);
        let mut none = Sample::default();
        values.iter().for_each(|_| none.push(0.0));
        side.samples.push(none);
        side
    };
    let outcome = Outcome {
        title: "dbench".into(),
        metrics,
        goal: None,
        sides: vec![with_forces("sync", &[2.0, 2.2]), with_forces("lazy", &[0.2, 0.22])],
        published: vec![Published { metric: "Rename average", figures: &[2.158, 0.123] }],
    };
    let bar = Bar::change(&outcome, "Rename average", crate::bars::Want::AtMost(-94.0));
    let mut report = report(vec![outcome]);
    report.sections[0].reading = Reading::Change;
    report.bars = vec![bar];
    report.machine.durable_write = vec![40.0, 4000.0];
    let text = report.text();
    let row: Vec<&str> = text
        .lines()
        .find(|l| l.contains("Rename average, ms"))
        .unwrap()
        .split("  ")
        .filter(|c| !c.is_empty())
        .collect();
    let row: Vec<&str> = row.iter().map(|c| c.trim()).collect();
    assert_eq!(
        row,
        ["dbench", "Rename average, ms", "2.10 ±5 %", "0.21 ±5 %", "-90.0 %", "2.16", "0.12", "-94.3 %"]
    );
    assert!(!text.contains("log forces by sync"), "what never happened has no row: {text}");
    assert!(text.contains("MISSED"), "{text}");
    assert!(text.contains("a durable write took 40.0 to 4,000 µs"), "{text}");
    let missed = report.missed();
    assert!(missed.len() == 1 && missed[0].starts_with("dbench: Rename average: -90"), "{missed:?}");
    assert!(!report.failed(), "a bar that was missed is no failure");
}
