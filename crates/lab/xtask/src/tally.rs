//! The totals of a test run, over all test programs: passed, failed, skipped.
//!
//! libtest prints one line for each program, which is parsed here. libtest counts a test that skips
//! something as passed, but the test reports the skip in a file (`kedge_base::skip`). `#[ignore]`
//! and tests that are filtered out are not reported.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The environment variable that names the file; as in `kedge_base::skip`, which this crate must
/// not depend on.
pub const LOG: &str = "KEDGE_SKIP_LOG";
const MARK: &str = "KEDGE-SKIP: ";

#[derive(Default, Debug, PartialEq, Eq)]
pub struct Tally {
    pub programs: u64,
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
    /// What was skipped, and where. Tests run in several profiles, but each skip counts once.
    pub skips: BTreeSet<String>,
}

impl Tally {
    /// Adds a line of output, if it is the last one of a test program: `test result: ok. 30 passed;
    /// 0 failed; 1 ignored; 0 measured; 24 filtered out; finished in 3.73s`.
    pub fn line(&mut self, line: &str) {
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

    /// Adds what the tests wrote into the file.
    pub fn skips(&mut self, log: &str) {
        self.skips.extend(log.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned));
    }

    /// The closing lines.
    pub fn print(&self) -> String {
        let mut text = String::new();
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

/// Creates an empty file, in which the tests of this run write their skips.
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
