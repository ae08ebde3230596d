use super::*;

fn sample(values: &[f64]) -> Sample {
    Sample(values.to_vec())
}

#[test]
fn the_median_is_the_middle_one() {
    assert!(sample(&[]).median().is_nan());
    assert_eq!(sample(&[7.0]).median(), 7.0);
    assert_eq!(sample(&[9.0, 1.0, 4.0]).median(), 4.0);
    assert_eq!(sample(&[9.0, 1.0, 4.0, 5.0]).median(), 4.5);
}

#[test]
fn spread_is_the_farthest_round() {
    assert_eq!(sample(&[100.0, 90.0, 105.0]).spread(), 0.1);
    assert_eq!(sample(&[5.0]).spread(), 0.0);
    assert_eq!(sample(&[0.0, 0.0]).spread(), 0.0);
    assert_eq!(sample(&[]).spread(), 0.0, "0 of nothing, not NaN");
}

#[test]
fn numbers_for_people() {
    let cases = [
        (0.0, "0.00"),
        (0.854, "0.85"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (99.96, "100"),
        (999.4, "999"),
        (1234.0, "1,234"),
        (-1234.0, "-1,234"),
        (-123.0, "-123"),
        (1234567.0, "1,234,567"),
        (f64::NAN, "-"),
    ];
    for (value, want) in cases {
        assert_eq!(number(value), want);
    }
}

#[test]
fn json_has_all_rounds() {
    let json = serde_json::to_value(sample(&[1.0, 3.0])).unwrap();
    assert_eq!(json, serde_json::json!({ "median": 2.0, "spread": 0.5, "rounds": [1.0, 3.0] }));
}
