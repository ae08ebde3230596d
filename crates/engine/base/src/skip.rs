//! Visible skips: a test that returns early counts as passed, and libtest shows only the output of
//! tests that fail.
//!
//! [`note`] writes a line `KEDGE-SKIP: <test>: <why>` to the process's standard error, which
//! libtest does not capture, and appends it to the file that `KEDGE_SKIP_LOG` names. `cargo xtask
//! test` sets that variable and prints the number and text of all skips at its end.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// The beginning of each line.
pub const MARK: &str = "KEDGE-SKIP: ";
/// The environment variable that names the file.
pub const LOG: &str = "KEDGE_SKIP_LOG";

static SAID: parking_lot::Mutex<BTreeSet<String>> = parking_lot::Mutex::new(BTreeSet::new());

/// Reports that the test of this thread skips something, once for each reason. The test is
/// identified by the name that libtest gives its thread. With `--test-threads=1` that is `main`, so
/// the place of the call is reported as well.
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
    // Not eprint!, which libtest captures. An error here means that standard error is closed; the
    // file still has the line.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(LOG) {
        append(Path::new(&path), &line).unwrap_or_else(|e| panic!("{}: {e}", Path::new(&path).display()));
    }
}

/// Appends with one write, because test processes run in parallel.
fn append(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
#[path = "skip_tests.rs"]
mod tests;
