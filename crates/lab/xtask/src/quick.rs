//! The tests of the crates that changed, for `cargo xtask quick`.

use crate::commits;
use crate::steps::Steps;
use crate::tools;
use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;
use std::collections::BTreeSet;
use std::path::Path;

/// Crates whose tests mount, start servers or search crash states for minutes. Of these only the
/// unit tests run.
const SLOW: &[&str] = &["kedge", "kedge-bench", "kedge-sim", "kedge-ceph", "kedge-crash-reality"];

/// Lints the crates that differ from where this branch left `main`, committed or not, and runs
/// their tests.
pub fn tests(steps: &mut Steps) {
    let mut changed = BTreeSet::new();
    steps.run("subjects of the commits", || commits::check(base()?.trim()));
    steps.run("which crates changed", || {
        changed = changed_crates()?;
        println!("{}", changed.iter().cloned().collect::<Vec<_>>().join(" "));
        Ok(())
    });
    if changed.is_empty() {
        return;
    }
    let named = |crates: &[&String]| -> Vec<String> {
        crates.iter().flat_map(|name| ["-p".to_owned(), (*name).clone()]).collect()
    };
    let (slow, fast): (Vec<&String>, Vec<&String>) =
        changed.iter().partition(|name| SLOW.contains(&name.as_str()));
    steps.run("lints of the changed crates", || {
        let all: Vec<&String> = changed.iter().collect();
        cargo(&["clippy"], &named(&all), &["--all-targets", "--", "-D", "warnings"])
    });
    if !fast.is_empty() {
        steps.run("tests of the changed crates", || cargo(&["test", "--quiet"], &named(&fast), &[]));
    }
    if !slow.is_empty() {
        steps.run("unit tests of the changed crates whose other tests are slow", || {
            cargo(&["test", "--quiet"], &named(&slow), &["--lib", "--bins"])
        });
    }
}

fn cargo(before: &[&str], crates: &[String], after: &[&str]) -> Result<()> {
    let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
    tools::cargo(&[before, &crates, after].concat())
}

/// The packages with a file that differs from the common ancestor with `main`.
fn changed_crates() -> Result<BTreeSet<String>> {
    let base = base()?;
    let mut files = tools::git(&["diff", "--name-only", base.trim()])?;
    files += &tools::git(&["ls-files", "--others", "--exclude-standard"])?;
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let mut folders = Vec::new();
    for package in &metadata.packages {
        let folder = package.manifest_path.as_std_path().parent().context("a manifest lies in a folder")?;
        folders.push((folder.strip_prefix(root)?.to_owned(), package.name.to_string()));
    }
    let changed = files.lines().filter_map(|file| owner(&folders, Path::new(file)));
    Ok(changed.map(str::to_owned).collect())
}

fn owner<'a>(folders: &'a [(std::path::PathBuf, String)], file: &Path) -> Option<&'a str> {
    folders.iter().find(|(folder, _)| file.starts_with(folder)).map(|(_, name)| &**name)
}

/// The commit at which this branch left `main`.
fn base() -> Result<String> {
    tools::git(&["merge-base", "HEAD", "main"]).or_else(|_| tools::git(&["rev-parse", "HEAD"]))
}

#[cfg(test)]
#[path = "quick_tests.rs"]
mod quick_tests;
