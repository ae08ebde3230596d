use super::{Max, figures, parse_bytes, parse_files};
use serde_json::json;

#[test]
fn maxima_read_as_people_write_them() {
    for (text, max) in [
        ("5000", Some(5000)),
        ("100k", Some(100_000)),
        ("100K", Some(100_000)),
        ("2M", Some(2_000_000)),
        ("none", None),
    ] {
        assert_eq!(parse_files(text), Ok(Max(max)), "{text}");
    }
    for bad in ["", "k", "-1", "+1", "1.5M", "many", "99999999999999999999", "18446744073709551615M"] {
        assert!(parse_files(bad).is_err(), "{bad}");
    }
    assert_eq!(parse_bytes("5G"), Ok(Max(Some(5 << 30))));
    assert_eq!(parse_bytes("none"), Ok(Max(None)));
    assert!(parse_bytes("much").is_err());
}

#[test]
fn figures_without_a_maximum_show_the_use_alone() {
    let row = json!({ "bytes": 4096, "bytes_max": null, "files": 3, "files_max": 10 });
    assert_eq!(figures(&row), ("4 KiB".into(), "3 of 10".into()));
}
