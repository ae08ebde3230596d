//! Checks of the documents: tables that are generated from the code or from the results of
//! experiments, so that each fact is stated once; the width of prose; and words that are not used.
//!
//! A generated part stands between `<!-- generated: NAME -->` and `<!-- end of generated -->`.
//! `cargo xtask docs` rewrites it, and wraps the prose of documents and the comments of source
//! files. `cargo xtask docs --check`, a step of `ci` and `test`, fails if there is anything to
//! rewrite. Both fail on a word that [`crate::words`] lists.

use crate::wrap::{wrap, wrap_comments};
use anyhow::{Context, Result, bail, ensure};
use kedge_format::{
    ItemKind, alloc, counts, inode, item, key, limits, logwrite, node, record, superblock, trees,
};
use std::path::{Path, PathBuf};

/// (file, name of the part, function that generates its text)
type Part = (&'static str, &'static str, fn() -> Result<String>);

const FORMAT: &str = "docs/FORMAT.md";

const PARTS: &[Part] = &[
    ("docs/ARCHITECTURE.md", "lock order", || Ok(kedge_base::lock::order_table())),
    (FORMAT, "superblock", || Ok(superblock::LAYOUT.table())),
    (FORMAT, "allocation index", || Ok(alloc::INDEX_LAYOUT.table())),
    (FORMAT, "allocation index entry", || Ok(alloc::ENTRY_LAYOUT.table())),
    (FORMAT, "log write", || Ok(logwrite::LAYOUT.table())),
    (FORMAT, "record", || Ok(record::LAYOUT.table())),
    (FORMAT, "edits", || Ok(record::tables::edits())),
    (FORMAT, "inode mask", || Ok(record::tables::mask())),
    (FORMAT, "operations", || Ok(record::tables::ops())),
    (FORMAT, "node header", || Ok(node::HEADER_LAYOUT.table())),
    (FORMAT, "node slot", || Ok(node::SLOT_LAYOUT.table())),
    (FORMAT, "child", || Ok(node::CHILD_LAYOUT.table())),
    (FORMAT, "key", || Ok(key::LAYOUT.table())),
    (FORMAT, "item kinds", || Ok(ItemKind::table())),
    (FORMAT, "inode core", || Ok(inode::LAYOUT.table())),
    (FORMAT, "dentry", || Ok(item::DENTRY_LAYOUT.table())),
    (FORMAT, "entry of the table of trees", || Ok(trees::LAYOUT.table())),
    (FORMAT, "limit in the table of trees", || Ok(limits::LAYOUT.table())),
    (FORMAT, "extent", || Ok(item::EXTENT_LAYOUT.table())),
    (FORMAT, "count", || Ok(counts::LAYOUT.table())),
    ("docs/EXPERIMENTS.md", "results", crate::results::table),
    ("docs/EXPERIMENTS.md", "results of simulated processors", crate::results::simulated),
];

const END: &str = "<!-- end of generated -->";

fn begin(name: &str) -> String {
    format!("<!-- generated: {name} -->")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Rewrites the generated parts, or with `check` only compares.
pub fn run(check: bool) -> Result<()> {
    let (mut stale, mut words) = (Vec::new(), Vec::new());
    let files = files()?;
    let sources = sources()?;
    for file in files.iter().chain(&sources) {
        let path = root().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let wanted = if file.ends_with(".rs") { wrap_comments(&text) } else { wrap(&render(file, &text)?) };
        if crate::words::applies_to(file) {
            words.extend(crate::words::find(file, &wanted));
        }
        if wanted == text {
            continue;
        }
        stale.push(file.as_str());
        if !check {
            std::fs::write(&path, wanted).with_context(|| path.display().to_string())?;
            println!("{file}: rewritten");
        }
    }
    if check && !stale.is_empty() {
        bail!("`cargo xtask docs` would rewrite {}: run it", stale.join(", "));
    }
    ensure!(words.is_empty(), "words that are not used:\n{}", words.join("\n"));
    println!(
        "{} documents, {} generated parts: as the code has them; {} source files: comments within the width",
        files.len(),
        PARTS.len(),
        sources.len()
    );
    Ok(())
}

/// All documents except the results of experiments, which `kedge-lab` writes.
fn files() -> Result<Vec<String>> {
    let mut files =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "fuzz/README.md"].map(String::from).to_vec();
    let mut add_all = |dir: &str| -> Result<()> {
        for entry in std::fs::read_dir(root().join(dir)).with_context(|| dir.to_owned())? {
            let name = entry?.file_name();
            let name = name.to_str().with_context(|| format!("{dir}/{}", name.display()))?;
            if name.ends_with(".md") {
                files.push(format!("{dir}/{name}"));
            }
        }
        Ok(())
    };
    add_all("docs")?;
    add_all("docs/rfcs")?;
    for dir in crate::circles::crates(&root().join("crates"))? {
        add_all(dir.strip_prefix(root())?.to_str().context("the name of a crate's folder")?)?;
    }
    files.sort();
    ensure!(PARTS.iter().all(|part| files.iter().any(|f| f == part.0)), "a generated part has no document");
    Ok(files)
}

/// All source files of the crates and of the fuzz targets.
fn sources() -> Result<Vec<String>> {
    let mut sources = Vec::new();
    let mut folders = vec!["crates".to_owned(), "fuzz/fuzz_targets".into()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).with_context(|| folder.clone())? {
            let entry = entry?;
            let name = entry.file_name();
            let path = format!("{folder}/{}", name.to_str().with_context(|| folder.clone())?);
            let is_folder = entry.file_type()?.is_dir();
            if is_folder && !path.ends_with("/target") {
                folders.push(path);
            } else if !is_folder && path.ends_with(".rs") {
                sources.push(path);
            }
        }
    }
    sources.sort();
    ensure!(!sources.is_empty(), "no source files");
    Ok(sources)
}

/// Returns the text of `file` with its generated parts updated.
fn render(file: &str, text: &str) -> Result<String> {
    let mut text = text.to_owned();
    let parts = PARTS.iter().filter(|part| part.0 == file);
    let mut expected = 0;
    for (_, name, make) in parts {
        expected += 1;
        let mark = begin(name);
        ensure!(text.matches(&mark).count() == 1, "{file}: {mark} does not stand there exactly once");
        let start = text.find(&mark).expect("counted above") + mark.len();
        let len = text[start..].find(END).with_context(|| format!("{file}: {mark} has no end"))?;
        text.replace_range(start..start + len, &format!("\n{}\n", make()?.trim_end()));
    }
    // A mark that no part names is an error, since the text under it would never be updated.
    let found = text.matches("<!-- generated: ").count();
    ensure!(
        found == expected,
        "{file} has {found} generated parts, the table of {} says {expected}",
        file!()
    );
    Ok(text)
}

#[cfg(test)]
#[path = "docs_tests.rs"]
mod tests;
