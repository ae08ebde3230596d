use super::*;

fn panel(title: &str, unit: &str, points: &[(&str, [f64; 2])], bar: Option<f64>) -> Panel {
    let values = |line: usize| points.iter().map(|(_, values)| values[line]).collect();
    Panel {
        title: title.to_owned(),
        unit: unit.to_owned(),
        positions: points.iter().map(|(name, _)| (*name).to_owned()).collect(),
        lines: vec![("first & best".to_owned(), values(0)), ("second".to_owned(), values(1))],
        bar,
    }
}

#[test]
fn each_figure_has_its_place() {
    let costs = [("10,000", [1.0, 2.0]), ("100,000", [1.5, f64::NAN]), ("1,000,000", [2.0, 4.0])];
    let fsck = [("10,000", [0.1, 0.2]), ("1,000,000", [2.0, 4.0])];
    let opening = [("50 %", [0.1, f64::NAN]), ("95 %", [0.4, f64::NAN])];
    let panels = [
        panel("costs", "µs", &costs, None),
        panel("fsck", "s", &fsck, Some(10.0)),
        panel("opening", "s", &opening, Some(1.0)),
    ];
    let picture = svg("How \"costs\" grow", &panels, "KedgeFS & others");
    assert!(
        picture.contains("aria-label=\"How &quot;costs&quot; grow\"")
            && picture.contains("KedgeFS &amp; others")
    );
    assert_eq!(picture.matches("<g ").count(), 3, "a panel each");
    assert_eq!(picture.matches("<path ").count(), 5, "what was not measured has no line");
    assert_eq!(picture.matches("<circle ").count(), (3 + 2 + 2 + 2 + 2) + 6, "points, and names");
    assert_eq!(picture.matches("class=\"bar\"").count(), 2, "fsck's and opening's");
    assert!(picture.contains("first &amp; best: 2.00 µs") && picture.contains("second: failed"), "{picture}");
    // 2 of 4 µs is at half of the height, and the middle size is in the middle.
    let (middle, half) = (f64::midpoint(LEFT + MARGIN, WIDTH - RIGHT), TOP + PLOT / 2.0);
    let line = format!("d=\"M{:.1} {:.1} L{middle:.1}", LEFT + MARGIN, TOP + PLOT * 0.75);
    assert!(picture.contains(&line), "{line} in {picture}");
    assert!(picture.contains(&format!(" L{:.1} {half:.1}\"", WIDTH - RIGHT)), "{picture}");
    assert!(picture.contains("prefers-color-scheme: dark"));
    // The picture refers to no other file: the name space is its only address.
    assert_eq!(picture.matches("http").count(), 1, "the name space alone");
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
}

#[test]
fn axes_end_at_round_numbers() {
    for (value, top) in
        [(0.7, 0.8), (1.0, 1.0), (1.01, 2.0), (4.2, 5.0), (9.0, 10.0), (61.0, 80.0), (10.0, 10.0)]
    {
        let (reached, steps) = round_up(value);
        assert!((reached - top).abs() < 1e-9 && steps >= 3, "{value}: {reached}");
    }
    assert_eq!((position("10,000"), position("95 %"), position("ext4")), (Some(10_000.0), Some(95.0), None));
}

#[test]
fn labels_of_the_vertical_axis_are_short() {
    let labels = [0.0, 0.01, 2.5, 100_000.0, 1e6, 2.5e6, 1e8].map(tick);
    assert_eq!(labels, ["0", "0.010", "2.50", "100,000", "1M", "2.5M", "100M"]);
    assert!(labels.iter().all(|label| label.len() <= 7));
}

#[test]
fn names_stand_apart_within_the_panel() {
    let at = |places: &[f64]| -> Vec<f64> {
        let names = places.iter().map(|at| (*at, 0, String::new())).collect();
        spread(names).into_iter().map(|name| name.0).collect()
    };
    assert_eq!(at(&[100.0, 50.0]), [50.0, 100.0]);
    let close = at(&[100.0, 101.0, 102.0]);
    assert!(close.windows(2).all(|pair| pair[1] - pair[0] >= NAME), "{close:?}");
    let bottom = at(&[TOP + PLOT; 4]);
    assert!(
        bottom.iter().all(|at| *at <= TOP + PLOT) && bottom.windows(2).all(|p| p[1] - p[0] >= NAME - 1e-9)
    );
}

#[test]
fn values_that_lie_far_apart_have_powers_of_ten() {
    let (axis, ticks) = vertical(&[0.0, 1.0, 40.0]);
    assert!(!axis.logarithmic && ticks.first() == Some(&0.0) && ticks.last() == Some(&40.0));
    let (axis, ticks) = vertical(&[0.5, 300.0]);
    assert!(axis.logarithmic);
    assert_eq!(ticks, [0.1, 1.0, 10.0, 100.0, 1000.0]);
    assert!((axis.at(10.0) - (TOP + PLOT / 2.0)).abs() < 1e-6, "the middle of four powers");
    assert!(axis.at(0.5) > axis.at(300.0), "large is up");
    assert_eq!(vertical(&[]).1.len(), 6, "nothing was measured");
}

#[test]
fn positions_over_a_wide_range_have_equal_steps_for_equal_factors() {
    let points = [("1", [1.0, 1.0]), ("4", [2.0, 1.0]), ("16", [3.0, 1.0])];
    let picture = svg("t", &[panel("t", "/s", &points, None)], "");
    let middle = f64::midpoint(LEFT + MARGIN, WIDTH - RIGHT);
    assert!(picture.contains(&format!("<text class=\"soft\" x=\"{middle:.1}\"")), "{picture}");
    let points = [("1", [1.0, 1.0]), ("4", [2.0, 1.0]), ("9", [3.0, 1.0])];
    let picture = svg("t", &[panel("t", "/s", &points, None)], "");
    assert!(!picture.contains(&format!("x=\"{middle:.1}\"")), "{picture}");
}

#[test]
fn long_names_make_the_picture_wider() {
    let points = [("1", [1.0, 1.0]), ("4", [2.0, 1.0])];
    let width = |name: &str| {
        let mut panel = panel("t", "/s", &points, None);
        panel.lines[0].0 = name.to_owned();
        let picture = svg("t", &[panel], "");
        let (_, rest) = picture.split_once(" width=\"").unwrap();
        rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
    };
    assert_eq!(width("short"), WIDTH);
    assert!(width(&"x".repeat(60)) >= WIDTH - RIGHT + 60.0 * LETTER);
}
