//! A short comparison for the file systems that this kernel has, and a test that the comparison can
//! find a difference.

use std::process::{Command, Output};

/// The exit code of the program if it could test no file system.
const NOTHING: i32 = 3;

fn reality(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_crash-reality");
    Command::new(program).arg("run").args(args).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether a file system was tested; otherwise the skip is reported.
fn was_tried(output: &Output) -> bool {
    let text = text(output);
    for line in text.lines().filter(|l| l.contains(": left out: ")) {
        kedge_base::skip::note(line);
    }
    output.status.code() != Some(NOTHING)
}

fn is_left_out() -> bool {
    let no_fuse = std::env::var_os("KEDGE_NO_FUSE").is_some_and(|v| v == "1");
    if no_fuse {
        kedge_base::skip::note("KEDGE_NO_FUSE=1: nothing is mounted");
    }
    no_fuse
}

#[test]
fn what_the_kernel_shows_is_allowed() {
    if is_left_out() {
        return;
    }
    let output = reality(&["--quick", "--states", "16"]);
    if was_tried(&output) {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }
}

/// `strict` allows only one tree for each step, which excludes pages that the kernel wrote in
/// another order.
#[test]
fn a_model_that_is_too_strict_is_found_out() {
    if is_left_out() {
        return;
    }
    let two_pages = "create f; write f 0+8192 | write f 0+4096; write f 4096+4096; out f 1; other; fsync f";
    let output = reality(&["--fs", "ext4", "--model", "strict", "--states", "60", "--workload", two_pages]);
    if was_tried(&output) {
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(
            text(&output).contains("4096×A 4096×D") || text(&output).contains("4096×B 4096×D"),
            "{}",
            text(&output)
        );
    }
}
