//! The file that describes a cluster.
//!
//! ```toml
//! command = "./client.py"        # optional; when it ends, the nodes' commands are ended
//!
//! [[node]]
//! name = "a"
//! command = "./server.py a"      # optional
//! from = "initial"               # optional: the initial content of its directory
//! ```

use super::super::usage;
use anyhow::{Context, Result};
use kedge_crash::cluster::check_names;
use kedge_crash_record::Node;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Described {
    pub nodes: Vec<Node>,
    pub command: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    command: Option<String>,
    #[serde(default)]
    node: Vec<WrittenNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenNode {
    name: toml::Spanned<String>,
    command: Option<String>,
    from: Option<PathBuf>,
}

/// Parses TOML. An error is wrong usage, with the file and the line.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(String::new(), |span| format!(" line {}:", line_of(text, span.start)));
        usage(&format!("{}:{line} {}", path.display(), e.message()))
    })
}

pub fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// Reads the description. A relative `from` is relative to the file.
pub fn read(path: &Path) -> Result<Described> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let written: Written = parse(path, &text)?;
    // Check the first name, then the first two, and so on, so that the error has the line of the
    // first bad name.
    for count in 1..=written.node.len() {
        let names = written.node[..count].iter().map(|node| node.name.get_ref().as_str());
        if let Err(e) = check_names(names)
            && !matches!(e, kedge_crash::cluster::BadNode::Count(_))
        {
            let line = line_of(&text, written.node[count - 1].name.span().start);
            return Err(usage(&format!("{}: line {line}: {e}", path.display())));
        }
    }
    if let Err(e) = check_names(written.node.iter().map(|node| node.name.get_ref().as_str())) {
        return Err(usage(&format!("{}: {e}", path.display())));
    }
    if written.command.is_none() && written.node.iter().all(|node| node.command.is_none()) {
        return Err(usage(&format!("{}: nothing would run: no command is given", path.display())));
    }
    let here = path.parent().unwrap_or(Path::new(""));
    let mut nodes = Vec::new();
    for node in written.node {
        let line = line_of(&text, node.name.span().start);
        let name = node.name.into_inner();
        let from = node.from.map(|from| here.join(from));
        if let Some(from) = from.as_ref().filter(|from| !from.is_dir()) {
            return Err(usage(&format!(
                "{}: node {name:?} (line {line}): {} is no directory",
                path.display(),
                from.display()
            )));
        }
        nodes.push(Node { name, from, command: node.command });
    }
    Ok(Described { nodes, command: written.command })
}
