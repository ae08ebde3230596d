//! Checks the subjects of a branch's commits: `crates: imperative`, as CONTRIBUTING.md says.

use anyhow::{Result, ensure};
use std::path::Path;

/// Limit of a subject's length, so that `git log --oneline` shows it whole beside a hash in 80
/// columns.
const LENGTH_MAX: usize = 72;

/// What a subject may start with besides the folder of a crate.
const OTHERS: &[&str] = &["docs", "workspace", "fuzz", "kedge", "crash"];

/// Checks the subjects of the commits since `base`.
pub fn check(base: &str) -> Result<()> {
    let crates = crate::circles::crates(Path::new("crates"))?;
    let names: Vec<&str> = crates.iter().filter_map(|dir| dir.file_name()?.to_str()).collect();
    let subjects = crate::tools::git(&["log", "--no-merges", "--format=%s", &format!("{base}..HEAD")])?;
    let faults: Vec<String> = subjects.lines().filter_map(|subject| fault(subject, &names)).collect();
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Returns what is wrong with a subject.
fn fault(subject: &str, crates: &[&str]) -> Option<String> {
    if subject.chars().count() > LENGTH_MAX {
        return Some(format!("\"{subject}\" has more than {LENGTH_MAX} characters"));
    }
    let Some((prefix, _)) = subject.split_once(": ") else {
        return Some(format!("\"{subject}\" names no crate"));
    };
    let unknown = prefix.split(", ").find(|name| !crates.contains(name) && !OTHERS.contains(name))?;
    Some(format!("\"{subject}\": {unknown} is no crate's folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_names_crates_and_is_short() {
        let long = format!("fs: {}", "x".repeat(LENGTH_MAX - 3));
        for bad in ["mend it", "kedgefs: mend it", "fs, x: mend it", ": mend it", &long] {
            assert!(fault(bad, &["fs", "log"]).is_some(), "{bad}");
        }
        for good in ["fs: mend it", "log, docs: mend: it", &long[..LENGTH_MAX]] {
            assert_eq!(fault(good, &["fs", "log"]), None);
        }
    }
}
