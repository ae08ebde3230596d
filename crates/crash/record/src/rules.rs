//! Rules for a live crash test: what happens at which call.
//!
//! A rule is one line of words: `on=CALL,do=ACTION` and optional further words.
//!
//! | word | |
//! |---|---|
//! | `on=` | `write`, `truncate`, `create`, `remove`, `rename`, `fsync` (fdatasync, O_SYNC) or `any` of them |
//! | `path=` | a pattern of the path below the mount: `*` and `?` do not match `/`, `**` does. Without a `/` it matches the last name only |
//! | `nth=` | from which matching call on, counted from 1 |
//! | `count=` | for how many of them; default 1; 0 means all |
//! | `do=` | `crash`, `torn` (a crash in the middle of this write), `eio`, `enospc`, `edquot`, `slow` (fsync only) |
//! | `when=` | for a crash: `before` the call, or `after` it |
//! | `model=` | for a crash |
//! | `lose=` | for a crash: `all` that may be lost, or a number: the seed of a random choice |
//! | `kill=` | a process number, or `caller`: SIGKILL at the moment of the crash |
//! | `like=` | for a failed fsync: `ext4`, `xfs`, `btrfs`: what happens to the pages |
//! | `time=` | for `slow`: milliseconds |

use kedge_base::errno;
use kedge_crash::{Model, Pattern};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The most milliseconds of `slow`: a caller cannot be killed while it waits.
const SLOW_MAX: u64 = 600_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Any,
    Write,
    Truncate,
    Create,
    Remove,
    Rename,
    Fsync,
}

/// What a failed fsync leaves in the page cache and on the disk. In all cases the pages are clean
/// afterwards, and the next fsync succeeds without writing them.
///
/// Sources: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020,
/// section 3 ("pages are always marked clean", "page content ... is varied"); Linux
/// Documentation/filesystems/vfs.rst, "Handling errors during writeback"; fs/ext4/page-io.c
/// (`ext4_finish_bio`), fs/iomap/buffered-io.c (`iomap_finish_folio_write`), fs/btrfs/inode.c
/// (`btrfs_finish_one_ordered`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Like {
    /// Readers still see the written bytes. The new size is kept, with old bytes or zeros below it.
    Ext4,
    /// Readers still see the written bytes. The size on disk changes only with the bytes, so it
    /// remains the old one.
    Xfs,
    /// Bytes and size revert to those on disk, for readers too.
    Btrfs,
}

/// Which pending calls a crash loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lose {
    All,
    Random(u64),
    /// The crash loses a part of the last write and nothing else.
    Torn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    pub model: Model,
    pub lose: Lose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    Caller,
    Process(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Crash { crash: Crash, after: bool, kill: Option<Kill> },
    Fail { errno: i32, like: Like },
    Slow(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub on: On,
    path: Option<Pattern>,
    nth: u64,
    count: u64,
    pub action: Action,
    text: String,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule:?}: {why}")]
pub struct BadRule {
    rule: String,
    why: String,
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Rule, BadRule> {
        parse(text).map_err(|why| BadRule { rule: text.to_owned(), why })
    }
}

/// The words of a rule that were not used yet. Each word may occur once.
#[derive(Default)]
struct Words<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Result<Words<'a>, String> {
        let mut words = Words::default();
        for word in text.split(',') {
            let Some((name, value)) = word.split_once('=') else {
                return Err(format!("{word:?} is not NAME=VALUE"));
            };
            if words.0.iter().any(|w| w.0 == name) {
                return Err(format!("{name} is there twice"));
            }
            words.0.push((name, value));
        }
        Ok(words)
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|w| w.0 == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        self.take(name).map_or(Ok(default), |v| v.parse().map_err(|_| format!("{name}={v} is no number")))
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let mut words = Words::of(text)?;
    let on = match words.take("on") {
        Some("any") => On::Any,
        Some("write") => On::Write,
        Some("truncate") => On::Truncate,
        Some("create") => On::Create,
        Some("remove") => On::Remove,
        Some("rename") => On::Rename,
        Some("fsync") => On::Fsync,
        Some(other) => return Err(format!("there is no on={other}")),
        None => return Err("on= is missing".into()),
    };
    let path = words.take("path").map(Pattern::new);
    let (nth, count) = (words.number("nth", 1)?, words.number("count", 1)?);
    if nth == 0 {
        return Err("calls are counted from nth=1".into());
    }
    let action = match words.take("do") {
        Some(word @ ("crash" | "torn")) => parse_crash(word, on, &mut words)?,
        Some("eio") => parse_failure(errno::EIO, on, &mut words)?,
        Some("enospc") => parse_failure(errno::ENOSPC, on, &mut words)?,
        Some("edquot") => parse_failure(errno::EDQUOT, on, &mut words)?,
        Some("slow") if on == On::Fsync => match words.number("time", 1000)? {
            time @ 0..=SLOW_MAX => Action::Slow(Duration::from_millis(time)),
            time => return Err(format!("time={time} is more than {SLOW_MAX} milliseconds")),
        },
        Some("slow") => return Err("do=slow is for on=fsync".into()),
        Some(other) => return Err(format!("there is no do={other}")),
        None => return Err("do= is missing".into()),
    };
    match words.0.first() {
        Some((name, _)) => Err(format!("{name}= does not belong here")),
        None => Ok(Rule { on, path, nth, count, action, text: text.to_owned() }),
    }
}

fn parse_crash(word: &str, on: On, words: &mut Words<'_>) -> Result<Action, String> {
    let name = words.take("model").unwrap_or("posix");
    let model = Model::by_name(name).ok_or_else(|| format!("there is no model {name:?}"))?;
    let (lose, after) = match word {
        "torn" if on == On::Write => (Lose::Torn, true),
        "torn" => return Err("do=torn is for on=write".into()),
        _ => {
            let lose = match words.take("lose") {
                None | Some("all") => Lose::All,
                Some(seed) => Lose::Random(
                    seed.parse().map_err(|_| format!("lose={seed} is neither all nor a number"))?,
                ),
            };
            let after = match words.take("when") {
                None | Some("before") => false,
                Some("after") => true,
                Some(other) => return Err(format!("there is no when={other}")),
            };
            (lose, after)
        }
    };
    if lose == Lose::Torn && !model.torn_pages {
        return Err(format!("{name} tears no pages"));
    }
    let kill = match words.take("kill") {
        None => None,
        Some("caller") => Some(Kill::Caller),
        Some(pid) => match pid.parse() {
            Ok(pid @ 2..) => Some(Kill::Process(pid)),
            _ => return Err(format!("kill={pid} is no process")),
        },
    };
    Ok(Action::Crash { crash: Crash { model, lose }, after, kill })
}

fn parse_failure(errno: i32, on: On, words: &mut Words<'_>) -> Result<Action, String> {
    let like = match words.take("like") {
        Some(_) if on != On::Fsync => return Err("like= is for on=fsync".into()),
        None | Some("ext4") => Like::Ext4,
        Some("xfs") => Like::Xfs,
        Some("btrfs") => Like::Btrfs,
        Some(other) => return Err(format!("there is no like={other}")),
    };
    Ok(Action::Fail { errno, like })
}

/// The rules, each with its count of matches.
#[derive(Default)]
pub struct Rules(Vec<Armed>);

struct Armed {
    rule: Rule,
    seen: u64,
    done: u64,
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn add(&mut self, rule: Rule) {
        self.0.push(Armed { rule, seen: 0, done: 0 });
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Each rule, with the number of calls that it matched and the number of times that it was
    /// applied.
    pub fn list(&self) -> Vec<(String, u64, u64)> {
        self.0.iter().map(|a| (a.rule.to_string(), a.seen, a.done)).collect()
    }

    /// Counts a call with its paths in every rule that matches it. Returns the action of the first
    /// rule that is due.
    pub fn meet(&mut self, on: On, paths: &[Vec<u8>]) -> Option<Action> {
        let mut action = None;
        for armed in &mut self.0 {
            let rule = &armed.rule;
            let is_on = rule.on == On::Any || rule.on == on;
            let is_there = || rule.path.as_ref().is_none_or(|p| paths.iter().any(|path| p.matches(path)));
            if !is_on || !is_there() {
                continue;
            }
            armed.seen += 1;
            let is_due = armed.seen >= rule.nth && (rule.count == 0 || armed.done < rule.count);
            if is_due && action.is_none() {
                armed.done += 1;
                action = Some(rule.action);
            }
        }
        action
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
