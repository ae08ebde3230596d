//! The checkers that come with the tool, for programs whose files have a well-known format:
//! [`SHIPPED`] is the table.
//!
//! A checker judges *subjects*: the files, or Git repositories, of its format that the complete
//! states at the start, at the promises and at the end contain, or those that the user's patterns
//! match. A temporary file, which is gone by then, is no subject. In a crash state each subject
//! that is there must be whole, and one that was there at the last promise must be there.
//!
//! A checker that would judge nothing refuses the recording: a search without subjects would always
//! pass.

mod ledger;
mod tar;

use crate::check::CommandChecker;
use crate::files::FilesChecker;
use crate::pattern::Pattern;
use crate::run::{Case, Checker, Verdict};
use crate::state::{Body, FileBody, State};
use crate::trace::Trace;
use kedge_base::printable;
use ledger::Ledger;
use serde::de::IgnoredAny;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

/// A file that is read into memory as a whole may have this many bytes. A larger one gives no
/// verdict.
const BYTES_MAX: u64 = 64 << 20;

/// A row of the table.
pub struct Shipped {
    pub name: &'static str,
    pub about: &'static str,
    find: Find,
    how: How,
}

/// Which subjects a checker has if the user gives no pattern.
enum Find {
    /// Files whose last name matches one of these patterns.
    Named(&'static [&'static str]),
    /// Files that begin with these bytes.
    Magic(&'static [u8]),
    /// Git directories. One is judged only from the promise on that it is there: `git init` is not
    /// one atomic step.
    Repositories,
    /// The user must name the files.
    Given,
}

enum How {
    /// A function of this process that judges a file.
    Built(fn(&FileBody) -> Result<(), Fault>),
    /// A function of this process that looks for the promises in all files.
    Ledger,
    /// A shell command whose arguments are the files. With a query, that is the first argument.
    Command(&'static str),
}

/// Why a file is not accepted.
enum Fault {
    Bad(String),
    /// The file cannot be judged.
    Unjudged(String),
}

/// The checkers, in the order in which they are listed.
pub const SHIPPED: &[Shipped] = &[
    Shipped {
        name: "sqlite",
        about: "SQLite databases pass PRAGMA integrity_check; --query SQL: every promise is one of its rows",
        find: Find::Magic(b"SQLite format 3\0"),
        how: How::Command(SQLITE),
    },
    Shipped {
        name: "git",
        about: "Git repositories pass git fsck --full",
        find: Find::Repositories,
        how: How::Command(GIT),
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
        name: "tar",
        about: "archives *.tar have all their members and their end",
        find: Find::Named(&["*.tar"]),
        how: How::Built(|file| tar::check(file).map_err(Fault::Bad)),
    },
    Shipped {
        name: "gzip",
        about: "files *.gz and *.tgz unpack",
        find: Find::Named(&["*.gz", "*.tgz"]),
        how: How::Command(GZIP),
    },
    Shipped {
        name: "zip",
        about: "archives *.zip, *.jar and *.whl unpack",
        find: Find::Named(&["*.zip", "*.jar", "*.whl"]),
        how: How::Command(ZIP),
    },
    Shipped {
        name: "ledger",
        about: "every promise is a line of the files of --files; key=value: or a later value of its key is",
        find: Find::Given,
        how: How::Ledger,
    },
];

/// Opening a database rolls an unfinished transaction back, as the program does when it restarts.
/// Before the first promise the query may name tables that do not exist yet. awk reads the rows
/// first, and then the promises.
const SQLITE: &str = r#"query=$1; shift
for f; do
  found=$(sqlite3 -batch -init /dev/null "$f" 'PRAGMA integrity_check') || { code=$?; echo "$f: $found"; exit "$code"; }
  test "$found" = ok || { echo "$f: $found"; exit 1; }
done
test -n "$query" && test "$KEDGE_ACKED_COUNT" -gt 0 || exit 0
rows=$(for f; do sqlite3 -batch -init /dev/null "$f" "$query" || exit; done) || exit
printf '%s\n' "$rows" | awk 'NR == FNR { rows[$0]; next }
  $0 != "" && !($0 in rows) { print "promised, and not a row: " $0; missing = 1 }
  END { exit missing }' - "$KEDGE_ACKED_FILE""#;

/// The exit code of a command that fails is the checker's, and the last line that it prints is in
/// the report. The repository of a state may belong to another user than this process,
/// which Git refuses by default. Variables of a Git command that called this program must not lead
/// elsewhere.
const GIT: &str = r#"shift
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
for f; do
  echo "$f:"
  git -c safe.directory='*' --git-dir="$f" fsck --full --no-progress || exit
done"#;

const GZIP: &str = r#"shift
for f; do echo "$f:"; gzip -t < "$f" || exit; done"#;

const ZIP: &str = r#"shift
for f; do echo "$f:"; unzip -tqq "$f" || exit; done"#;

impl Shipped {
    pub fn by_name(name: &str) -> Option<&'static Shipped> {
        SHIPPED.iter().find(|row| row.name == name)
    }

    /// The shell command that judges. `None`: this process judges.
    pub fn command(&self) -> Option<&'static str> {
        match self.how {
            How::Command(command) => Some(command),
            How::Built(_) | How::Ledger => None,
        }
    }

    /// The user must name the files.
    pub fn needs_files(&self) -> bool {
        matches!(self.find, Find::Given)
    }

    pub fn takes_query(&self) -> bool {
        self.name == "sqlite"
    }
}

/// One of the table's checkers with the subjects of a recording.
pub struct ShippedChecker {
    row: &'static Shipped,
    /// Paths of files, or of the file `HEAD` of repositories.
    subjects: BTreeSet<Vec<u8>>,
    /// When which file must be there.
    files: FilesChecker,
    ledger: Option<Ledger>,
    query: OsString,
    /// Runs the command, if there is one.
    runner: Option<CommandChecker>,
}

impl ShippedChecker {
    /// `patterns` name the subjects; without any, they are found. `runner` runs the row's command
    /// ([`Shipped::command`]). Fails if there is nothing that could be judged.
    pub fn new(
        row: &'static Shipped,
        trace: &Trace,
        patterns: Vec<Pattern>,
        query: Option<&str>,
        runner: Option<CommandChecker>,
    ) -> Result<ShippedChecker, String> {
        let mut subjects = BTreeSet::new();
        let files = FilesChecker::with(trace, |state, is_promised| {
            if is_promised || !matches!(row.find, Find::Repositories) {
                find(row, state, &patterns, &mut subjects);
            }
        });
        let ledger = matches!(row.how, How::Ledger).then(|| Ledger::new(trace, patterns)).transpose()?;
        if subjects.is_empty() && ledger.is_none() {
            let name = row.name;
            return Err(match row.find {
                Find::Repositories => {
                    "--checker git has nothing to judge: no repository was there at the start \
                                       (record --from) or at a promise (record --ack)"
                        .to_owned()
                }
                _ => format!(
                    "--checker {name} has nothing to judge: no such file was there at the start, at a \
                              promise or at the end (--files PATTERN names others)"
                ),
            });
        }
        let query = query.unwrap_or_default().into();
        Ok(ShippedChecker { row, subjects, files, ledger, query, runner })
    }

    /// The subjects that must be judged in a state, or the one that is missing.
    fn due<'a>(&'a self, case: &Case<'a>) -> Result<Vec<(&'a [u8], &'a FileBody)>, &'a [u8]> {
        let mut due = Vec::new();
        for path in &self.subjects {
            let must_be_there = self.files.must_be_there(path, case.told.len());
            match case.state.find(path).map(|(_, node)| &node.body) {
                Some(Body::File(_)) if !must_be_there && matches!(self.row.find, Find::Repositories) => {}
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
            (How::Ledger, Ok(_)) => self.ledger.as_ref().map_or(Ok(()), |ledger| ledger.check(case)),
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
}

impl ShippedChecker {
    /// The command that judges a state whose tree is in `dir` ([`CommandChecker::command_in`]).
    /// `None`: this process judges it, or there is nothing to judge.
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
            Find::Repositories => above(path),
            _ => path,
        };
        OsString::from_vec([b"./", path].concat())
    }
}

/// The directory of a path; empty for the root.
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
        Find::Repositories => {
            is_repository(state, path)
                && (patterns.is_empty() || patterns.iter().any(|p| p.matches(above(path))))
        }
        _ if !patterns.is_empty() => patterns.iter().any(|p| p.matches(path)),
        Find::Magic(magic) => {
            let mut head = vec![0; magic.len()];
            file.read(0, &mut head) == magic.len() && head == magic
        }
        Find::Named(_) => named.iter().any(|p| p.matches(path)),
        Find::Given => false,
    };
    state.walk(&mut |path, _, node| {
        if let Body::File(file) = &node.body
            && is_one(path, file)
        {
            subjects.insert(path.to_vec());
        }
    });
}

/// Whether the path is the `HEAD` of a Git directory.
fn is_repository(state: &State, path: &[u8]) -> bool {
    let dir = above(path);
    let is_dir = |name: &[u8]| {
        let path = [dir, name].concat();
        state.find(&path).is_some_and(|(_, node)| matches!(node.body, Body::Dir(_)))
    };
    path.strip_prefix(dir).is_some_and(|name| name == b"/HEAD" || name == b"HEAD")
        && is_dir(b"/objects")
        && is_dir(b"/refs")
}

/// The bytes of a file. A sparse file may be larger than the recording justifies.
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

fn show(path: &[u8]) -> String {
    printable(&String::from_utf8_lossy(path))
}

#[cfg(test)]
#[path = "shipped_tests.rs"]
mod tests;
