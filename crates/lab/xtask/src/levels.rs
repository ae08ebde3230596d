//! Checks the levels that the front page of a crate lists: a file uses only files of its own level
//! and of earlier levels.
//!
//! The list follows the sentence [`SENTENCE`]. Each of its numbered entries names modules in
//! backquotes. A module that is not named has the level of the nearest enclosing module that is.
//! `a` -> `b` anywhere on the page allows this edge to a later level, and the page gives the
//! reason.

use crate::circles::{self, Files};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const SENTENCE: &str = "A file uses only those before it";

/// The crates whose front page must have the list. Without this a reworded sentence would end the
/// check of its crate without a message.
const LISTED: [&str; 7] = ["btree", "device", "fs", "log", "protocol", "sched", "store"];

/// The levels and exceptions on the front page of a crate.
#[derive(Default, PartialEq, Eq, Debug)]
struct Page {
    levels: BTreeMap<String, u32>,
    allowed: BTreeSet<(String, String)>,
}

pub fn check() -> Result<()> {
    check_in(Path::new("crates"), &LISTED)
}

fn check_in(wings: &Path, listed: &[&str]) -> Result<()> {
    let (mut bad, mut crates) = (0, 0);
    let mut missing: BTreeSet<&str> = listed.iter().copied().collect();
    for dir in circles::crates(wings)? {
        let Ok(text) = std::fs::read_to_string(dir.join("src/lib.rs")) else { continue };
        let Some(page) = page(&text) else { continue };
        crates += 1;
        missing.retain(|name| !dir.ends_with(name));
        for fault in faults(&page, &circles::files_of(&dir)?) {
            println!("{}: {fault}", dir.file_name().unwrap_or_default().display());
            bad += 1;
        }
    }
    if !missing.is_empty() {
        bail!("no levels on the front pages of {missing:?}: the sentence {SENTENCE:?} is missing");
    }
    if bad > 0 || crates == 0 {
        bail!("{bad} edges between files against the levels of {crates} crates");
    }
    Ok(())
}

fn faults(page: &Page, files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for module in page.levels.keys() {
        let inside = format!("{module}::");
        if !files.keys().any(|file| file == module || file.starts_with(&inside)) {
            faults.push(format!("the levels name `{module}`, which does not exist"));
        }
    }
    let mut unused = page.allowed.clone();
    for (from, used) in circles::edges(files) {
        for to in used.into_iter().filter(|_| !is_test(files, from)) {
            // The root has no level: it joins the modules and re-exports names.
            if from.is_empty() || to.is_empty() {
                continue;
            }
            let edge = (from.to_owned(), to.to_owned());
            match (level(page, from), level(page, to)) {
                (Some(a), Some(b)) if a >= b => {}
                (Some(_), Some(_)) if page.allowed.contains(&edge) => drop(unused.remove(&edge)),
                (Some(a), Some(b)) => faults.push(format!("{from} (level {a}) uses {to} (level {b})")),
                (None, _) => faults.push(format!("{from} has no level")),
                (_, None) => faults.push(format!("{to} has no level")),
            }
        }
    }
    faults.extend(unused.into_iter().map(|(from, to)| format!("`{from}` -> `{to}` is allowed and not used")));
    faults.sort();
    faults.dedup();
    faults
}

/// Whether a module, or one that encloses it, is compiled only for tests.
fn is_test(files: &Files, module: &str) -> bool {
    let mut at = module;
    loop {
        let (outer, name) = at.rsplit_once("::").unwrap_or(("", at));
        let declared = |text: &String| text.contains(&format!("#[cfg(test)]\nmod {name};"));
        if files.get(outer).is_some_and(declared) {
            return true;
        }
        if outer.is_empty() {
            return false;
        }
        at = outer;
    }
}

/// The level of the module, or of the nearest enclosing module that has one.
fn level(page: &Page, module: &str) -> Option<u32> {
    let mut at = module;
    loop {
        if let Some(level) = page.levels.get(at) {
            return Some(*level);
        }
        at = &at[..at.rfind("::")?];
    }
}

/// Parses the front page. Returns `None` if it lists no levels.
fn page(text: &str) -> Option<Page> {
    let doc: String =
        text.lines().map_while(|l| l.strip_prefix("//!")).map(|l| format!("{}\n", l.trim())).collect();
    let list = &doc[doc.find(SENTENCE)?..];
    let mut page = Page::default();
    let list = list[list.find("\n1. ")?..].split("\n\n").next().unwrap_or_default().replace('\n', " ");
    for (level, entry) in (1..).map_while(|n| Some((n, list.split_once(&format!(" {n}. "))?.1))) {
        let entry = entry.split(&format!(" {}. ", level + 1)).next().unwrap_or_default();
        for module in quoted(entry).flat_map(expand).filter(|name| !name.starts_with("super::")) {
            page.levels.entry(module).or_insert(level);
        }
    }
    let flat = doc.replace('\n', " ");
    for (at, _) in flat.match_indices("` -> `") {
        let from = flat[..at].rsplit('`').next().unwrap_or_default();
        let to = flat[at + "` -> `".len()..].split('`').next().unwrap_or_default();
        page.allowed.insert((from.to_owned(), to.to_owned()));
    }
    Some(page)
}

/// The texts in backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Expands `a::{b, c}`, which names two modules.
fn expand(name: &str) -> Vec<String> {
    match name.split_once("::{") {
        Some((outer, inner)) => {
            let inner = inner.trim_end_matches('}').split(',');
            inner.map(|one| format!("{outer}::{}", one.trim())).collect()
        }
        None => vec![name.to_owned()],
    }
}

#[cfg(test)]
#[path = "levels_tests.rs"]
mod tests;
