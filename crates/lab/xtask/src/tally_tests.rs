use super::*;

#[test]
fn results_of_all_programs_add_up() {
    let mut tally = Tally::default();
    for line in [
        "running 30 tests",
        "test result: ok. 30 passed; 0 failed; 1 ignored; 0 measured; 24 filtered out; finished in 3.73s",
        "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        "    test result: nothing of the kind",
        "test result: ok. many passed; 0 failed; 0 ignored",
    ] {
        tally.line(line);
    }
    tally.skips("KEDGE-SKIP: a (f.rs:1): why\nsomething else\nKEDGE-SKIP: b (f.rs:2): why\nKEDGE-SKIP: a (f.rs:1): why\n");
    let text = tally.print();
    assert_eq!(
        text,
        "skipped: a (f.rs:1): why\nskipped: b (f.rs:2): why\n34 passed, 2 failed, 3 skipped, in 2 test programs\n"
    );
}

#[test]
fn the_slowest_tests_are_named_with_their_programs() {
    let mut tally = Tally::default();
    tally.line("test program: kedge-log crash");
    for i in 0..12 {
        tally.line(&format!("test cuts::number_{i} ... ok <{i}.500s>"));
    }
    tally.line("test program: kedge freeze");
    tally.line("test thaws ... FAILED <99.000s>");
    tally.line("test without_a_time ... ok");
    let text = tally.print();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), SLOWEST + 1);
    assert_eq!(lines[0], "   99.0 s  kedge freeze: thaws");
    assert_eq!(lines[1], "   11.5 s  kedge-log crash: cuts::number_11");
    assert_eq!(lines[9], "    3.5 s  kedge-log crash: cuts::number_3");
}

#[test]
fn a_log_is_read_once() {
    let path = fresh_log().unwrap();
    std::fs::write(&path, "KEDGE-SKIP: x\n").unwrap();
    assert_eq!(read_log(&path).unwrap(), "KEDGE-SKIP: x\n");
    read_log(&path).unwrap_err();
}

/// This crate and `kedge_base` use the same names, although this crate does not depend on it.
#[test]
fn the_names_are_those_that_the_tests_use() {
    let source = include_str!("../../../engine/base/src/skip.rs");
    for line in [format!("pub const MARK: &str = \"{MARK}\";"), format!("pub const LOG: &str = \"{LOG}\";")] {
        assert!(source.contains(&line), "{line}");
    }
}
