//! The checkers that come with the tool, for programs whose files have a well-known format:
//! [`SHIPPED`] is the table.
//!
//! A checker judges *subjects*: the files, or the directories of a store, that have its format.
//! They are taken from the complete states at the start, at the promises and at the end, or from
//! the user's patterns. A temporary file that is gone in all of these states is no subject. In a
//! crash state each subject that exists must be complete, and a subject that existed at the last
//! promise must exist.
//!
//! A checker without subjects refuses the recording, since such a search would always pass.

mod commands;
mod ledger;
mod mail;
mod tar;

use crate::check::CommandChecker;
use crate::files::{FilesChecker, Firm};
use crate::pattern::Pattern;
use crate::run::{Case, Checker, Verdict};
use crate::state::{Body, FileBody, State};
use crate::trace::Trace;
use kedge_base::printable;
use ledger::Ledger;
use mail::{Format, Mail};
use saphyr_parser::{Event, Parser};
use serde::de::IgnoredAny;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

/// The most bytes of a file that is read into memory as a whole. A larger file gives no verdict.
const BYTES_MAX: u64 = 64 << 20;

/// A row of the table.
pub struct Shipped {
    pub name: &'static str,
    pub about: &'static str,
    find: Find,
    how: How,
}

/// How subjects are found if the user gives no pattern.
enum Find {
    /// Files whose last name matches one of these patterns.
    Named(&'static [&'static str]),
    /// Files that have these bytes at this offset.
    Magic(u64, &'static [u8]),
    /// Directories that contain a file of this name and for which the function returns true. A
    /// store is judged only after a promise at which it existed: `git init` and `initdb` are not
    /// one atomic step.
    Stores(&'static [u8], fn(&State, &[u8]) -> bool),
    /// The user must name the files by patterns.
    Given,
    /// The checker looks at every file.
    All,
}

enum How {
    /// A function of this process that judges a file.
    Built(fn(&FileBody) -> Result<(), Fault>),
    /// This process searches the files for each promised `key=value`.
    Ledger,
    /// This process searches the mail folders for each promised message.
    Mail(Format),
    /// A shell command whose arguments are the files. For some checkers a query is the first
    /// argument.
    Command(&'static str),
}

/// Why a file is not accepted.
enum Fault {
    Bad(String),
    /// The file cannot be judged, for this reason.
    Unjudged(String),
}

/// A judge of the whole tree of a state.
trait Whole: Send + Sync {
    fn check(&self, case: &Case<'_>) -> Result<(), Fault>;

    /// As [`Checker::stage`].
    fn stage(&self, _time: u64) -> usize {
        0
    }
}

/// The checkers, in the order in which they are listed.
pub const SHIPPED: &[Shipped] = &[
    Shipped {
        name: "sqlite",
        about: "SQLite databases pass PRAGMA integrity_check; --query SQL: every promise is one of its rows",
        find: Find::Magic(0, b"SQLite format 3\0"),
        how: How::Command(commands::SQLITE),
    },
    Shipped {
        name: "postgres",
        about: "PostgreSQL starts on its directories, and all rows can be read; --query as for sqlite",
        find: Find::Stores(b"PG_VERSION", |state, dir| is_file(state, dir, b"global/pg_control")),
        how: How::Command(commands::POSTGRES),
    },
    Shipped {
        name: "lmdb",
        about: "LMDB files can be read as a whole",
        find: Find::Magic(16, &LMDB_MAGIC),
        how: How::Command(commands::LMDB),
    },
    Shipped {
        name: "rocksdb",
        about: "RocksDB directories pass ldb checkconsistency, and all rows can be read",
        find: Find::Stores(b"CURRENT", |state, dir| is_file(state, dir, b"IDENTITY")),
        how: How::Command(commands::ROCKSDB),
    },
    Shipped {
        name: "git",
        about: "Git repositories pass git fsck --full",
        find: Find::Stores(b"HEAD", |state, dir| {
            [&b"objects"[..], b"refs"].iter().all(|name| is_dir(state, dir, name))
        }),
        how: How::Command(commands::GIT),
    },
    Shipped {
        name: "json",
        about: "files *.json parse",
        find: Find::Named(&["*.json"]),
        how: How::Built(|file| json(&whole(file)?)),
    },
    Shipped {
        name: "toml",
        about: "files *.toml parse",
        find: Find::Named(&["*.toml"]),
        how: How::Built(|file| toml(&whole(file)?)),
    },
    Shipped {
        name: "yaml",
        about: "files *.yaml and *.yml parse and are not empty",
        find: Find::Named(&["*.yaml", "*.yml"]),
        how: How::Built(|file| yaml(&whole(file)?)),
    },
    Shipped {
        name: "tar",
        about: "archives *.tar have all their members and their end",
        find: Find::Named(&["*.tar"]),
        how: How::Built(|file| tar::check(file).map_err(Fault::Bad)),
    },
    Shipped {
        name: "gzip",
        about: "files *.gz and *.tgz unpack",
        find: Find::Named(&["*.gz", "*.tgz"]),
        how: How::Command(commands::GZIP),
    },
    Shipped {
        name: "zip",
        about: "archives *.zip, *.jar and *.whl unpack",
        find: Find::Named(&["*.zip", "*.jar", "*.whl"]),
        how: How::Command(commands::ZIP),
    },
    Shipped {
        name: "ledger",
        about: "every promise is a line of the files of --files; key=value: or a later value of its key is",
        find: Find::Given,
        how: How::Ledger,
    },
    Shipped {
        name: "maildir",
        about: "messages in new and cur of maildirs are whole, and those of a promise are there",
        find: Find::All,
        how: How::Mail(Format::Maildir),
    },
    Shipped {
        name: "mbox",
        about: "mailboxes hold no zeros, and all messages of a promise",
        find: Find::All,
        how: How::Mail(Format::Mbox),
    },
];

/// The magic number in a meta page of LMDB, as a little-endian machine writes it. It follows the
/// header of the page.
const LMDB_MAGIC: [u8; 4] = 0xBEEF_C0DE_u32.to_le_bytes();

impl Shipped {
    pub fn by_name(name: &str) -> Option<&'static Shipped> {
        SHIPPED.iter().find(|row| row.name == name)
    }

    /// The shell command that judges; `None` if this process judges.
    pub fn command(&self) -> Option<&'static str> {
        match self.how {
            How::Command(command) => Some(command),
            How::Built(_) | How::Ledger | How::Mail(_) => None,
        }
    }

    /// Whether the user must name the files.
    pub fn needs_files(&self) -> bool {
        matches!(self.find, Find::Given)
    }

    pub fn takes_query(&self) -> bool {
        matches!(self.name, "sqlite" | "postgres")
    }
}

/// A checker of the table with the subjects of one recording.
pub struct ShippedChecker {
    row: &'static Shipped,
    /// The paths of the subjects. A store is represented by the file that marks it.
    subjects: BTreeSet<Vec<u8>>,
    /// Knows which subjects must exist after which promises.
    files: FilesChecker,
    /// The crash points at which a subject was removed.
    removals: Vec<u32>,
    /// Judges the whole tree, if that replaces the judging of subjects.
    whole: Option<Box<dyn Whole>>,
    query: OsString,
    /// Runs the command of the checker, if it has one.
    runner: Option<CommandChecker>,
}

impl ShippedChecker {
    /// Makes the checker. `patterns` name the subjects; without any, they are found. `runner` runs
    /// the row's command ([`Shipped::command`]). Fails if there is nothing that could be judged.
    pub fn new(
        row: &'static Shipped,
        trace: &Trace,
        patterns: Vec<Pattern>,
        query: Option<&str>,
        runner: Option<CommandChecker>,
    ) -> Result<ShippedChecker, String> {
        let mut subjects = BTreeSet::new();
        let files = FilesChecker::with(trace, |_, state, firm| match (firm, &row.find) {
            (Firm::Between, _) | (Firm::End, Find::Stores(..)) => {}
            (Firm::Promised | Firm::End, _) => find(row, state, &patterns, &mut subjects),
        });
        let removals = files.changes_of(&subjects, |version| version.is_none());
        let whole: Option<Box<dyn Whole>> = match row.how {
            How::Ledger => Some(Box::new(Ledger::new(trace, patterns)?)),
            How::Mail(format) => Some(Box::new(Mail::new(row.name, format, trace, patterns)?)),
            How::Built(_) | How::Command(_) => None,
        };
        if subjects.is_empty() && whole.is_none() {
            let name = row.name;
            return Err(match row.find {
                Find::Stores(..) => format!(
                    "--checker {name} has nothing to judge: no directory of that kind was there at the \
                              start (record --from) or at a promise (record --ack)"
                ),
                _ => format!(
                    "--checker {name} has nothing to judge: no such file was there at the start, at a \
                              promise or at the end (--files PATTERN names others)"
                ),
            });
        }
        let query = query.unwrap_or_default().into();
        Ok(ShippedChecker { row, subjects, files, removals, whole, query, runner })
    }

    /// The subjects that must be judged in a state. The error is the path of a missing one.
    fn due<'a>(&'a self, case: &Case<'a>) -> Result<Vec<(&'a [u8], &'a FileBody)>, &'a [u8]> {
        let mut due = Vec::new();
        for path in &self.subjects {
            let must_be_there = self.files.must_be_there(path, case.told.len(), case.moment);
            match case.state.find(path).map(|(_, node)| &node.body) {
                Some(Body::File(_)) if !must_be_there && matches!(self.row.find, Find::Stores(..)) => {}
                Some(Body::File(file)) => due.push((&path[..], file)),
                _ if must_be_there => return Err(path),
                _ => {}
            }
        }
        Ok(due)
    }
}

impl Checker for ShippedChecker {
    fn check(&self, case: &Case<'_>) -> Verdict {
        let judged = match (&self.row.how, self.due(case)) {
            (_, Err(path)) => Err(Fault::Bad(format!("{} is missing, though it was promised", show(path)))),
            (How::Ledger | How::Mail(_), Ok(_)) => {
                self.whole.as_ref().map_or(Ok(()), |whole| whole.check(case))
            }
            (How::Built(judge), Ok(due)) => due.iter().try_for_each(|(path, file)| {
                let at = |why: String| format!("{}: {why}", show(path));
                judge(file).map_err(|fault| match fault {
                    Fault::Bad(why) => Fault::Bad(at(why)),
                    Fault::Unjudged(why) => Fault::Unjudged(at(why)),
                })
            }),
            (How::Command(_), Ok(due)) if due.is_empty() => Ok(()),
            (How::Command(_), Ok(due)) => {
                let Some(runner) = &self.runner else {
                    return Verdict::Broken("the checker has no runner for its command".to_owned());
                };
                return runner.check_with(case, &self.arguments(&due));
            }
        };
        match judged {
            Ok(()) => Verdict::Good,
            Err(Fault::Bad(why)) => Verdict::Bad(why),
            Err(Fault::Unjudged(why)) => Verdict::Broken(why),
        }
    }

    fn stage(&self, time: u64) -> usize {
        match &self.whole {
            Some(whole) => whole.stage(time),
            None => self.files.stage_of(&self.removals, time),
        }
    }
}

impl ShippedChecker {
    /// The command that judges a state whose tree is in `dir` ([`CommandChecker::command_in`]).
    /// `None` if this process judges the state, or if there is nothing to judge.
    pub fn command_in(&self, case: &Case<'_>, dir: &Path, root: &Path) -> Option<io::Result<Command>> {
        let due = self.due(case).ok().filter(|due| !due.is_empty())?;
        let runner = self.runner.as_ref()?;
        Some(runner.command_in(case, dir, root, &self.arguments(&due)))
    }

    fn arguments(&self, due: &[(&[u8], &FileBody)]) -> Vec<OsString> {
        let paths = due.iter().map(|(path, _)| self.argument(path));
        std::iter::once(self.query.clone()).chain(paths).collect()
    }

    /// A subject as an argument of the command, which cannot look like an option.
    fn argument(&self, path: &[u8]) -> OsString {
        let path = match self.row.find {
            Find::Stores(..) => above(path),
            _ => path,
        };
        OsString::from_vec([b"./", path].concat())
    }
}

/// The path of the directory above a path; empty for the root.
fn above(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').map_or(b"", |slash| &path[..slash])
}

/// Adds the subjects that a complete state contains.
fn find(row: &Shipped, state: &State, patterns: &[Pattern], subjects: &mut BTreeSet<Vec<u8>>) {
    let named: Vec<Pattern> = match row.find {
        Find::Named(names) if patterns.is_empty() => names.iter().map(|name| Pattern::new(name)).collect(),
        _ => Vec::new(),
    };
    let is_one = |path: &[u8], file: &FileBody| match row.find {
        Find::Stores(marker, is_store) => {
            let dir = above(path);
            path[dir.len()..].strip_prefix(b"/").unwrap_or(path) == marker
                && is_store(state, dir)
                && (patterns.is_empty() || patterns.iter().any(|p| p.matches(dir)))
        }
        _ if !patterns.is_empty() => patterns.iter().any(|p| p.matches(path)),
        Find::Magic(offset, magic) => {
            let mut there = vec![0; magic.len()];
            file.read(offset, &mut there) == magic.len() && there == magic
        }
        Find::Named(_) => named.iter().any(|p| p.matches(path)),
        Find::Given | Find::All => false,
    };
    state.walk(&mut |path, _, node| {
        if let Body::File(file) = &node.body
            && is_one(path, file)
        {
            subjects.insert(path.to_vec());
        }
    });
}

fn within<'a>(state: &'a State, dir: &[u8], name: &[u8]) -> Option<&'a Body> {
    state.find(&[dir, b"/", name].concat()).map(|(_, node)| &node.body)
}

fn is_dir(state: &State, dir: &[u8], name: &[u8]) -> bool {
    matches!(within(state, dir, name), Some(Body::Dir(_)))
}

fn is_file(state: &State, dir: &[u8], name: &[u8]) -> bool {
    matches!(within(state, dir, name), Some(Body::File(_)))
}

/// Reads a whole file. A sparse file may be much larger than the recording.
fn whole(file: &FileBody) -> Result<Vec<u8>, Fault> {
    if file.size > BYTES_MAX {
        let why = format!("{} bytes are more than the {BYTES_MAX} that can be judged", file.size);
        return Err(Fault::Unjudged(why));
    }
    let mut bytes = vec![0; usize::try_from(file.size).unwrap_or(0)];
    file.read(0, &mut bytes);
    Ok(bytes)
}

fn json(bytes: &[u8]) -> Result<(), Fault> {
    let parsed: Result<IgnoredAny, _> = serde_json::from_slice(bytes);
    parsed.map(drop).map_err(|e| Fault::Bad(format!("no JSON: {e}")))
}

fn toml(bytes: &[u8]) -> Result<(), Fault> {
    let text = std::str::from_utf8(bytes).map_err(|e| Fault::Bad(format!("no TOML: {e}")))?;
    let parsed: Result<toml::Table, _> = toml::from_str(text);
    parsed.map(drop).map_err(|e| Fault::Bad(format!("no TOML: {}", e.message())))
}

/// Refuses an empty file: it is valid YAML, but no program writes it intentionally, and a crash may
/// leave it.
fn yaml(bytes: &[u8]) -> Result<(), Fault> {
    let text = std::str::from_utf8(bytes).map_err(|e| Fault::Bad(format!("no YAML: {e}")))?;
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        match event {
            Ok((Event::DocumentStart(_), _)) => documents += 1,
            Ok(_) => {}
            Err(e) => return Err(Fault::Bad(format!("no YAML: {e}"))),
        }
    }
    match documents {
        0 => Err(Fault::Bad("no YAML: there is no document".to_owned())),
        _ => Ok(()),
    }
}

fn show(path: &[u8]) -> String {
    printable(&String::from_utf8_lossy(path))
}

#[cfg(test)]
#[path = "shipped_tests.rs"]
mod tests;
