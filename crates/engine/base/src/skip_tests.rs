use super::*;
use std::process::Command;

const CHILD: &str = "KEDGE_SKIP_TEST_CHILD";

/// Run by the test below in a child process: skips something and does nothing else.
#[test]
fn leaves_something_out() {
    if std::env::var_os(CHILD).is_some() {
        note("the reason\nof two lines");
        (0..3).for_each(|_| note("another one"));
    }
}

/// The child's test passes, so libtest shows none of its output. The skip is still shown and
/// counted.
#[test]
fn a_skip_is_seen_though_the_test_passes() {
    let path = std::env::temp_dir().join(format!("kedge-skip-test-{}", std::process::id()));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "skip::tests::leaves_something_out"]).env(CHILD, "1").env(LOG, &path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    for text in [&log, &said] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(MARK)).collect();
        assert_eq!(lines.len(), 2, "each skip once: {text}");
        assert!(
            lines[0].contains("skip::tests::leaves_something_out") && lines[0].contains("skip_tests.rs:"),
            "{text}"
        );
        assert!(lines[0].ends_with("the reason of two lines"), "{text}");
    }
}

#[test]
fn a_log_that_cannot_be_written_is_an_error() {
    append(Path::new("/nonexistent/dir/file"), "x").unwrap_err();
}
