//! Writes lines to standard error, and never panics.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard error, as a process that serves must do it: `eprintln!` panics if the
/// line cannot be written, for example because a log file is on a full file system, and a panic
/// shuts the mount down.
pub fn note(line: impl Display) {
    // There is no other place for the line.
    let _unwritable = writeln!(std::io::stderr(), "kedge: {line}");
}

/// Writes a warning to standard error, like [`note`].
pub fn warn(line: impl Display) {
    note(format_args!("warning: {line}"));
}
