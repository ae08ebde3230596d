use super::*;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/results");

fn published(name: &str) -> String {
    std::fs::read_to_string(format!("{RESULTS}/{name}")).unwrap()
}

#[test]
fn the_published_picture_is_that_of_the_published_report() {
    let drawn = svg(&published("processors.md")).unwrap();
    let command = "kedge-lab plot docs/results/processors.md --out docs/results/processors.svg";
    assert!(drawn == published("processors.svg"), "draw it again: {command}");
}

#[test]
fn each_number_of_processors_is_a_position_and_each_load_a_line() {
    let sections = sections(&published("processors.md")).unwrap();
    let panels = panels(&sections);
    assert_eq!(panels.len(), 2, "rates and latencies; what has no unit has no panel");
    for panel in &panels {
        assert_eq!(panel.positions.first().map(String::as_str), Some("1"));
        assert_eq!(panel.positions.last().map(String::as_str), Some("64"));
        assert_eq!(panel.lines.len(), 4, "{}", panel.title);
        let all = panel.lines.iter().flat_map(|(_, values)| values);
        assert!(all.clone().all(|value| value.is_finite() && *value > 0.0), "{}", panel.title);
        assert_eq!(all.count(), 4 * panel.positions.len());
    }
}

#[test]
fn rules_that_are_compared_have_lines_of_their_own() {
    let report = "KedgeFS 0.1.0, reproduce x, median of 2 rounds: 2 cores, images on ext4, a durable write takes 1\n\
        ### On 1 processor that is simulated\n\
        | | unit | old | new | change |\n|---|---|--:|--:|---|\n\
        | creates | operations, /s | 1,000 ±1 % | 2,000 ±2 % | +100 % |\n\
        ### Remarks\n| creates | operations, /s | 7 | 7 |\n\
        ### On 4 processors that are simulated\n\
        | | unit | old | new | change |\n|---|---|--:|--:|---|\n\
        | creates | operations, /s | failed | 8,000 ±2 % | - |\n";
    let panels = panels(&sections(report).unwrap());
    assert_eq!(panels.len(), 1);
    let [(old, olds), (new, news)] = &panels[0].lines[..] else { panic!("{:?}", panels[0].lines) };
    assert_eq!((&**old, &**new), ("creates, old", "creates, new"));
    assert!(olds[0] == 1000.0 && olds[1].is_nan(), "{olds:?}");
    assert_eq!(news, &[2000.0, 8000.0]);
    assert!(svg(report).unwrap().contains("KedgeFS 0.1.0, reproduce x, median of 2 rounds: 2 cores"));
}

#[test]
fn what_is_no_such_report_is_refused() {
    for text in ["", "# Scale\n", &published("later.md")] {
        assert!(svg(text).is_err(), "{text}");
    }
}
