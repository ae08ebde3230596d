//! Visible skips. A test that returns early counts as passed, and libtest shows the output of
//! failed tests only, so without this module a skip would be invisible.
//!
//! [`note`] writes a line `KEDGE-SKIP: <test>: <why>` to the process's standard error, which
//! libtest does not capture, and appends it to the file that `KEDGE_SKIP_LOG` names. `cargo xtask
//! test` sets that variable and prints the number and text of all skips at its end.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// The beginning of each line that reports a skip.
pub const MARK: &str = "KEDGE-SKIP: ";
/// The environment variable with the path of the file that collects the skips.
pub const LOG: &str = "KEDGE_SKIP_LOG";

static SAID: parking_lot::Mutex<BTreeSet<String>> = parking_lot::Mutex::new(BTreeSet::new());

/// Reports that the calling thread's test skips something; the same reason is reported once for
/// each call site. The test is identified by the name that libtest gives its thread. With
/// `--test-threads=1` that name is `main`, so the call site is reported as well.
///
/// # Panics
/// If the file cannot be written: a skip that is not counted would count as a passed test.
#[track_caller]
pub fn note(why: &str) {
    let (thread, place) = (std::thread::current(), std::panic::Location::caller());
    let test = thread.name().unwrap_or("unnamed");
    let line = format!("{MARK}{test} ({}:{}): {}\n", place.file(), place.line(), why.replace('\n', " "));
    if !SAID.lock().insert(line.clone()) {
        return;
    }
    // Not eprint!, because libtest captures its output. An error here means that standard error is
    // closed; the file still receives the line.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(LOG) {
        append(Path::new(&path), &line).unwrap_or_else(|e| panic!("{}: {e}", Path::new(&path).display()));
    }
}

/// Appends the line with a single write, because test processes append to the file concurrently.
fn append(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
#[path = "skip_tests.rs"]
mod tests;
