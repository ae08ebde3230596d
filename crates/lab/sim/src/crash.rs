//! The oracle: the states that a crash may leave.
//!
//! A [`History`] holds the operations and the model's state after each: state `i` is the state
//! after `i` operations. Allowed after a crash:
//! 1. *Names and attributes* equal state `k` for one `k` for the whole file system. All metadata
//!    operations form one sequence, of which a prefix survives. So each rename, link, unlink, chmod
//!    etc. survives whole or not at all.
//! 2. `k` is not below the *floor*: an fsync persists everything up to the last operation that
//!    touched its inode, and everything before the fsync if it forced the log
//!    ([`Promise::Prefix`]). A sync persists everything.
//! 3. `k` is at most the number of completed operations, plus one if another one was in progress.
//! 4. *Bytes* of a file are outside the sequence: each is a value that the byte had between the
//!    file's last persisted point and the crash. Offsets beyond the end have no value: a size or a
//!    block is recorded only after the bytes, so a file that grew by writes never shows zeros in
//!    their place. Zeros are a value where the file had them, as in a gap that a write or a
//!    truncate left. An operation of the sequence that changes bytes (truncate, punch, zero) and is
//!    in the prefix moves the start of that window for the bytes it touched: bytes past a truncate
//!    never reappear.
//! 5. *Sizes* grown by plain writes are outside the sequence too: the size is one that the file had
//!    in the window, or between two successive ones if a write extended it. Sizes set by truncate
//!    and fallocate are in the sequence.
//! 6. *Time stamps* persisted by fsync are, to the nanosecond, values that they have had since
//!    then, or those of the inode's last change in the prefix, whose record carries them. For mtime
//!    and ctime the model must have learned what the file system set; otherwise only times that
//!    were set explicitly are checked. Setting times alone is outside the sequence, as a plain
//!    write is.
//!
//! Not checked here: consistency of the image below the interface (fsck checks that), and inodes
//! without a name.

use crate::content::{CHUNK, Content, pieces};
use crate::model::{DataChange, Effect, Id, Model, Persist};
use crate::ops::{Falloc, Op, Outcome, print_ops};
use crate::view::{Depth, Found, View, compare_trees};
use kedgefs::FileSystem;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What an fsync that forces the log makes durable besides its own inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Everything up to the last change of the inode, even if the log was forced otherwise before.
    LastChange,
    /// Everything that had completed before the fsync. This holds only if nothing but the history's
    /// own operations forces the log (no commit timer, no checkpoint). Otherwise the inode may
    /// already be durable, and its fsync forces nothing.
    Prefix,
}

/// An operation and its effect.
#[derive(Clone, Debug)]
pub struct Step {
    pub op: Op,
    pub outcome: Outcome,
    pub effect: Effect,
    pub after: Model,
}

impl Step {
    /// Whether the operation may force the log by itself. Collapse and insert range force the log
    /// before anything is written to the blocks that they moved. The first clone writes a
    /// checkpoint, and so does a resize.
    fn may_force(&self) -> bool {
        let moves = matches!(self.op, Op::Fallocate { how: Falloc::Collapse | Falloc::Insert, .. });
        let checkpoints = matches!(self.op, Op::Clone { .. } | Op::CloneFile { .. } | Op::Resize { .. });
        moves || checkpoints || self.effect.persist.is_some()
    }
}

/// The operations since the whole image was last known to be durable.
#[derive(Clone, Debug)]
pub struct History {
    start: Model,
    steps: Vec<Step>,
    promise: Promise,
}

impl History {
    /// Starts a history. `start` is the state that is durable now.
    pub fn new(start: Model, promise: Promise) -> History {
        History { start, steps: Vec::new(), promise }
    }

    pub fn push(&mut self, op: Op, outcome: Outcome, effect: Effect, after: Model) {
        self.steps.push(Step { op, outcome, effect, after });
    }

    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The state after `count` operations.
    pub fn state(&self, count: usize) -> &Model {
        if count == 0 { &self.start } else { &self.steps[count - 1].after }
    }

    /// The persistence operations among the first `count`, all of which returned success.
    pub fn persists_before(&self, count: usize) -> Vec<usize> {
        let steps = self.steps[..count].iter().enumerate();
        steps.filter(|(_, s)| s.effect.persist.is_some() && s.outcome.is_ok()).map(|(i, _)| i).collect()
    }

    /// Returns the lowest allowed prefix, and the persisted point of each inode.
    fn floors(&self, persists: &[usize]) -> Floors {
        let mut floors = Floors::default();
        for &at in persists {
            match self.steps[at].effect.persist {
                None => {}
                // A tree operation is itself durable.
                Some(Persist::All) => {
                    let since = at + usize::from(self.steps[at].effect.ordered);
                    (floors.prefix, floors.all) = (since, since);
                }
                Some(Persist::Inode { id, datasync }) => {
                    floors.data.insert(id, at);
                    if !datasync {
                        floors.times.insert(id, at);
                    }
                    let needs = |step: &Step| {
                        let effect = &step.effect;
                        effect.ordered && effect.touched.contains(&id) && (effect.datasync || !datasync)
                    };
                    let last = self.steps[..at].iter().rposition(needs);
                    floors.prefix = floors.prefix.max(last.map_or(0, |last| last + 1));
                    let grows = |step: &Step| step.effect.data.is_some_and(|d| d.id == id && d.grew);
                    // Everything before this point may be durable already: an earlier operation may
                    // have forced more of the log than it must, and then this fsync forces nothing.
                    let forced =
                        self.steps[..at].iter().rposition(|step| step.may_force()).map_or(0, |i| i + 1);
                    let forces = self.steps[forced..at].iter().any(|step| needs(step) || grows(step));
                    if self.promise == Promise::Prefix && forces {
                        floors.prefix = floors.prefix.max(at);
                    }
                }
            }
        }
        floors
    }

    fn print(&self, crash_after: usize) -> String {
        let mut out = String::new();
        for (i, step) in self.steps.iter().enumerate() {
            if i == crash_after {
                out += "      -- crash --\n";
            }
            let line = print_ops(std::slice::from_ref(&step.op));
            out += &format!("{i:5} {} => {:?}\n", line.trim_end(), step.outcome);
            if i > crash_after {
                break;
            }
        }
        out
    }
}

#[derive(Default)]
struct Floors {
    /// The lowest state that names and attributes may have.
    prefix: usize,
    /// The state up to which all data is durable.
    all: usize,
    data: BTreeMap<Id, usize>,
    times: BTreeMap<Id, usize>,
}

impl Floors {
    fn data_of(&self, id: Id) -> usize {
        self.data.get(&id).copied().unwrap_or(0).max(self.all)
    }

    fn times_of(&self, id: Id) -> usize {
        self.times.get(&id).copied().unwrap_or(0).max(self.all)
    }
}

/// A state that the guarantees do not allow.
#[derive(Clone, Debug)]
pub struct Violation {
    pub what: String,
    /// Number of operations that had returned.
    pub crash_after: usize,
    pub floor: usize,
    /// For each allowed prefix, the reason why it does not fit.
    pub reasons: Vec<(usize, String)>,
    /// The operations up to the crash, printed.
    pub history: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "crash after {} operations, floor {}: {}", self.crash_after, self.floor, self.what)?;
        for (k, reason) in &self.reasons {
            writeln!(f, "  not state {k}: {reason}")?;
        }
        write!(f, "{}", self.history)
    }
}

impl std::error::Error for Violation {}

/// Checks that the content of `fs` after a crash is allowed. `crash_after` operations had returned,
/// and the next one of the history (if any) may have been in progress; `persists` are the numbers
/// of the persistence operations that had returned success.
///
/// Returns the state whose names and attributes were found.
pub fn check_state(
    fs: &FileSystem,
    history: &History,
    crash_after: usize,
    persists: &[usize],
) -> Result<usize, Box<Violation>> {
    let view = View::of(fs);
    check_view(view.as_ref().map_err(|e| e.clone()), history, crash_after, persists)
}

/// Like [`check_state`], for a tree that was already read (or could not be read).
pub fn check_view(
    view: Result<&View, String>,
    history: &History,
    crash_after: usize,
    persists: &[usize],
) -> Result<usize, Box<Violation>> {
    let floors = history.floors(persists);
    let last = (crash_after + 1).min(history.len());
    let violation = |what: String, reasons| {
        Box::new(Violation {
            what,
            crash_after,
            floor: floors.prefix,
            reasons,
            history: history.print(crash_after),
        })
    };
    let view = view.map_err(|e| violation(e, Vec::new()))?;
    let mut reasons = Vec::new();
    for k in floors.prefix..=last {
        // Prefixes differ only by operations of the sequence, so others need no check of their own.
        if k > floors.prefix && !history.steps[k - 1].effect.ordered {
            continue;
        }
        match fits(view, history, &floors, k, last) {
            Ok(()) => return Ok(k),
            Err(reason) => reasons.push((k, reason)),
        }
    }
    Err(violation("no allowed state".to_owned(), reasons))
}

fn fits(view: &View, history: &History, floors: &Floors, k: usize, last: usize) -> Result<(), String> {
    let pairs = compare_trees(view, history.state(k), Depth::Names)?;
    for (id, ino) in pairs {
        let found = &view.inodes[&ino];
        let window = Window::new(history, id, floors.data_of(id), k, last);
        if history.state(k).inode(id).is_some_and(|inode| inode.is_file()) {
            window.check_size(found)?;
            window.check_bytes(found)?;
        }
        check_times(history, id, found, floors.times_of(id), (k, last))?;
    }
    Ok(())
}

/// One file between its persisted point and the crash, for a prefix `k`.
struct Window<'a> {
    history: &'a History,
    id: Id,
    /// First state of the window: the persisted point, or the inode's first state.
    low: usize,
    /// Last state in which the inode exists.
    high: usize,
    k: usize,
    /// Operations of the window that change the file's bytes or size.
    changes: Vec<(usize, &'a DataChange, bool)>,
}

impl<'a> Window<'a> {
    fn new(history: &'a History, id: Id, floor: usize, k: usize, last: usize) -> Window<'a> {
        let there = |state: &usize| history.state(*state).inode(id).is_some();
        let low = (floor..=last).find(there).unwrap_or(k);
        let high = (low..=last).take_while(there).last().unwrap_or(low);
        let steps = history.steps[low..high].iter().enumerate();
        let changes = steps.filter_map(|(i, step)| {
            let change = step.effect.data.as_ref().filter(|d| d.id == id)?;
            Some((low + i, change, step.effect.ordered))
        });
        Window { history, id, low, high, k, changes: changes.collect() }
    }

    fn content(&self, state: usize) -> &'a Content {
        &self.history.state(state).inode(self.id).expect("the window ends before the inode does").content
    }

    fn check_size(&self, found: &Found) -> Result<(), String> {
        let size = found.attr.size;
        let set = |at: usize, change: &DataChange| (change.sets_size, at < self.k);
        let from =
            self.changes.iter().filter(|(at, c, _)| set(*at, c) == (true, true)).map(|(at, ..)| at + 1).max();
        let to = self.changes.iter().find(|(at, c, _)| set(*at, c) == (true, false)).map(|(at, ..)| *at);
        let (from, to) = (from.unwrap_or(self.low), to.unwrap_or(self.high));
        // Between two operations that set the size, only writes change it, and they extend the
        // file. So all sizes between the two are allowed.
        let (least, most) = (self.content(from).size(), self.content(to).size());
        if (least..=most).contains(&size) {
            return Ok(());
        }
        Err(format!("{}: size {size}, it was {least} to {most} in states {from} to {to}", found.path))
    }

    fn check_bytes(&self, found: &Found) -> Result<(), String> {
        let mut numbers: BTreeSet<u64> = found.content.chunk_numbers().collect();
        numbers.extend(self.content(self.low).chunk_numbers());
        for (at, ..) in &self.changes {
            numbers.extend(self.content(at + 1).chunk_numbers());
        }
        for number in numbers {
            let base = number * CHUNK;
            if base >= found.attr.size {
                continue;
            }
            let recovered = found.content.chunk(number);
            let mut fair = [false; CHUNK as usize];
            let mut compare = |state: usize, (from, to): (u64, u64), only: bool| {
                let then = self.content(state).chunk(number);
                let (from, to) = (from.max(base), to.min(base + CHUNK));
                for (_, range) in pieces(from, to.max(from)) {
                    for i in range {
                        fair[i] = recovered[i] == then[i] || (fair[i] && !only);
                    }
                }
            };
            compare(self.low, (0, self.content(self.low).size()), true);
            for (at, change, ordered) in &self.changes {
                for range in self.given(*at, change) {
                    compare(at + 1, range, *ordered && *at < self.k);
                }
            }
            let visible = (found.attr.size - base).min(CHUNK) as usize;
            if let Some(i) = fair[..visible].iter().position(|fair| !fair) {
                return Err(self.explain(found, base + i as u64));
            }
        }
        Ok(())
    }

    /// The ranges of offsets that have their bytes from the operation of this state: those that it
    /// changed, and those by which it extended the file.
    fn given(&self, at: usize, change: &DataChange) -> [(u64, u64); 2] {
        [(change.from, change.to), (self.content(at).size(), self.content(at + 1).size())]
    }

    fn explain(&self, found: &Found, at: u64) -> String {
        let byte = |content: &Content| match content.read(at, 1).first() {
            Some(value) => format!("{value:#04x}"),
            None => "beyond the end".to_owned(),
        };
        let mut had = vec![(self.low, byte(self.content(self.low)))];
        for (step, change, _) in &self.changes {
            if self.given(*step, change).iter().any(|(from, to)| (*from..*to).contains(&at)) {
                had.push((step + 1, byte(self.content(step + 1))));
            }
        }
        let values: Vec<String> =
            had.iter().map(|(state, value)| format!("{value} in state {state}")).collect();
        format!("{}: byte {at} is {}, it was {}", found.path, byte(&found.content), values.join(", "))
    }
}

/// Checks the time stamps that the model knows in the whole window.
fn check_times(
    history: &History,
    id: Id,
    found: &Found,
    floor: usize,
    (k, last): (usize, usize),
) -> Result<(), String> {
    // An inode had no times before its creation. So times that no fsync made durable may be
    // anything.
    if history.state(floor).inode(id).is_none() {
        return Ok(());
    }
    // The last change among the metadata operations of the prefix. Plain writes are outside of the
    // sequence: their times may become durable later or not at all. So are operations that only set
    // times, which become durable with an fsync.
    let lazy = |step: &Step| matches!(step.op, Op::Utimes { .. });
    let touches = |step: &Step| step.effect.ordered && step.effect.touched.contains(&id) && !lazy(step);
    let change = history.steps[..k].iter().rposition(touches).map_or(0, |at| at + 1);
    let states = (floor.max(change)..=last).filter_map(|state| history.state(state).inode(id));
    let (mut mtimes, mut ctimes, mut atimes) = (Vec::new(), Vec::new(), Vec::new());
    for inode in states {
        mtimes.push(inode.mtime);
        ctimes.push(inode.ctime);
        atimes.push(inode.atime);
    }
    let attr = &found.attr;
    for (name, found_time, mut times) in
        [("mtime", attr.mtime, mtimes), ("ctime", attr.ctime, ctimes), ("atime", attr.atime, atimes)]
    {
        times.dedup();
        if !times.is_empty() && times.iter().all(|t| t.is_some_and(|t| t != found_time)) {
            return Err(format!("{}: {name} {found_time:?}, it was one of {times:?}", found.path));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "crash_tests.rs"]
mod tests;
