use super::*;

#[test]
fn lists_of_processors_are_counted() {
    let lists =
        [("0", Some(1)), ("0-3\n", Some(4)), ("0-3,6,8-9", Some(7)), ("3-1", None), ("", None), ("x", None)];
    for (list, count) in lists {
        assert_eq!(processors(list), count, "{list}");
    }
}

#[test]
fn why_there_are_no_rings_is_said() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, "Y\n").unwrap();
    assert_eq!(why_not_by(path), None);
    std::fs::write(path, "N\n").unwrap();
    assert!(why_not_by(path).unwrap().contains(&format!("echo Y > {path}")));
    let missing = format!("{path}-missing");
    assert!(why_not_by(&missing).unwrap().contains("Linux 6.14"), "{:?}", why_not_by(&missing));
}
