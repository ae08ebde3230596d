//! Finds circles between the files of a crate: a file uses each file that it names with `crate::`
//! or `super::` paths, outside tests. A re-exported name counts as that of the file that defines
//! it.

use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each module path ("" for the root): the file's text, without comments and tests.
pub(crate) type Files = BTreeMap<String, String>;

pub fn check() -> Result<()> {
    check_in(Path::new("crates"))
}

fn check_in(wings: &Path) -> Result<()> {
    let mut bad = 0;
    for dir in crates(wings)? {
        let (files, name) = (files_of(&dir)?, dir.file_name().unwrap_or_default().to_owned());
        let found = circles(&edges(&files));
        let name = name.to_string_lossy();
        for circle in &found {
            println!("{name}: circle of {}: {}", circle.len(), circle.join(", "));
        }
        bad += found.len();
    }
    if bad > 0 {
        bail!("{bad} circles between files");
    }
    Ok(())
}

/// The folders of all crates.
pub(crate) fn crates(wings: &Path) -> Result<Vec<PathBuf>> {
    let mut crates = Vec::new();
    for wing in fs::read_dir(wings)? {
        for entry in fs::read_dir(wing?.path())? {
            crates.push(entry?.path());
        }
    }
    crates.sort();
    Ok(crates)
}

/// The modules of the crate in a folder.
pub(crate) fn files_of(dir: &Path) -> Result<Files> {
    let mut files = Files::new();
    collect(&dir.join("src"), "", &mut files)?;
    Ok(files)
}

fn collect(dir: &Path, prefix: &str, files: &mut Files) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let module = if prefix.is_empty() { stem.clone() } else { format!("{prefix}::{stem}") };
        if path.is_dir() {
            collect(&path, &module, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") && !stem.ends_with("_tests") {
            let module = if matches!(&*stem, "lib" | "main" | "mod") { prefix.to_owned() } else { module };
            files.insert(module, code(&fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// Removes comments, and everything from the first test module on.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

pub(crate) fn edges(files: &Files) -> BTreeMap<&str, BTreeSet<&str>> {
    let of = |module: &str, text: &str| -> BTreeSet<&str> {
        let used = paths(text).into_iter().filter_map(|path| {
            let (at, name) = resolve(files, &absolute(module, &path));
            files.get_key_value(&follow(files, at, &name)).map(|(module, _)| module.as_str())
        });
        used.filter(|used| *used != module).collect()
    };
    files.iter().map(|(module, text)| (module.as_str(), of(module, text))).collect()
}

/// All paths that begin with `crate` or `super`, with groups expanded.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for word in ["crate::", "super::"] {
        for (at, _) in text.match_indices(word) {
            // Skips a match in the middle of a longer path or name.
            if !text[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':')) {
                tree(&text[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Expands one use tree. Returns its length in bytes.
fn tree(text: &str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    let start = text.len() - text.trim_start().len();
    let rest = &text[start..];
    let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if let Some(group) = rest.strip_prefix('{') {
        let mut at = 0;
        while !group[at..].trim_start().starts_with('}') && at < group.len() {
            at += tree(&group[at..], before, found);
            at += group[at..].find([',', '}']).unwrap_or(group.len() - at);
            at += group[at..].starts_with(',') as usize;
        }
        return start + 1 + at + group[at..].find('}').map_or(0, |end| end + 1);
    }
    before.push(rest[..word].to_owned());
    let mut len = start + word;
    match rest[word..].strip_prefix("::") {
        Some(next) => len += 2 + tree(next, before, found),
        None => found.push(before.clone()),
    }
    before.pop();
    len
}

fn absolute(module: &str, path: &[String]) -> Vec<String> {
    let mut at: Vec<String> = module.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
    for segment in path {
        match segment.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            name => at.push(name.to_owned()),
        }
    }
    at
}

/// The deepest module on the path, and the name in it.
fn resolve(files: &Files, path: &[String]) -> (String, String) {
    let depth = (0..=path.len()).rev().find(|n| files.contains_key(&path[..*n].join("::"))).unwrap_or(0);
    (path[..depth].join("::"), path.get(depth).cloned().unwrap_or_default())
}

/// The module that defines a name, if this module only re-exports it.
fn follow(files: &Files, module: String, name: &str) -> String {
    let Some(text) = files.get(&module).filter(|_| !name.is_empty()) else { return module };
    for statement in text.split("pub use ").chain(text.split("pub(crate) use ")).skip(1) {
        let mut found = Vec::new();
        let statement = statement.split(';').next().unwrap_or("");
        tree(statement, &mut Vec::new(), &mut found);
        if let Some(path) = found.iter().find(|path| path.len() > 1 && path.last().is_some_and(|l| l == name))
        {
            let (at, _) = resolve(files, &absolute(&module, path));
            return at;
        }
    }
    module
}

fn reach<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        next.extend(edges.get(at).into_iter().flatten().filter(|to| seen.insert(**to)));
    }
    seen
}

/// Returns the sets of files that reach one another (strongly connected components).
pub(crate) fn circles(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|at| (*at, reach(edges, at))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for (from, to) in &reached {
        let circle: Vec<String> =
            to.iter().filter(|at| reached[*at].contains(from)).map(|at| at.to_string()).collect();
        if !circle.is_empty() && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[cfg(test)]
#[path = "circles_tests.rs"]
mod tests;
