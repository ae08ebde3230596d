//! Tables of the documents that are generated from the code, so that each fact has one home.
//!
//! A generated part stands between `<!-- generated: NAME -->` and `<!-- end of generated -->`. `cargo xtask docs` writes
//! it anew, and wraps the prose of all documents; `cargo xtask docs --check`, a step of `ci` and `test`, fails when there is
//! anything to write.

use crate::wrap::wrap;
use anyhow::{Context, Result, bail, ensure};
use kedge_format::{ItemKind, alloc, inode, item, key, logwrite, node, record, superblock};
use std::path::{Path, PathBuf};

/// (file, name of the part, what makes its text)
type Part = (&'static str, &'static str, fn() -> String);

const FORMAT: &str = "docs/FORMAT.md";

const PARTS: &[Part] = &[
    ("docs/ARCHITECTURE.md", "lock order", kedge_base::lock::order_table),
    (FORMAT, "superblock", || superblock::LAYOUT.table()),
    (FORMAT, "allocation index", || alloc::INDEX_LAYOUT.table()),
    (FORMAT, "allocation index entry", || alloc::ENTRY_LAYOUT.table()),
    (FORMAT, "log write", || logwrite::LAYOUT.table()),
    (FORMAT, "record", || record::LAYOUT.table()),
    (FORMAT, "edits", record::tables::edits),
    (FORMAT, "inode mask", record::tables::mask),
    (FORMAT, "operations", record::tables::ops),
    (FORMAT, "node header", || node::HEADER_LAYOUT.table()),
    (FORMAT, "node slot", || node::SLOT_LAYOUT.table()),
    (FORMAT, "child", || node::CHILD_LAYOUT.table()),
    (FORMAT, "key", || key::LAYOUT.table()),
    (FORMAT, "item kinds", ItemKind::table),
    (FORMAT, "inode core", || inode::LAYOUT.table()),
    (FORMAT, "dentry", || item::DENTRY_LAYOUT.table()),
    (FORMAT, "extent", || item::EXTENT_LAYOUT.table()),
];

const END: &str = "<!-- end of generated -->";

fn begin(name: &str) -> String {
    format!("<!-- generated: {name} -->")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Rewrites the generated parts, or with `check` only compares.
pub fn run(check: bool) -> Result<()> {
    let mut stale = Vec::new();
    let files = files()?;
    for file in &files {
        let path = root().join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let wanted = wrap(&render(file, &text)?);
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
    println!("{} documents, {} generated parts: as the code has them", files.len(), PARTS.len());
    Ok(())
}

/// All documents but the change log, whose lines are their authors', and the results of experiments, which a program writes.
fn files() -> Result<Vec<String>> {
    let mut files = vec!["README.md".to_owned(), "CONTRIBUTING.md".into()];
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
    for entry in std::fs::read_dir(root().join("crates")).context("crates")? {
        let name = entry?.file_name();
        add_all(&format!("crates/{}", name.display()))?;
    }
    files.sort();
    ensure!(PARTS.iter().all(|part| files.iter().any(|f| f == part.0)), "a generated part has no document");
    Ok(files)
}

/// The text of `file` with its generated parts as the code has them.
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
        text.replace_range(start..start + len, &format!("\n{}\n", make().trim_end()));
    }
    // A mark that no part names would keep its old text for ever.
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
