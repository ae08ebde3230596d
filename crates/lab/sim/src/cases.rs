//! Runs written-down fsync cases: operations, a power failure, and what must hold afterwards.
//!
//! A case is one JSON object a line: `test` and `variant` name it, `ops` are arrays of a word and
//! its arguments, `expect_after_crash` are objects with one expectation each. Power fails at each
//! `crash` operation, or after the last operation if there is no `crash`. An expectation belongs to
//! the crash that it names (`"crash": 1`), or to the last one.
//!
//! The strongest level is expected throughout: an fsync that forces the log makes everything before
//! it durable.

use crate::crash::Promise;
use crate::model::{Inode, Model};
use crate::ops::{Falloc, Fill, Op, Rename, Special, Target, XattrFlag};
use crate::rig::{Rig, Setup};
use crate::view::{Depth, Found, View, compare_trees, data_ranges};
use kedge_device::sim::Choice;
use kedgefs::FileKind;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The cases, one a line.
pub const FSYNC: &str = include_str!("../cases/fsync.jsonl");
/// Cases in which an inode leaves the cache between two changes of it and comes back (`evict`).
/// Btrfs kept in the inode whether the log has it, and lost that with the inode: deletions, new
/// names and files were lost with the power. Its commits 0f8ce49821de and 88d2beec7e53 describe
/// that, and avoid what its first mends cost. A file whose pages are cached stays, so the files
/// that leave are empty. Not for a mount: no program decides what leaves the cache of its server.
pub const EVICTED: &str = include_str!("../cases/evicted.jsonl");

/// Memory for caches in a case that evicts, and the inodes that displace those of the case.
const EVICTING_CACHE: u64 = 2 << 20;
const FILLERS: u64 = 2000;
const EVICTING_PASSES: u64 = 3;

/// Limit of operations from one word that are kept in the history, since the oracle needs a version
/// for each.
const KEPT_MAX: usize = 500;

/// One case as written.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    pub test: String,
    #[serde(default)]
    pub variant: Option<String>,
    pub ops: Vec<Vec<Value>>,
    pub expect_after_crash: Vec<BTreeMap<String, Value>>,
    pub why: String,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// The case needs something that the file system does not offer.
    Skipped(String),
}

impl Case {
    pub fn parse_all(text: &str) -> serde_json::Result<Vec<Case>> {
        text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str).collect()
    }

    pub fn name(&self) -> String {
        match &self.variant {
            Some(variant) => format!("{} {variant}", self.test),
            None => self.test.clone(),
        }
    }

    /// Number of power failures in the case.
    pub fn crashes(&self) -> usize {
        self.ops.iter().filter(|op| op[0] == "crash").count().max(1)
    }

    /// Runs the case on a fresh image. Each power failure leaves the medium that `choice` selects.
    pub fn run(&self, choice: Choice) -> Result<Verdict, String> {
        let mut setup =
            Setup { compare_every: usize::MAX, log: 8 << 20, promise: Promise::Prefix, ..Setup::default() };
        let evicts = self.ops.iter().any(|op| op[0] == "evict");
        if evicts {
            setup.mount.cache_size = EVICTING_CACHE;
        }
        let mut run = Run { rig: Rig::new(setup)?, handles: BTreeMap::new(), before: Model::new() };
        if evicts {
            run.fill()?;
        }
        let mut crash = 0;
        for op in &self.ops {
            let said = |e: String| format!("{op:?}: {e}");
            if op[0] == "crash" {
                crash += 1;
                run.crash(self, crash, choice).map_err(said)?;
            } else {
                run.operate(&word(op).map_err(said)?).map_err(said)?;
            }
        }
        if crash == 0 {
            run.crash(self, 1, choice)?;
        }
        Ok(Verdict::Passed)
    }
}

/// An operation's word and arguments.
struct Word<'a> {
    name: &'a str,
    args: &'a [Value],
}

fn word(op: &[Value]) -> Result<Word<'_>, String> {
    match op {
        [Value::String(name), args @ ..] => Ok(Word { name, args }),
        _ => Err("an operation begins with a word".to_owned()),
    }
}

impl<'a> Word<'a> {
    fn text(&self, i: usize) -> Result<&'a str, String> {
        self.args
            .get(i)
            .and_then(Value::as_str)
            .ok_or_else(|| format!("argument {i} of {} is no text", self.name))
    }

    fn number(&self, i: usize) -> Result<u64, String> {
        self.args
            .get(i)
            .and_then(Value::as_u64)
            .ok_or_else(|| format!("argument {i} of {} is no number", self.name))
    }

    fn path(&self, i: usize) -> Result<String, String> {
        self.text(i).map(str::to_owned)
    }

    fn target(&self, i: usize) -> Result<Target, String> {
        self.path(i).map(Target::Path)
    }
}

/// Formats a number like `foo_%04d`.
pub fn numbered(format: &str, n: u64) -> Result<String, String> {
    let (head, rest) = format.split_once('%').ok_or("no % in a format")?;
    let (width, tail) = rest.split_once('d').ok_or("no d in a format")?;
    let width: usize = width.trim_start_matches('0').parse().unwrap_or(0);
    Ok(format!("{head}{n:0width$}{tail}"))
}

struct Run {
    rig: Rig,
    handles: BTreeMap<String, u8>,
    /// The tree just before the last crash.
    before: Model,
}

impl Run {
    fn handle(&mut self, name: &str) -> u8 {
        let next = self.handles.len() as u8;
        *self.handles.entry(name.to_owned()).or_insert(next)
    }

    fn exists(&self, path: &str) -> bool {
        self.rig.model.find(path).is_some()
    }

    /// Creates the inodes for [`Run::evict`], durably.
    fn fill(&mut self) -> Result<(), String> {
        self.rig.history = None;
        let mkdir = Op::Mkdir { path: "fill".to_owned(), mode: 0o755 };
        let create = |n| Op::Create { path: format!("fill/{n}"), mode: 0o644 };
        let ops = std::iter::once(mkdir).chain((0..FILLERS).map(create)).chain([Op::Sync]);
        ops.map(|op| self.rig.step(&op)).try_for_each(|outcome| match outcome? {
            Some(outcome) if outcome.is_ok() => Ok(()),
            other => Err(format!("an inode that fills the cache: {other:?}")),
        })
    }

    /// Reads other inodes until those of the case have left the cache, which passes by an inode
    /// that was used since its last visit. Only reads, so that nothing becomes durable by it.
    fn evict(&self) -> Result<(), String> {
        let fs = &self.rig.exec.fs;
        let engine = |e: kedgefs::Error| e.to_string();
        let dir = fs.lookup(kedgefs::Ino::ROOT, b"fill").map_err(engine)?.ino;
        let look = |n: u64| fs.lookup(dir, (n % FILLERS).to_string().as_bytes()).map(drop);
        (0..EVICTING_PASSES * FILLERS).try_for_each(look).map_err(engine)
    }

    fn operate(&mut self, word: &Word<'_>) -> Result<(), String> {
        if word.name == "evict" {
            return self.evict();
        }
        if word.name == "sleep" {
            let seconds = word.args.first().and_then(Value::as_f64).ok_or("sleep needs seconds")?;
            self.rig.clock.advance(Duration::from_secs_f64(seconds));
            return Ok(());
        }
        let ops = self.translate(word)?;
        if ops.len() > KEPT_MAX {
            self.rig.history = None;
        }
        for op in ops {
            match self.rig.step(&op)? {
                Some(outcome) if outcome.is_ok() => {}
                other => return Err(format!("{op:?} answers {other:?}")),
            }
        }
        Ok(())
    }

    fn translate(&mut self, word: &Word<'_>) -> Result<Vec<Op>, String> {
        let create = |path: String| Op::Create { path, mode: 0o644 };
        let mkdir = |path: String| Op::Mkdir { path, mode: 0o755 };
        let op = match word.name {
            "creat" => create(word.path(0)?),
            "mkdir" => mkdir(word.path(0)?),
            "mkdirs" => {
                let path = word.text(0)?;
                let ends = path.match_indices('/').map(|(i, _)| i).chain([path.len()]);
                return Ok(ends
                    .map(|end| &path[..end])
                    .filter(|p| !self.exists(p))
                    .map(|p| mkdir(p.to_owned()))
                    .collect());
            }
            "symlink" => Op::Symlink { target: word.path(0)?, path: word.path(1)? },
            "mknod" => {
                let special = if word.text(1)? == "fifo" { Special::Fifo } else { Special::Chr };
                Op::Mknod { path: word.path(0)?, special }
            }
            "link" => Op::Link { from: word.target(0)?, path: word.path(1)? },
            "unlink" => Op::Unlink { path: word.path(0)? },
            "rmdir" => Op::Rmdir { path: word.path(0)? },
            "remove" => self.removal(word.path(0)?),
            "rmtree" => {
                let root = word.path(0)?;
                let below =
                    |p: &str| p == root || p.strip_prefix(&root).is_some_and(|rest| rest.starts_with('/'));
                let paths = self.rig.model.paths().into_iter().rev().map(|(path, _)| path);
                return Ok(paths.filter(|p| below(p)).map(|path| self.removal(path)).collect());
            }
            "rename" => Op::Rename { from: word.path(0)?, to: word.path(1)?, how: Rename::Replace },
            "rename_x" => Op::Rename { from: word.path(0)?, to: word.path(1)?, how: Rename::Exchange },
            "many_links" => {
                let link = |n| Ok(Op::Link { from: word.target(0)?, path: numbered(word.text(1)?, n)? });
                return (word.number(2)?..=word.number(3)?).map(link).collect();
            }
            "many_unlink" => {
                let unlink = |n| Ok(Op::Unlink { path: numbered(word.text(0)?, n)? });
                return (word.number(1)?..=word.number(2)?).map(unlink).collect();
            }
            "chmod" => {
                let mode = u32::from_str_radix(word.text(1)?, 8).map_err(|e| e.to_string())?;
                Op::Chmod { on: word.target(0)?, mode }
            }
            "setxattr" => {
                let (on, name) = (word.target(0)?, word.path(1)?);
                Op::SetXattr { on, name, value: word.path(2)?, how: XattrFlag::Any }
            }
            "removexattr" => Op::RemoveXattr { on: word.target(0)?, name: word.path(1)? },
            _ => return self.translate_data(word),
        };
        Ok(vec![op])
    }

    fn removal(&self, path: String) -> Op {
        let inode = self.rig.model.find(&path).and_then(|id| self.rig.model.inode(id));
        if inode.is_some_and(Inode::is_dir) { Op::Rmdir { path } } else { Op::Unlink { path } }
    }

    fn translate_data(&mut self, word: &Word<'_>) -> Result<Vec<Op>, String> {
        let op = match word.name {
            // The file system gets direct IO and stores through a mapping as writes.
            "write" | "dwrite" | "mwrite" => {
                let path = word.path(0)?;
                let mut ops = self.created(&path);
                let len = word.number(2)? as u32;
                let (offset, fill) = (word.number(1)?, Fill::Byte(word.number(3)? as u8));
                ops.push(Op::Write { on: Target::Path(path), offset, len, fill });
                return Ok(ops);
            }
            "text" => {
                let path = word.path(0)?;
                let mut ops = match self.exists(&path) {
                    true => vec![Op::Truncate { on: Target::Path(path.clone()), size: 0 }],
                    false => self.created(&path),
                };
                ops.push(Op::WriteText { on: Target::Path(path), offset: 0, text: word.path(1)? });
                return Ok(ops);
            }
            "append" => Op::Append { on: word.target(0)?, text: word.path(1)? },
            "truncate" => Op::Truncate { on: word.target(0)?, size: word.number(1)? },
            "falloc" => {
                let how = match word.text(1)? {
                    "alloc" => Falloc::Alloc,
                    "keep" => Falloc::Keep,
                    "zero" => Falloc::Zero,
                    "zero_keep" => Falloc::ZeroKeep,
                    "punch" => Falloc::Punch,
                    "collapse" => Falloc::Collapse,
                    "insert" => Falloc::Insert,
                    other => return Err(format!("unknown mode {other}")),
                };
                Op::Fallocate { on: word.target(0)?, how, offset: word.number(2)?, len: word.number(3)? }
            }
            "clone" => {
                let (source, to) = (word.target(0)?, word.path(2)?);
                let mut ops = self.created(&to);
                let (from, at, len) = (word.number(1)?, word.number(3)?, word.number(4)?);
                ops.push(Op::Clone { source, from, on: Target::Path(to), to: at, len });
                return Ok(ops);
            }
            "fsync" => Op::Fsync { on: word.target(0)? },
            "fdatasync" | "msync" => Op::Fdatasync { on: word.target(0)? },
            "sync" | "syncfs" => Op::Sync,
            // Both promise nothing. `drop_caches` concerns the kernel's caches, and here are only
            // the engine's.
            "sync_range" | "drop_caches" => return Ok(Vec::new()),
            _ => return self.translate_handles(word),
        };
        Ok(vec![op])
    }

    fn created(&self, path: &str) -> Vec<Op> {
        if self.exists(path) { Vec::new() } else { vec![Op::Create { path: path.to_owned(), mode: 0o644 }] }
    }

    fn translate_handles(&mut self, word: &Word<'_>) -> Result<Vec<Op>, String> {
        Ok(match word.name {
            "open" => vec![Op::Open { path: word.path(0)?, handle: self.handle(word.text(1)?) }],
            "open_unlinked" => {
                let path = word.path(0)?;
                let handle = self.handle(word.text(1)?);
                vec![Op::Open { path: path.clone(), handle }, Op::Unlink { path }]
            }
            "close" => vec![Op::Close { handle: self.handle(word.text(0)?) }],
            "fsync_h" => vec![Op::Fsync { on: Target::Handle(self.handle(word.text(0)?)) }],
            "tmpfile" => {
                let handle = self.handle(word.text(1)?);
                let (offset, len) = (word.number(2)?, word.number(3)? as u32);
                let fill = Fill::Byte(word.number(4)? as u8);
                let on = Target::Handle(handle);
                vec![
                    Op::Tmpfile { dir: word.path(0)?, handle, mode: 0o600 },
                    Op::Write { on, offset, len, fill },
                ]
            }
            other => return Err(format!("unknown operation {other}")),
        })
    }

    fn crash(&mut self, case: &Case, number: usize, choice: Choice) -> Result<(), String> {
        self.before = self.rig.model.clone();
        self.handles.clear();
        self.rig.crash(choice)?;
        for expectation in &case.expect_after_crash {
            let at = expectation.get("crash").and_then(Value::as_u64).map_or(case.crashes(), |n| n as usize);
            if at == number {
                self.expect(expectation)
                    .map_err(|e| format!("after crash {number}, {expectation:?}: {e}"))?;
            }
        }
        Ok(())
    }

    fn expect(&mut self, expectation: &BTreeMap<String, Value>) -> Result<(), String> {
        if let Some(Value::Array(alternatives)) = expectation.get("one_of") {
            let mut reasons = Vec::new();
            for alternative in alternatives {
                let list: Vec<BTreeMap<String, Value>> =
                    serde_json::from_value(alternative.clone()).map_err(|e| e.to_string())?;
                match list.iter().try_for_each(|e| self.expect(e)) {
                    Ok(()) => return Ok(()),
                    Err(e) => reasons.push(e),
                }
            }
            return Err(format!("none of them: {reasons:?}"));
        }
        if let Some(Value::Array(op)) = expectation.get("can") {
            return self.operate(&word(op)?);
        }
        let view = View::of(&self.rig.exec.fs)?;
        if let Some(path) = expectation.get("same_as_before").and_then(Value::as_str) {
            return self.same_as_before(&view, path);
        }
        let e = Expectation { view: &view, map: expectation };
        if expectation.contains_key("allocated") {
            return e.allocated(&self.rig);
        }
        e.check()
    }

    fn same_as_before(&self, view: &View, path: &str) -> Result<(), String> {
        if path == "." {
            return compare_trees(view, &self.before, Depth::Everything).map(|_| ());
        }
        Err("same_as_before is known for the whole tree only".to_owned())
    }
}

/// A simple expectation, and the tree to which it applies.
struct Expectation<'a> {
    view: &'a View,
    map: &'a BTreeMap<String, Value>,
}

impl Expectation<'_> {
    fn text(&self, key: &str) -> Result<&str, String> {
        self.map.get(key).and_then(Value::as_str).ok_or_else(|| format!("{key} is no text"))
    }

    fn number(&self, key: &str) -> Result<u64, String> {
        self.map.get(key).and_then(Value::as_u64).ok_or_else(|| format!("{key} is no number"))
    }

    fn list<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<T, String> {
        let value = self.map.get(key).ok_or_else(|| format!("{key} is missing"))?;
        serde_json::from_value(value.clone()).map_err(|e| format!("{key}: {e}"))
    }

    fn found(&self, key: &str) -> Result<&Found, String> {
        let path = self.text(key)?;
        self.view.at(path).ok_or_else(|| format!("{path} is missing"))
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, found: T, expected: T) -> Result<(), String> {
        if found == expected { Ok(()) } else { Err(format!("found {found:?}, expected {expected:?}")) }
    }

    fn check(&self) -> Result<(), String> {
        let has = |key: &str| self.map.contains_key(key);
        if has("exists") {
            self.exists()
        } else if has("absent") {
            match self.view.at(self.text("absent")?) {
                Some(_) => Err("is there".to_owned()),
                None => Ok(()),
            }
        } else if has("ls") {
            let names: Vec<String> = self.list("names")?;
            self.same(self.found("ls")?.entries.keys().cloned().collect(), names)
        } else if has("nlink") {
            self.same(self.found("nlink")?.attr.nlink as u64, self.number("n")?)
        } else if has("size") {
            self.same(self.found("size")?.attr.size, self.number("n")?)
        } else if has("data") {
            self.data()
        } else if has("xattrs") {
            let map: BTreeMap<String, String> = self.list("map")?;
            let found = self.found("xattrs")?.xattrs.clone();
            self.same(found.into_iter().filter(|(name, _)| name.starts_with("user.")).collect(), map)
        } else if has("mode") {
            self.same(format!("{:o}", self.found("mode")?.attr.mode & 0o7777), self.text("oct")?.to_owned())
        } else if has("readlink") {
            self.same(self.found("readlink")?.target.as_str(), self.text("target")?)
        } else if has("same_inode") {
            let paths: Vec<String> = self.list("same_inode")?;
            let inos = paths.iter().map(|p| Ok(self.view.at(p).ok_or(format!("{p} is missing"))?.attr.ino));
            let inos: Result<Vec<_>, String> = inos.collect();
            let inos = inos?;
            self.same(inos.iter().all(|ino| *ino == inos[0]), true)
        } else if has("newer") {
            let (newer, than) = (self.found("newer")?.attr, self.found("than")?.attr);
            self.same((newer.mtime > than.mtime, newer.ctime > than.ctime), (true, true))
        } else {
            Err("unknown expectation".to_owned())
        }
    }

    fn exists(&self) -> Result<(), String> {
        let found = self.found("exists")?;
        let Ok(kind) = self.text("type") else { return Ok(()) };
        let kind = match kind {
            "file" => FileKind::Regular,
            "dir" => FileKind::Directory,
            "symlink" => FileKind::Symlink,
            "fifo" => FileKind::Fifo,
            "chr" => FileKind::CharDevice,
            other => return Err(format!("unknown type {other}")),
        };
        self.same(found.attr.kind, kind)
    }

    fn data(&self) -> Result<(), String> {
        let content = &self.found("data")?.content;
        let mut expected = crate::content::Content::default();
        if let Ok(text) = self.text("text") {
            expected.write(0, text.as_bytes());
        } else {
            let segments: Vec<(u64, u64, u8)> = self.list("segs")?;
            for (offset, len, byte) in segments {
                expected.write(offset, &vec![byte; len as usize]);
            }
        }
        self.same(content.size(), expected.size())?;
        match content.first_difference(&expected) {
            Some(at) => Err(format!(
                "byte {at} begins {:?}, expected {:?}",
                content.read(at, 4),
                expected.read(at, 4)
            )),
            None => Ok(()),
        }
    }

    /// Checks that exactly the blocks of `ranges` are allocated and that `holes` contain no data.
    fn allocated(&self, rig: &Rig) -> Result<(), String> {
        let found = self.found("allocated")?;
        let ranges: Vec<(u64, u64)> = self.list("ranges")?;
        let holes: Vec<(u64, u64)> = self.list("holes")?;
        self.same(found.attr.blocks * 512, ranges.iter().map(|(_, len)| len).sum())?;
        for (from, to) in data_ranges(&rig.exec.fs, &found.attr, &found.path)? {
            if let Some((hole, len)) = holes.iter().find(|(hole, len)| from < hole + len && *hole < to) {
                return Err(format!("data from {from} to {to} in the hole of {len} at {hole}"));
            }
        }
        Ok(())
    }
}
