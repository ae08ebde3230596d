//! The totals of a test run, over all test programs: passed, failed, skipped.
//!
//! libtest prints one line of results for each program, which is parsed here. libtest counts a test
//! that skips something as passed, but the test notes the skip in a file (`kedge_base::skip`).
//! Tests with `#[ignore]` and tests that are filtered out are not reported.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Environment variable with the path of that file. It must be the same as in `kedge_base::skip`,
/// on which this crate must not depend.
pub const LOG: &str = "KEDGE_SKIP_LOG";
const MARK: &str = "KEDGE-SKIP: ";

/// Prefix of the line before the output of a test program; the program's name follows.
pub const PROGRAM: &str = "test program: ";
/// Number of the slowest tests that the closing lines name.
const SLOWEST: usize = 10;

#[derive(Default, Debug)]
pub struct Tally {
    pub programs: u64,
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
    /// What was skipped, and where. A skip counts once, even if the test runs in several profiles.
    pub skips: BTreeSet<String>,
    program: String,
    /// Seconds and name of each test.
    times: Vec<(f64, String)>,
}

impl Tally {
    /// Adds a line of output if it is the last line of a test program, such as `test result: ok. 30
    /// passed; 0 failed; 1 ignored; 0 measured; 24 filtered out; finished in 3.73s`.
    ///
    /// A line such as `test a::b ... ok <1.234s>` adds the time of a test.
    pub fn line(&mut self, line: &str) {
        if let Some(program) = line.strip_prefix(PROGRAM) {
            program.clone_into(&mut self.program);
        }
        if let Some((name, seconds)) = time(line) {
            self.times.push((seconds, format!("{}: {name}", self.program)));
        }
        let Some((_, counts)) =
            line.trim().strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        let of = |word: &str| {
            let part = counts.split("; ").find_map(|part| part.strip_suffix(word));
            part.and_then(|number| number.trim().parse::<u64>().ok())
        };
        let (Some(passed), Some(failed), Some(ignored)) = (of(" passed"), of(" failed"), of(" ignored"))
        else {
            return;
        };
        self.programs += 1;
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
    }

    /// Adds the skips that the tests wrote into the file.
    pub fn skips(&mut self, log: &str) {
        self.skips.extend(log.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned));
    }

    /// Returns the closing lines.
    pub fn print(&self) -> String {
        let mut text = String::new();
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (seconds, name) in times.into_iter().take(SLOWEST) {
            text += &format!("{seconds:>7.1} s  {name}\n");
        }
        for skip in &self.skips {
            text += &format!("skipped: {skip}\n");
        }
        let skipped = self.skips.len() as u64 + self.ignored;
        text += &format!(
            "{} passed, {} failed, {skipped} skipped, in {} test programs\n",
            self.passed, self.failed, self.programs
        );
        text
    }
}

/// Parses the name and the seconds of a test that has ended.
fn time(line: &str) -> Option<(&str, f64)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = result.split_once(" <")?.1.strip_suffix("s>")?;
    Some((name, seconds.parse().ok()?))
}

/// Creates an empty file for the skips of this run.
pub fn fresh_log() -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("kedge-skips-{}", std::process::id()));
    std::fs::write(&path, "").with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Reads the file and removes it.
pub fn read_log(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    std::fs::remove_file(path).with_context(|| path.display().to_string())?;
    Ok(text)
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
