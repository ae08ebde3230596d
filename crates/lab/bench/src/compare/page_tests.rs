use super::*;
use crate::contest::{Better, Metric};
use crate::sample::Sample;

fn side(name: &'static str, rounds: &[f64], failed: Option<&str>) -> Side {
    let mut sample = Sample::default();
    rounds.iter().for_each(|v| sample.push(*v));
    Side { name, command: String::new(), samples: vec![sample], failed: failed.map(str::to_owned) }
}

fn outcome(sides: Vec<Side>) -> Outcome {
    let metrics = vec![Metric::new("", "files/s", Better::Higher)];
    Outcome { title: "a <b> & \"c\"".into(), metrics, goal: None, sides, published: vec![] }
}

#[test]
fn the_fastest_that_keeps_its_data_decides_the_scale() {
    let sides = vec![
        side("KedgeFS", &[100.0], None),
        side("KedgeFS in process", &[900.0], None),
        side("ext4", &[200.0], None),
        side("tmpfs", &[5000.0], None),
    ];
    assert_eq!(scale(&outcome(sides)), 250.0);
    let alone = vec![side("KedgeFS", &[100.0], None), side("ext4", &[80.0], None)];
    assert_eq!(scale(&outcome(alone)), 100.0, "nothing is beyond it");
    assert_eq!(scale(&outcome(vec![side("tmpfs", &[7.0], None)])), 7.0);
    assert_eq!(scale(&outcome(vec![side("ext4", &[], Some("gone"))])), 1.0, "no division by zero");
}

#[test]
fn a_chart_shows_each_contestant_and_says_what_failed() {
    let text = chart(&outcome(vec![
        side("KedgeFS", &[100.0, 120.0], None),
        side("ext4", &[200.0], Some("it broke")),
        side("tmpfs", &[5000.0], None),
    ]));
    assert!(text.contains("a &lt;b&gt; &amp; &quot;c&quot;"), "{text}");
    assert_eq!(text.matches("<rect").count(), 2, "none for what failed: {text}");
    assert_eq!(text.matches("<path").count(), 1, "an arrow: {text}");
    assert!(text.contains(">failed<") && text.contains("110 ") && text.contains("5,000 "), "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn a_missed_bar_is_marked() {
    let mut outcome = outcome(vec![side("KedgeFS", &[10.0], None), side("null", &[20.0], None)]);
    outcome.title = "empty <files>".into();
    let bar = |limit| {
        Bar::new(&outcome, "by null", "times", crate::bars::Want::AtLeast(limit), |at| at(0, "") / at(1, ""))
    };
    let text = bars(&[bar(0.8), bar(0.4)]);
    assert_eq!(text.matches("<tr class=\"missed\">").count(), 1, "{text}");
    assert!(
        text.contains("<td>empty &lt;files&gt;: by null</td><td>≥ 0.80 times</td><td>0.50 times</td>"),
        "{text}"
    );
    assert!(text.contains("<td>MISSED</td>") && text.contains("<td>met</td>"), "{text}");
    assert_eq!(bars(&[]), "");
}
