//! Faults in the manner of LazyFS: at which calls data is lost, and which part of a write survives.
//!
//! Each fault counts the calls that it matches. A fault that names an occurrence is due at that
//! call and never again; a fault without one is due at each matching call.

use regex::bytes::Regex;
use std::fmt;
use std::ops::Range;

/// The calls at which a fault can be due. LazyFS also has `access`, but the kernel sends no request
/// for it, because the kernel itself knows the rights of all files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Create,
    Fsync,
    Link,
    Open,
    Read,
    Rename,
    Symlink,
    Truncate,
    Unlink,
    Write,
}

impl Op {
    pub const ALL: [Op; 10] = [
        Op::Create,
        Op::Fsync,
        Op::Link,
        Op::Open,
        Op::Read,
        Op::Rename,
        Op::Symlink,
        Op::Truncate,
        Op::Unlink,
        Op::Write,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Op::Create => "create",
            Op::Fsync => "fsync",
            Op::Link => "link",
            Op::Open => "open",
            Op::Read => "read",
            Op::Rename => "rename",
            Op::Symlink => "symlink",
            Op::Truncate => "truncate",
            Op::Unlink => "unlink",
            Op::Write => "write",
        }
    }

    pub fn by_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Whether the call has two paths.
    pub fn has_two_paths(self) -> bool {
        matches!(self, Op::Link | Op::Rename | Op::Symlink)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    Before,
    After,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Timing::Before { "before" } else { "after" })
    }
}

/// The paths that a fault matches. Paths are relative to the mount. Patterns are matched with paths
/// as LazyFS shows them, below its root directory.
#[derive(Clone, Debug)]
pub enum Named {
    Path(Vec<u8>),
    /// The pattern must match somewhere in `root/path`.
    Pattern(Regex),
}

impl Named {
    fn is(&self, path: &[u8], root: &[u8]) -> bool {
        match self {
            Named::Path(named) => named == path,
            Named::Pattern(regex) => regex.is_match(&[root, b"/", path].concat()),
        }
    }
}

/// A fault that loses data before or after a call.
#[derive(Clone, Debug)]
pub struct Clear {
    pub op: Op,
    pub timing: Timing,
    pub from: Option<Named>,
    pub to: Option<Named>,
    /// The matching call at which the fault is due, counted from 1. `None` for every matching call.
    pub occurrence: Option<u64>,
    /// Whether the file system ends with the loss.
    pub crash: bool,
}

/// How a write is divided into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts {
    /// This number of parts of equal size; the last part also has the remainder.
    Equal(u64),
    /// Parts of these sizes, which must add up to the size of the write.
    Bytes(Vec<u64>),
}

impl Parts {
    pub fn count(&self) -> u64 {
        match self {
            Parts::Equal(count) => *count,
            Parts::Bytes(sizes) => sizes.len() as u64,
        }
    }

    /// The range of part `part`, counted from 1, in a write of `len` bytes.
    fn range(&self, part: u64, len: u64) -> Option<Range<u64>> {
        match self {
            Parts::Equal(count) => {
                let size = len / count;
                let start = (part - 1) * size;
                Some(start..if part == *count { len } else { start + size })
            }
            Parts::Bytes(sizes) => {
                let total = sizes.iter().try_fold(0u64, |sum, size| sum.checked_add(*size))?;
                let start = sizes.iter().take(part as usize - 1).sum::<u64>();
                (total == len).then(|| start..start + sizes[part as usize - 1])
            }
        }
    }
}

/// A fault by which one write survives in part and the file system ends.
#[derive(Clone, Debug)]
pub struct TornOp {
    pub file: Vec<u8>,
    /// The number of the write to the file, counted from 1.
    pub occurrence: u64,
    pub parts: Parts,
    /// The numbers of the parts that survive, counted from 1.
    pub persist: Vec<u64>,
}

/// A fault by which some of several writes to a file without an fsync between them survive, and the
/// file system ends.
#[derive(Clone, Debug)]
pub struct TornSeq {
    pub file: Vec<u8>,
    /// The number of the group of at least two writes, counted from 1.
    pub occurrence: u64,
    /// The numbers of the group's writes that survive, counted from 1.
    pub persist: Vec<u64>,
}

#[derive(Clone, Debug)]
pub enum Fault {
    Clear(Clear),
    TornOp(TornOp),
    TornSeq(TornSeq),
}

/// A part of a write that survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The path of the file relative to the mount.
    pub path: Vec<u8>,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// A call as faults match it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub op: Op,
    /// The path of the call, or its first path. For a symlink this is its target.
    pub from: &'a [u8],
    pub to: Option<&'a [u8]>,
    /// The offset and the bytes of a write.
    pub bytes: Option<(u64, &'a [u8])>,
}

/// The effect of a fault that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub kept: Vec<Kept>,
    pub crash: bool,
}

/// The faults that are due at a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Met {
    pub before: Option<Due>,
    pub after: Option<Due>,
    /// Why a fault cannot be applied to the call at which it is due.
    pub refused: Option<String>,
}

/// All faults, each with its counts.
#[derive(Default)]
pub struct Faults {
    root: Vec<u8>,
    armed: Vec<Armed>,
}

struct Armed {
    fault: Fault,
    seen: u64,
    /// For a sequence: the writes of the present group that survive if the fault is due in it, and
    /// the number of writes in the group.
    group: Vec<Kept>,
    writes: u64,
}

impl Faults {
    /// Makes an empty set of faults. Patterns match paths below `root`.
    pub fn below(root: Vec<u8>) -> Faults {
        Faults { root, armed: Vec::new() }
    }

    pub fn add(&mut self, fault: Fault) {
        self.armed.push(Armed { fault, seen: 0, group: Vec::new(), writes: 0 });
    }

    /// Counts a call in every fault. Returns the first fault that is due before the call, and the
    /// first that is due after it.
    pub fn meet(&mut self, seen: &Seen<'_>) -> Met {
        let mut met = Met::default();
        for armed in &mut self.armed {
            let (timing, due) = match armed.meet(seen, &self.root) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(why) => {
                    met.refused = Some(why);
                    continue;
                }
            };
            match timing {
                Timing::Before => met.before = met.before.or(Some(due)),
                Timing::After => met.after = met.after.or(Some(due)),
            }
        }
        met
    }
}

impl Armed {
    fn meet(&mut self, seen: &Seen<'_>, root: &[u8]) -> Result<Option<(Timing, Due)>, String> {
        match &self.fault {
            Fault::Clear(clear) => {
                let is = |named: &Option<Named>, path: Option<&[u8]>| {
                    named.as_ref().is_none_or(|named| path.is_some_and(|path| named.is(path, root)))
                };
                if clear.op != seen.op || !is(&clear.from, Some(seen.from)) || !is(&clear.to, seen.to) {
                    return Ok(None);
                }
                self.seen += 1;
                let is_due = clear.occurrence.is_none_or(|nth| nth == self.seen);
                Ok(is_due.then(|| (clear.timing, Due { kept: Vec::new(), crash: clear.crash })))
            }
            Fault::TornOp(torn) => {
                let Some((offset, bytes)) = seen.bytes.filter(|_| torn.file == seen.from) else {
                    return Ok(None);
                };
                self.seen += 1;
                if self.seen != torn.occurrence {
                    return Ok(None);
                }
                let kept: Option<Vec<Kept>> = torn
                    .persist
                    .iter()
                    .map(|part| {
                        let range = torn.parts.range(*part, bytes.len() as u64)?;
                        let bytes = bytes[range.start as usize..range.end as usize].to_vec();
                        Some(Kept { path: seen.from.to_vec(), offset: offset + range.start, bytes })
                    })
                    .collect();
                let kept = kept.ok_or_else(|| {
                    format!(
                        "write {} to the file has {} bytes, which is not the sum of parts_bytes",
                        self.seen,
                        bytes.len()
                    )
                })?;
                Ok(Some((Timing::After, Due { kept, crash: true })))
            }
            Fault::TornSeq(torn) if torn.file == seen.from => {
                if seen.op == Op::Fsync {
                    self.writes = 0;
                    self.group.clear();
                }
                let Some((offset, bytes)) = seen.bytes else { return Ok(None) };
                self.writes += 1;
                // A group has at least two writes, so it is counted at its second one.
                self.seen += u64::from(self.writes == 2);
                let is_next = self.writes == 1 && self.seen + 1 == torn.occurrence;
                let is_in = self.writes > 1 && self.seen == torn.occurrence;
                if (is_next || is_in) && torn.persist.contains(&self.writes) {
                    let (path, bytes) = (seen.from.to_vec(), bytes.to_vec());
                    self.group.push(Kept { path, offset, bytes });
                }
                let last = torn.persist.iter().copied().max().unwrap_or(0).max(2);
                let is_due = is_in && self.writes == last;
                Ok(is_due
                    .then(|| (Timing::After, Due { kept: std::mem::take(&mut self.group), crash: true })))
            }
            Fault::TornSeq(_) => Ok(None),
        }
    }
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
