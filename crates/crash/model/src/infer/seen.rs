//! The parts of a command's run that are compared.

use crate::page::Digest;
use crate::pattern::Pattern;
use kedge_base::printable;
use std::collections::{BTreeMap, BTreeSet};

/// The regular files that a command leaves.
pub type Tree = BTreeMap<Vec<u8>, Digest>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub code: i32,
    pub lines: Vec<Vec<u8>>,
    pub files: Tree,
}

impl Seen {
    /// Describes how this run differs from the run at the last promise.
    pub fn unlike(&self, promised: Option<&Seen>, last_line: &str) -> String {
        let Some(promised) = promised else {
            return self.itself(last_line);
        };
        if self.code != promised.code {
            return self.itself(last_line);
        }
        let at = self.lines.iter().zip(&promised.lines).take_while(|(a, b)| a == b).count();
        if self.lines != promised.lines {
            let line = |seen: &Seen| match seen.lines.get(at) {
                Some(line) => format!("{:?}", shorten(line)),
                None => "nothing".to_owned(),
            };
            return format!(
                "it prints {} as line {}, and no state without a crash gives this output; \
                 after the last promise it prints {}",
                line(self),
                at + 1,
                line(promised)
            );
        }
        let differs = |path: &&Vec<u8>| self.files.get(*path) != promised.files.get(*path);
        let path = promised.files.keys().chain(self.files.keys()).find(differs);
        match path {
            Some(path) if self.files.contains_key(path) => {
                format!("it leaves {} with a content that no state without a crash gives", shorten(path))
            }
            Some(path) => format!("it leaves no {}, which no state without a crash does", shorten(path)),
            None => "the state without a crash that shows this has broken a promise".to_owned(),
        }
    }

    fn itself(&self, last_line: &str) -> String {
        let said = if last_line.is_empty() { String::new() } else { format!(": {last_line}") };
        format!("exit code {}{said}", self.code)
    }
}

/// The beginning of a line, short enough for a message.
fn shorten(line: &[u8]) -> String {
    const SHOWN: usize = 80;
    let text = printable(&String::from_utf8_lossy(line));
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Which files are compared.
#[derive(Debug)]
pub enum Files {
    /// Not known yet: the files of the complete states are compared if the command prints nothing.
    Undecided,
    None,
    /// These files, which the command leaves on a complete state.
    Promised(BTreeSet<Vec<u8>>),
    /// The files that match the user's patterns, except these, which vary.
    Named(Vec<Pattern>, BTreeSet<Vec<u8>>),
}

impl Files {
    pub fn of(patterns: Vec<Pattern>) -> Files {
        match patterns.is_empty() {
            true => Files::Undecided,
            false => Files::Named(patterns, BTreeSet::new()),
        }
    }

    pub fn is_undecided(&self) -> bool {
        matches!(self, Files::Undecided)
    }

    /// Whether any file of a run must be read.
    pub fn is_wanted(&self) -> bool {
        !matches!(self, Files::None)
    }

    /// Whether the file at a path is compared, so that it must be read.
    pub fn has(&self, path: &[u8]) -> bool {
        match self {
            Files::Undecided => true,
            Files::None => false,
            Files::Promised(paths) => paths.contains(path),
            Files::Named(patterns, left_out) => {
                !left_out.contains(path) && patterns.iter().any(|pattern| pattern.matches(path))
            }
        }
    }

    /// Adds the files that a run on a complete state has left.
    pub fn add(&mut self, tree: &Tree) {
        if let Files::Promised(paths) = self {
            paths.extend(tree.keys().cloned());
        }
    }

    /// Leaves out the files that differ between two runs on one state.
    pub fn learn(&mut self, one: &Tree, other: &Tree) {
        let varies = |path: &Vec<u8>| one.get(path) != other.get(path);
        match self {
            Files::Promised(paths) => paths.retain(|path| !varies(path)),
            Files::Named(_, left_out) => {
                left_out.extend(one.keys().chain(other.keys()).filter(|path| varies(path)).cloned());
            }
            Files::Undecided | Files::None => {}
        }
    }

    /// The part of a tree that is compared.
    pub fn of_tree(&self, tree: &Tree) -> Tree {
        tree.iter().filter(|(path, _)| self.has(path)).map(|(path, digest)| (path.clone(), *digest)).collect()
    }

    pub fn shown(&self) -> String {
        match self {
            Files::Undecided | Files::None => "its exit code and output count".to_owned(),
            Files::Promised(paths) => {
                format!("it prints nothing, so {} files that it leaves count", paths.len())
            }
            Files::Named(_, left_out) if left_out.is_empty() => {
                "its exit code, output and the named files count".to_owned()
            }
            Files::Named(_, left_out) => {
                let left_out: Vec<String> = left_out.iter().map(|path| shorten(path)).collect();
                format!("its exit code, output and the named files count, without {}", left_out.join(", "))
            }
        }
    }
}
