//! Complete enumeration of small workloads: all sequences of one and of two operations over a few
//! names, with every choice of what is made persistent after each.
//!
//! A *core* is one operation with its arguments. A *skeleton* is a sequence of cores. What an
//! operation needs (a file with bytes, a free name, a directory) is prepared before it, so that it
//! succeeds. A *variant* of a skeleton chooses what is persisted: whether the preparation of the
//! first operation is, and which operation persists data after each operation. With one operation a
//! variant may also freeze and thaw, before and after it.
//!
//! # Symmetry
//! 1. `foo` and `bar` are interchangeable, and so are `A/foo` and `A/bar`, since a name is only
//!    looked up in its own directory. Of skeletons that differ only by exchanging them, one is
//!    kept. An operation with names of both pairs exchanges both pairs or none, since a move that
//!    keeps the name may be a special case. An operation on trees prepares `foo`, and one on limits
//!    `A/foo`, so skeletons with such an operation do not exchange that pair.
//! 2. Two names of one inode persist the same, so only one of them is synced.
//! 3. Each workload persists something after its last operation: one that does not is a prefix of
//!    another.
//! 4. The states that a crash can leave follow from the operations up to the one in progress. If
//!    several workloads begin with the same operations, crashes among these are judged in one of
//!    the workloads. Crashes before the second of two operations are judged in the workloads of one
//!    operation.

use crate::model::{Id, Model};
use crate::ops::{Falloc, Fill, Op, Rename, Special, Target, XattrFlag, print_ops, split};
use kedgefs::FileFlags;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::fmt;

const FILES: [&str; 4] = ["foo", "bar", "A/foo", "A/bar"];
const DIRS: [&str; 3] = ["A", "B", "A/C"];
/// Bytes of a prepared file: two blocks and a part of one, so that its end is not aligned.
const FILE_BYTES: u32 = 9000;
const MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;

/// One operation with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Core {
    Create(&'static str),
    Mkdir(&'static str),
    Mknod(&'static str),
    Symlink(&'static str),
    /// File, offset, length.
    Write(&'static str, u64, u32),
    Append(&'static str),
    Truncate(&'static str, u64),
    /// File, and index into `FALLOCS`.
    Fallocate(&'static str, usize),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    /// Old name, new name, and whether the new name exists before.
    Rename(&'static str, &'static str, bool),
    Exchange(&'static str, &'static str),
    /// A rename that leaves a whiteout; the same arguments as for `Rename`.
    Whiteout(&'static str, &'static str, bool),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    /// Replaces a value that is stored in several parts by one with fewer parts.
    ShrinkXattr(&'static str),
    /// Sets the access control list.
    SetAcl(&'static str),
    /// Sets the directory's default list.
    DefaultAcl(&'static str),
    /// Sets the mode of a file that has a list.
    ChmodAcl(&'static str),
    /// Sets a flag that new entries of a directory inherit.
    SetFlags(&'static str),
    /// Writes bytes to a nameless file, then links it to this name.
    Tmpfile(&'static str),
    /// Source, target, and index into `CLONES`.
    Clone(&'static str, &'static str, usize),
    /// Gives the second file the contents of the first.
    CloneFile(&'static str, &'static str),
    /// Forks the first tree; the fork gets this name.
    Fork(&'static str),
    DeleteTree(&'static str),
    /// Replaces the fork by a new fork of the first tree.
    RollBack(&'static str),
    /// Replaces the first tree by a fork of the fork.
    RollBackRoot(&'static str),
    /// Moves the fork to the place of the first tree.
    CommitRoot(&'static str),
    /// Makes the image larger, while a file is changed.
    Resize(&'static str),
    /// Makes the image smaller. Bytes of the file lie beyond the new end.
    Shrink(&'static str),
    /// Gives a limit to a directory that contains a file.
    Limit(&'static str),
}

/// The name of the fork, and the path of a file in it.
const TREE: &str = "S";
const IN_TREE: &str = "S/foo";
/// Bytes of the image at first and after a shrink: the smallest size of an image.
pub const IMAGE: u64 = 16 << 20;
/// Bytes of the image after a growth.
const GROWN: u64 = 18 << 20;
/// Bytes of the device, and of the image before a shrink.
pub const DEVICE: u64 = 24 << 20;
/// Name and length of a file that takes the space before the new end. So what is written after it
/// lies beyond the new end. The file is deleted before the shrink.
const FILLER: (&str, u64) = ("filler", 15 << 20);
/// Bytes that are written after the filler: more than an fsync puts into the log.
const FAR_BYTES: u32 = 70_000;
/// Limits in bytes and files that no workload reaches.
const LIMIT: (u64, u64) = (1 << 40, 1 << 30);

/// Mode, offset, length.
const FALLOCS: [(Falloc, u64, u64); BLOCKWISE + 9] = [
    (Falloc::Alloc, 8192, 16384),
    (Falloc::Keep, 8192, 16384),
    (Falloc::Punch, 3000, 4000),
    (Falloc::Punch, 4096, 4096),
    (Falloc::Zero, 5000, 10000),
    (Falloc::ZeroKeep, 2000, 16384),
    (Falloc::Collapse, 4096, 4096),
    (Falloc::Insert, 4096, 8192),
    (Falloc::Alloc, 1000, 1048),
    (Falloc::Alloc, 0, 5000),
    (Falloc::Keep, 1000, 8000),
    (Falloc::Punch, 500, 300),
    (Falloc::Punch, 0, 4096),
    (Falloc::Zero, 1000, 1048),
    (Falloc::Zero, 1000, 1049),
    (Falloc::ZeroKeep, 200, 4096),
    (Falloc::Insert, 0, 4096),
];
/// Number of [`FALLOCS`] for files with blocks. The rest is for files whose data is in the tree.
const BLOCKWISE: usize = 8;
/// Offset and length: overwrites a block, parts of blocks, across the end, beyond the end.
const WRITES: [(u64, u32); 4] = [(0, 4096), (1000, 5000), (7000, 9000), (20000, 3000)];
/// Offset in the source, offset in the target, length: the whole file, and one block.
const CLONES: [(u64, u64, u64); 2] = [(0, 0, 0), (4096, 0, 4096)];
const SIZES: [u64; 3] = [0, 3000, 20000];
/// Offset and length, around the longest file that is kept in the tree, which has 2048 bytes: below
/// it, exactly it, and above it; over the end of a prepared file, over the end of its block, and
/// beyond.
const EDGE_WRITES: [(u64, u32); 8] =
    [(0, 2047), (0, 2048), (0, 2049), (1500, 548), (1500, 549), (1000, 1500), (2048, 1), (5000, 100)];
const EDGE_SIZES: [u64; 5] = [0, 700, 2048, 2049, 5000];
/// Bytes of a prepared file in the workloads of [`Kind::Edges`].
const EDGE_BYTES: u32 = 1500;

/// Pairs of interchangeable names, one bit each: the pair in the root, and the pair in `A`.
const IN_ROOT: u8 = 1;
const IN_A: u8 = 2;

fn pair(name: &str) -> u8 {
    match name {
        "foo" | "bar" => IN_ROOT,
        "A/foo" | "A/bar" => IN_A,
        _ => 0,
    }
}

/// Returns the other name of the pair, if the name is in one of `pairs`.
fn other(name: &'static str, pairs: u8) -> &'static str {
    match name {
        same if pair(same) & pairs == 0 => same,
        "foo" => "bar",
        "bar" => "foo",
        "A/foo" => "A/bar",
        _ => "A/foo",
    }
}

/// Returns the sets of pairs whose exchange gives an equivalent skeleton.
fn exchanges(skeleton: &[Core]) -> impl Iterator<Item = u8> + use<> {
    let bound = skeleton.iter().fold(0, |all, core| all | core.bound_pair());
    let spans = skeleton.iter().any(|core| core.pairs() == IN_ROOT | IN_A);
    let all = [IN_ROOT, IN_A, IN_ROOT | IN_A].into_iter();
    all.filter(move |pairs| pairs & bound == 0 && (!spans || *pairs == IN_ROOT | IN_A))
}

/// Whether this skeleton is the one that is kept among those that differ by exchanging names.
fn is_kept(skeleton: &[Core]) -> bool {
    exchanges(skeleton).all(|pairs| {
        let exchanged = skeleton.iter().map(|core| core.exchanged(pairs));
        skeleton.iter().copied().ge(exchanged)
    })
}

impl Core {
    /// All cores, except for those that only [`Kind::Edges`] has.
    pub fn all() -> Vec<Core> {
        let mut all = Vec::new();
        for f in FILES {
            all.extend([
                Core::Create(f),
                Core::Mknod(f),
                Core::Symlink(f),
                Core::Append(f),
                Core::Tmpfile(f),
            ]);
            all.extend([Core::Unlink(f), Core::SetXattr(f), Core::RemoveXattr(f)]);
            all.extend(WRITES.map(|(offset, len)| Core::Write(f, offset, len)));
            all.extend(SIZES.map(|size| Core::Truncate(f, size)));
            all.extend((0..BLOCKWISE).map(|i| Core::Fallocate(f, i)));
            for to in FILES.into_iter().filter(|to| *to != f) {
                all.extend([Core::Link(f, to), Core::Rename(f, to, false), Core::Rename(f, to, true)]);
                if f < to {
                    all.push(Core::Exchange(f, to));
                }
            }
        }
        for d in DIRS {
            all.extend([Core::Mkdir(d), Core::Rmdir(d)]);
        }
        all.extend([Core::SetXattr("A"), Core::RemoveXattr("A")]);
        for (from, to) in [("A", "B"), ("B", "A/C"), ("A/C", "B")] {
            all.extend([Core::Rename(from, to, false), Core::Rename(from, to, true)]);
        }
        all.extend([
            Core::Exchange("A", "B"),
            Core::Exchange("A/C", "B"),
            Core::Exchange("A/foo", "B"),
            Core::Exchange("A/bar", "B"),
        ]);
        for (from, to) in [("foo", "bar"), ("bar", "foo"), ("foo", "A/foo"), ("bar", "A/bar")] {
            all.extend([Core::Whiteout(from, to, false), Core::Whiteout(from, to, true)]);
        }
        all.extend([Core::SetAcl("A"), Core::DefaultAcl("A")]);
        all.extend(["foo", "bar"].map(Core::SetAcl));
        all.extend(["foo", "bar"].map(Core::ChmodAcl));
        all.extend(["A", "foo", "bar"].map(Core::SetFlags));
        all.extend([Core::Whiteout("A", "B", false), Core::Whiteout("A/C", "B", true)]);
        all.extend(["foo", "bar"].map(Core::ShrinkXattr));
        for (from, to) in [("foo", "bar"), ("bar", "foo"), ("foo", "A/foo"), ("bar", "A/bar")] {
            all.extend((0..CLONES.len()).map(|i| Core::Clone(from, to, i)));
            all.push(Core::CloneFile(from, to));
        }
        all.extend(Core::trees());
        all
    }

    /// The cores on trees, limits and the size of the image.
    fn trees() -> Vec<Core> {
        let mut all = vec![
            Core::Fork(TREE),
            Core::DeleteTree(TREE),
            Core::RollBack(TREE),
            Core::RollBackRoot(TREE),
            Core::CommitRoot(TREE),
            Core::Limit("A"),
        ];
        all.extend(["foo", "bar"].map(Core::Resize));
        all.extend(["foo", "bar"].map(Core::Shrink));
        all.extend([Core::Create(IN_TREE), Core::Append(IN_TREE), Core::Unlink(IN_TREE)]);
        all.extend(WRITES.map(|(offset, len)| Core::Write(IN_TREE, offset, len)));
        all.extend([Core::Truncate(IN_TREE, 3000), Core::Fallocate(IN_TREE, 3)]);
        all
    }

    /// The cores that move the data of a file into the tree or out of it, and others on such a
    /// file.
    fn edges() -> Vec<Core> {
        let mut all = vec![
            Core::Append("foo"),
            Core::Unlink("foo"),
            Core::Rename("foo", "bar", true),
            Core::Rename("bar", "foo", true),
            Core::Link("foo", "bar"),
            Core::Clone("foo", "bar", 0),
            Core::CloneFile("foo", "bar"),
            Core::CloneFile("bar", "foo"),
            Core::Fork(TREE),
            Core::RollBackRoot(TREE),
            Core::Append(IN_TREE),
            Core::Shrink("foo"),
        ];
        all.extend(EDGE_WRITES.map(|(offset, len)| Core::Write("foo", offset, len)));
        all.extend(EDGE_SIZES.map(|size| Core::Truncate("foo", size)));
        all.extend((BLOCKWISE..FALLOCS.len()).map(|i| Core::Fallocate("foo", i)));
        all
    }

    /// Whether the core is one of [`Core::trees`].
    fn is_tree(self) -> bool {
        match self {
            Core::Fork(_) | Core::DeleteTree(_) | Core::RollBack(_) | Core::RollBackRoot(_) => true,
            Core::CommitRoot(_) | Core::Resize(_) | Core::Shrink(_) | Core::Limit(_) => true,
            other => other.uses().contains(&IN_TREE),
        }
    }

    /// The cores that found most bugs in other file systems, where names are created, removed and
    /// reused, and those on trees.
    fn biased() -> Vec<Core> {
        let kept = |core: &Core| {
            matches!(
                core,
                Core::Link(..) | Core::Rename(..) | Core::Exchange(..) | Core::Unlink(_) | Core::Create(_)
            ) || matches!(core, Core::Whiteout(..))
                || matches!(core, Core::Tmpfile(_) | Core::Mknod(_) | Core::Rmdir(_) | Core::Mkdir(_))
                || core.is_tree()
        };
        Core::all().into_iter().filter(kept).collect()
    }

    /// The pairs of which the core uses a name.
    fn pairs(self) -> u8 {
        self.uses().into_iter().fold(0, |all, name| all | pair(name))
    }

    /// The pair of which the preparation of this core uses one name.
    fn bound_pair(self) -> u8 {
        match self {
            Core::Resize(_) | Core::Shrink(_) => 0,
            Core::Limit(_) => IN_A,
            core if core.is_tree() => IN_ROOT,
            _ => 0,
        }
    }

    fn exchanged(self, pairs: u8) -> Core {
        let other = |name| other(name, pairs);
        match self {
            Core::Create(f) => Core::Create(other(f)),
            Core::Mknod(f) => Core::Mknod(other(f)),
            Core::Symlink(f) => Core::Symlink(other(f)),
            Core::Write(f, offset, len) => Core::Write(other(f), offset, len),
            Core::Append(f) => Core::Append(other(f)),
            Core::Truncate(f, size) => Core::Truncate(other(f), size),
            Core::Fallocate(f, i) => Core::Fallocate(other(f), i),
            Core::Link(f, to) => Core::Link(other(f), other(to)),
            Core::Unlink(f) => Core::Unlink(other(f)),
            Core::Rename(f, to, taken) => Core::Rename(other(f), other(to), taken),
            Core::Exchange(a, b) => {
                let (a, b) = (other(a), other(b));
                Core::Exchange(a.min(b), a.max(b))
            }
            Core::Whiteout(f, to, taken) => Core::Whiteout(other(f), other(to), taken),
            Core::SetXattr(f) => Core::SetXattr(other(f)),
            Core::RemoveXattr(f) => Core::RemoveXattr(other(f)),
            Core::ShrinkXattr(f) => Core::ShrinkXattr(other(f)),
            Core::SetAcl(f) => Core::SetAcl(other(f)),
            Core::DefaultAcl(f) => Core::DefaultAcl(other(f)),
            Core::ChmodAcl(f) => Core::ChmodAcl(other(f)),
            Core::SetFlags(f) => Core::SetFlags(other(f)),
            Core::Tmpfile(f) => Core::Tmpfile(other(f)),
            Core::Clone(f, to, i) => Core::Clone(other(f), other(to), i),
            Core::CloneFile(f, to) => Core::CloneFile(other(f), other(to)),
            Core::Resize(f) => Core::Resize(other(f)),
            Core::Shrink(f) => Core::Shrink(other(f)),
            Core::Mkdir(_) | Core::Rmdir(_) | Core::Limit(_) => self,
            Core::Fork(_) | Core::DeleteTree(_) | Core::RollBack(_) => self,
            Core::RollBackRoot(_) | Core::CommitRoot(_) => self,
        }
    }

    /// The names that the core uses.
    fn uses(self) -> Vec<&'static str> {
        match self {
            Core::Create(f) | Core::Mkdir(f) | Core::Mknod(f) | Core::Symlink(f) | Core::Append(f) => vec![f],
            Core::Write(f, ..) | Core::Truncate(f, _) | Core::Fallocate(f, _) => vec![f],
            Core::Unlink(f) | Core::Rmdir(f) | Core::SetXattr(f) | Core::RemoveXattr(f) => vec![f],
            Core::Tmpfile(f) | Core::SetAcl(f) | Core::DefaultAcl(f) | Core::ChmodAcl(f) => vec![f],
            Core::SetFlags(f) | Core::ShrinkXattr(f) => vec![f],
            Core::Link(a, b) | Core::Rename(a, b, _) | Core::Exchange(a, b) => vec![a, b],
            Core::Whiteout(a, b, _) | Core::Clone(a, b, _) | Core::CloneFile(a, b) => vec![a, b],
            Core::Resize(f) | Core::Shrink(f) | Core::Limit(f) => vec![f],
            Core::Fork(f) | Core::DeleteTree(f) | Core::RollBack(f) => vec![f, "foo"],
            Core::RollBackRoot(f) | Core::CommitRoot(f) => vec![f, "foo"],
        }
    }
}

fn on(path: &str) -> Target {
    Target::Path(path.to_owned())
}

fn path(path: &str) -> String {
    path.to_owned()
}

/// Appends operations together with the preparations that they need. The model shows what exists.
struct Script {
    model: Model,
    ops: Vec<Op>,
    fills: u32,
    /// Bytes of a prepared file.
    file_bytes: u32,
}

/// The core cannot be prepared, for example because a directory would have to be moved into itself.
struct Impossible;

impl Script {
    fn new(file_bytes: u32) -> Script {
        Script { model: Model::new(), ops: Vec::new(), fills: 0, file_bytes }
    }

    fn push(&mut self, op: Op) -> Result<(), Impossible> {
        match self.model.apply(&op) {
            Some(applied) if applied.outcome.is_ok() => {
                self.ops.push(op);
                Ok(())
            }
            _ => Err(Impossible),
        }
    }

    fn fill(&mut self) -> Fill {
        self.fills += 1;
        Fill::Seed(self.fills)
    }

    fn is_dir(&self, at: &str) -> Option<bool> {
        self.model.find(at).and_then(|id| self.model.inode(id)).map(|inode| inode.is_dir())
    }

    /// Ensures that there is a fork of the first tree, and a file in both.
    fn need_tree(&mut self, at: &str) -> Result<(), Impossible> {
        if self.model.find(at).is_none() {
            self.need_file("foo")?;
            self.push(Op::Fork { source: path("."), path: path(at) })?;
        }
        Ok(())
    }

    /// Gives a file bytes that it does not share with another tree.
    fn change(&mut self, at: &str) -> Result<(), Impossible> {
        self.need_file(at)?;
        let fill = self.fill();
        self.push(Op::Write { on: on(at), offset: 0, len: 5000, fill })
    }

    fn need_parent(&mut self, at: &str) -> Result<(), Impossible> {
        match split(at) {
            Some((TREE, _)) => self.need_tree(TREE),
            Some((dir, _)) if dir != "." => self.need_dir(dir),
            _ => Ok(()),
        }
    }

    /// Makes the image larger than at first, and puts bytes of a file there.
    fn need_far(&mut self, at: &str) -> Result<(), Impossible> {
        let (filler, len) = FILLER;
        self.push(Op::Resize { bytes: DEVICE })?;
        self.push(Op::Create { path: path(filler), mode: MODE })?;
        self.push(Op::Fallocate { on: on(filler), how: Falloc::Alloc, offset: 0, len })?;
        self.need_file(at)?;
        let offset = self.model.find(at).and_then(|id| self.model.inode(id)).map_or(0, |i| i.content.size());
        let fill = self.fill();
        self.push(Op::Write { on: on(at), offset, len: FAR_BYTES, fill })?;
        // This writes the bytes in place, before the filler's blocks are free. Fewer bytes would
        // stay in the log.
        self.push(Op::Fdatasync { on: on(at) })?;
        self.push(Op::Unlink { path: path(filler) })
    }

    fn need_dir(&mut self, at: &str) -> Result<(), Impossible> {
        self.need_parent(at)?;
        if self.is_dir(at) != Some(true) {
            self.need_free(at)?;
            self.push(Op::Mkdir { path: path(at), mode: DIR_MODE })?;
        }
        Ok(())
    }

    /// Ensures that there is a regular file with bytes.
    fn need_file(&mut self, at: &str) -> Result<(), Impossible> {
        self.need_parent(at)?;
        let inode = self.model.find(at).and_then(|id| self.model.inode(id));
        let (there, empty) = inode.map_or((false, true), |i| (i.is_file(), i.content.size() == 0));
        if !there {
            self.need_free(at)?;
            self.push(Op::Create { path: path(at), mode: MODE })?;
        }
        if !there || empty {
            let fill = self.fill();
            self.push(Op::Write { on: on(at), offset: 0, len: self.file_bytes, fill })?;
        }
        Ok(())
    }

    /// Ensures that there is an inode that is no directory.
    fn need_name(&mut self, at: &str) -> Result<(), Impossible> {
        self.need_parent(at)?;
        if self.is_dir(at) == Some(false) { Ok(()) } else { self.need_file(at) }
    }

    fn need_kind(&mut self, at: &str) -> Result<(), Impossible> {
        if DIRS.contains(&at) { self.need_dir(at) } else { self.need_name(at) }
    }

    fn need_empty(&mut self, at: &str) -> Result<(), Impossible> {
        let id = self.model.find(at).ok_or(Impossible)?;
        let names: Vec<String> =
            self.model.inode(id).map(|i| i.entries.keys().cloned().collect()).unwrap_or_default();
        names.iter().try_for_each(|name| self.need_free(&format!("{at}/{name}")))
    }

    fn need_free(&mut self, at: &str) -> Result<(), Impossible> {
        match self.is_dir(at) {
            Some(true) if at == TREE => self.push(Op::DeleteTree { path: path(at) }),
            None => self.need_parent(at),
            Some(false) => self.push(Op::Unlink { path: path(at) }),
            Some(true) => {
                self.need_empty(at)?;
                self.push(Op::Rmdir { path: path(at) })
            }
        }
    }

    fn prepare(&mut self, core: Core) -> Result<(), Impossible> {
        match core {
            Core::Create(f) | Core::Mkdir(f) | Core::Mknod(f) | Core::Symlink(f) | Core::Tmpfile(f) => {
                self.need_free(f)
            }
            Core::Write(f, ..) | Core::Append(f) | Core::Truncate(f, _) => self.need_file(f),
            Core::Fallocate(f, i) => {
                self.need_file(f)?;
                let inode = self.model.find(f).and_then(|id| self.model.inode(id)).ok_or(Impossible)?;
                // Collapse and insert range need a file that extends beyond the range.
                let (how, offset, len) = FALLOCS[i];
                let anywhere = !matches!(how, Falloc::Collapse | Falloc::Insert);
                let inserts = how == Falloc::Insert && offset == 0;
                if anywhere || inserts || inode.content.size() > offset + len {
                    return Ok(());
                }
                let fill = self.fill();
                self.push(Op::Write { on: on(f), offset: 0, len: (offset + len) as u32 + 3000, fill })
            }
            Core::Link(f, to) => {
                self.need_name(f)?;
                self.need_free(to)
            }
            Core::Clone(f, to, _) | Core::CloneFile(f, to) => {
                self.need_file(f)?;
                self.need_file(to)
            }
            Core::Fork(f) => {
                self.need_free(f)?;
                self.need_file("foo")
            }
            Core::DeleteTree(f) => self.need_tree(f),
            Core::RollBack(f) | Core::RollBackRoot(f) => {
                self.need_tree(f)?;
                self.change("foo")
            }
            Core::CommitRoot(f) => {
                self.need_tree(f)?;
                self.change(IN_TREE)
            }
            Core::Resize(f) => self.need_file(f),
            Core::Shrink(f) => self.need_far(f),
            Core::Limit(_) => self.need_file("A/foo"),
            Core::Unlink(f) => self.need_name(f),
            Core::Rmdir(d) => {
                self.need_dir(d)?;
                self.need_empty(d)
            }
            Core::Rename(from, to, taken) | Core::Whiteout(from, to, taken) => {
                self.need_kind(from)?;
                if !taken {
                    return self.need_free(to);
                }
                self.need_kind(to)?;
                if DIRS.contains(&to) { self.need_empty(to) } else { Ok(()) }
            }
            Core::Exchange(a, b) => {
                self.need_kind(a)?;
                self.need_kind(b)
            }
            Core::SetXattr(at) | Core::SetAcl(at) | Core::DefaultAcl(at) | Core::SetFlags(at)
                if DIRS.contains(&at) =>
            {
                self.need_dir(at)
            }
            Core::SetXattr(at) | Core::SetAcl(at) | Core::DefaultAcl(at) | Core::SetFlags(at) => {
                self.need_file(at)
            }
            Core::ChmodAcl(at) => {
                self.need_file(at)?;
                self.set_acl(at, false)
            }
            Core::ShrinkXattr(at) => {
                self.need_file(at)?;
                self.set_xattr(at, 13_000, XattrFlag::Any)
            }
            Core::RemoveXattr(at) => {
                if DIRS.contains(&at) {
                    self.need_dir(at)?;
                } else {
                    self.need_file(at)?;
                }
                let inode = self.model.find(at).and_then(|id| self.model.inode(id));
                if inode.is_some_and(|i| !i.xattrs.contains_key("user.x")) {
                    self.set_xattr(at, 0, XattrFlag::Any)?;
                }
                Ok(())
            }
        }
    }

    fn set_acl(&mut self, at: &str, default: bool) -> Result<(), Impossible> {
        self.push(Op::SetAcl { on: on(at), default, list: [6, 7, 4, 5, 0] })
    }

    /// Sets an attribute whose value has at least `len` bytes.
    fn set_xattr(&mut self, at: &str, len: usize, how: XattrFlag) -> Result<(), Impossible> {
        self.fills += 1;
        let value = format!("value {:0len$}", self.fills);
        self.push(Op::SetXattr { on: on(at), name: "user.x".to_owned(), value, how })
    }

    fn run(&mut self, core: Core) -> Result<(), Impossible> {
        match core {
            Core::Create(f) => self.push(Op::Create { path: path(f), mode: MODE }),
            Core::Mkdir(d) => self.push(Op::Mkdir { path: path(d), mode: DIR_MODE }),
            Core::Mknod(f) => self.push(Op::Mknod { path: path(f), special: Special::Chr }),
            Core::Symlink(f) => self.push(Op::Symlink { target: "some/target".to_owned(), path: path(f) }),
            Core::Write(f, offset, len) => {
                let fill = self.fill();
                self.push(Op::Write { on: on(f), offset, len, fill })
            }
            Core::Append(f) => {
                let id = self.model.find(f).ok_or(Impossible)?;
                let offset = self.model.inode(id).map_or(0, |inode| inode.content.size());
                let fill = self.fill();
                self.push(Op::Write { on: on(f), offset, len: 5000, fill })
            }
            Core::Truncate(f, size) => self.push(Op::Truncate { on: on(f), size }),
            Core::Fallocate(f, i) => {
                let (how, offset, len) = FALLOCS[i];
                self.push(Op::Fallocate { on: on(f), how, offset, len })
            }
            Core::Link(f, to) => self.push(Op::Link { from: on(f), path: path(to) }),
            Core::Unlink(f) => self.push(Op::Unlink { path: path(f) }),
            Core::Rmdir(d) => self.push(Op::Rmdir { path: path(d) }),
            Core::Rename(from, to, _) => {
                self.push(Op::Rename { from: path(from), to: path(to), how: Rename::Replace })
            }
            Core::Whiteout(from, to, _) => {
                self.push(Op::Rename { from: path(from), to: path(to), how: Rename::Whiteout })
            }
            Core::Exchange(a, b) => {
                self.push(Op::Rename { from: path(a), to: path(b), how: Rename::Exchange })
            }
            Core::SetXattr(at) => self.set_xattr(at, 0, XattrFlag::Any),
            Core::RemoveXattr(at) => self.push(Op::RemoveXattr { on: on(at), name: "user.x".to_owned() }),
            Core::ShrinkXattr(at) => self.set_xattr(at, 5000, XattrFlag::Any),
            Core::SetAcl(at) => self.set_acl(at, false),
            Core::DefaultAcl(at) => self.set_acl(at, true),
            Core::ChmodAcl(at) => self.push(Op::Chmod { on: on(at), mode: 0o604 }),
            Core::SetFlags(at) => self.push(Op::SetFlags { on: on(at), flags: FileFlags::NODUMP.bits() }),
            Core::Tmpfile(f) => self.tmpfile(f),
            Core::Clone(f, to, i) => {
                let (from, at, len) = CLONES[i];
                self.push(Op::Clone { source: on(f), from, on: on(to), to: at, len })
            }
            Core::CloneFile(f, to) => self.push(Op::CloneFile { source: on(f), on: on(to) }),
            trees => self.run_trees(trees),
        }
    }

    fn run_trees(&mut self, core: Core) -> Result<(), Impossible> {
        self.push(match core {
            Core::Fork(f) => Op::Fork { source: path("."), path: path(f) },
            Core::DeleteTree(f) => Op::DeleteTree { path: path(f) },
            Core::RollBack(f) => Op::RollBack { source: path("."), path: path(f) },
            Core::RollBackRoot(f) => Op::RollBack { source: path(f), path: path(".") },
            Core::CommitRoot(f) => Op::CommitTree { fork: path(f), path: path(".") },
            Core::Resize(_) => Op::Resize { bytes: GROWN },
            Core::Shrink(_) => Op::Resize { bytes: IMAGE },
            Core::Limit(d) => Op::SetLimit { path: path(d), bytes: LIMIT.0, files: LIMIT.1 },
            _ => return Err(Impossible),
        })
    }

    fn tmpfile(&mut self, f: &str) -> Result<(), Impossible> {
        let dir = split(f).map_or(".", |(dir, _)| dir);
        let handle = self.model.handles().len() as u8;
        let fill = self.fill();
        self.push(Op::Tmpfile { dir: path(dir), handle, mode: MODE })?;
        self.push(Op::Write { on: Target::Handle(handle), offset: 0, len: self.file_bytes, fill })?;
        self.push(Op::Link { from: Target::Handle(handle), path: path(f) })
    }

    /// Returns the possible persistence operations at this point; `None` persists nothing.
    fn points(&self, used: &[&'static str]) -> Vec<Option<Op>> {
        let mut points = vec![None, Some(Op::Sync)];
        let mut seen: Vec<Id> = Vec::new();
        let parents = used.iter().filter_map(|at| split(at)).map(|(dir, _)| dir);
        for at in used.iter().copied().chain(parents) {
            let Some(id) = self.model.find(at).filter(|id| !seen.contains(id)) else { continue };
            seen.push(id);
            points.push(Some(Op::Fsync { on: on(at) }));
            if self.model.inode(id).is_some_and(|inode| inode.is_file()) {
                points.push(Some(Op::Fdatasync { on: on(at) }));
            }
        }
        points
    }

    fn step(&mut self, core: Core) -> Result<(), Impossible> {
        self.prepare(core)?;
        self.run(core)
    }
}

impl Clone for Script {
    fn clone(&self) -> Script {
        Script { model: self.model.clone(), ops: self.ops.clone(), ..*self }
    }
}

/// Identifies a workload: the same workload can be built from it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadId {
    /// Number of operations: 1 to 3.
    pub seq: u8,
    /// Seed of a sampled workload (3 operations); 0 for enumerated ones.
    pub seed: u64,
    pub skeleton: u64,
    pub variant: u32,
}

impl WorkloadId {
    /// A number that differs in many bits between similar workloads.
    pub fn mixed(self) -> u64 {
        let id = (self.skeleton << 24) ^ ((self.variant as u64) << 4) ^ self.seq as u64;
        (id ^ self.seed.rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
    }
}

impl fmt::Display for WorkloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.seq, self.seed, self.skeleton, self.variant)
    }
}

impl std::str::FromStr for WorkloadId {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkloadId, String> {
        let numbers: Result<Vec<u64>, _> = text.split(':').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[seq @ 1..=3, seed, skeleton, variant]) => {
                Ok(WorkloadId { seq: seq as u8, seed, skeleton, variant: variant as u32 })
            }
            _ => Err(format!("{text:?} is not SEQ:SEED:SKELETON:VARIANT")),
        }
    }
}

/// The operations to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub id: WorkloadId,
    pub ops: Vec<Op>,
    /// Number of operations at the front among which crashes are judged in other workloads, or
    /// which only prepare the others.
    pub settled: usize,
}

/// The operations of a workload, and its [`Workload::settled`].
type Built = (Vec<Op>, usize);

/// Leaves crashes among operations with which the preceding workload begins, too, to that one.
/// Workloads with the longest common beginning follow one another.
fn judge_once(workloads: &mut [Built]) {
    for i in (1..workloads.len()).rev() {
        let (before, from) = workloads.split_at_mut(i);
        let ((before, _), (ops, settled)) = (&before[i - 1], &mut from[0]);
        let same = before.iter().zip(&*ops).take_while(|(a, b)| a == b).count();
        *settled = same.max(*settled);
    }
}

impl Workload {
    /// Returns the workload with an eighth of each offset and length, except for those of fallocate
    /// and clones. Files then have 1,125 bytes and grow beyond 2,048.
    pub fn small(mut self) -> Workload {
        const BY: u32 = 8;
        for op in &mut self.ops {
            match op {
                Op::Write { offset, len, .. } => (*offset, *len) = (*offset / u64::from(BY), *len / BY),
                Op::Truncate { size, .. } => *size /= u64::from(BY),
                _ => {}
            }
        }
        self
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workload {}\n{}", self.id, print_ops(&self.ops))
    }
}

/// Which workloads a catalogue contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    All,
    /// Workloads on one file around the length of the longest file that is kept in the tree.
    Edges,
}

/// The skeletons of one length.
pub struct Catalogue {
    kind: Kind,
    seq: u8,
    seed: u64,
    skeletons: Vec<Vec<Core>>,
    cores: Vec<Core>,
}

/// Number of sampled skeletons of three operations.
const SAMPLED: u64 = 1 << 20;

impl Catalogue {
    /// The catalogue of [`Kind::All`]. `seed` matters only for three operations, which are sampled.
    pub fn new(seq: u8, seed: u64) -> Catalogue {
        Catalogue::of(Kind::All, seq, seed)
    }

    pub fn of(kind: Kind, seq: u8, seed: u64) -> Catalogue {
        let all = if kind == Kind::Edges { Core::edges() } else { Core::all() };
        let skeletons = match seq {
            1 => all.iter().map(|core| vec![*core]).collect(),
            2 => all.iter().flat_map(|a| all.iter().map(|b| vec![*a, *b])).collect(),
            _ => Vec::new(),
        };
        let kept = |skeleton: &Vec<Core>| kind == Kind::Edges || is_kept(skeleton);
        let skeletons = skeletons.into_iter().filter(kept).collect();
        let cores = if kind == Kind::Edges { all } else { Core::biased() };
        Catalogue { kind, seq, seed: if seq < 3 { 0 } else { seed }, skeletons, cores }
    }

    /// Number of skeletons, including those without a variant.
    pub fn len(&self) -> u64 {
        if self.seq < 3 { self.skeletons.len() as u64 } else { SAMPLED }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an operation of the skeleton is about trees, limits or the image's size. True for
    /// all sampled skeletons, which are not known before they are made.
    pub fn has_trees(&self, skeleton: u64) -> bool {
        self.seq == 3 || self.skeletons[skeleton as usize].iter().any(|core| core.is_tree())
    }

    /// The length and the seed that the [`WorkloadId`]s of this catalogue share.
    pub fn id(&self) -> (u8, u64) {
        (self.seq, self.seed)
    }

    /// All workloads of a skeleton.
    pub fn variants(&self, skeleton: u64) -> Vec<Workload> {
        let mut out = Vec::new();
        if self.seq == 3 {
            out.extend(self.sample(skeleton));
        } else {
            // Only with one operation: with two, freezes would more than double the number of
            // workloads.
            let freeze = (self.seq == 1).then_some(Some(Op::Freeze));
            for settle in [Some(Op::Sync), None].into_iter().chain(freeze) {
                // Impossible skeletons have no variants.
                let mut settled = Vec::new();
                let _ = self.settle(&self.skeletons[skeleton as usize], settle, &mut settled);
                judge_once(&mut settled);
                out.extend(settled);
            }
        }
        let id = |variant| WorkloadId { seq: self.seq, seed: self.seed, skeleton, variant };
        let numbered = out.into_iter().zip(0..);
        numbered.map(|((ops, settled), i)| Workload { id: id(i), ops, settled }).collect()
    }

    pub fn workload(kind: Kind, id: WorkloadId) -> Option<Workload> {
        let catalogue = Catalogue::of(kind, id.seq, id.seed);
        if id.skeleton >= catalogue.len() {
            return None;
        }
        catalogue.variants(id.skeleton).into_iter().nth(id.variant as usize)
    }

    fn script(&self) -> Script {
        Script::new(if self.kind == Kind::Edges { EDGE_BYTES } else { FILE_BYTES })
    }

    fn settle(&self, cores: &[Core], settle: Option<Op>, out: &mut Vec<Built>) -> Result<(), Impossible> {
        let mut script = self.script();
        script.prepare(cores[0])?;
        let mut settled = 0;
        if let Some(op) = settle {
            if script.ops.is_empty() {
                return Ok(()); // nothing to persist: as with `None`
            }
            // No other workload covers crashes during the freeze itself.
            settled = script.ops.len() + usize::from(op == Op::Sync);
            script.push(op)?;
        }
        self.extend(script, cores, Vec::new(), settled, out);
        Ok(())
    }

    /// Adds workloads for the operations from here on, with all choices of persistence points.
    fn extend(
        &self,
        mut script: Script,
        cores: &[Core],
        mut used: Vec<&'static str>,
        settled: usize,
        out: &mut Vec<Built>,
    ) {
        let Some((core, rest)) = cores.split_first() else {
            out.push((script.ops, settled));
            return;
        };
        if script.step(*core).is_err() {
            return;
        }
        used.extend(core.uses());
        let freeze = (self.seq == 1).then_some(Some(Op::Freeze));
        for point in script.points(&used).into_iter().chain(freeze) {
            let mut next = script.clone();
            let ends_bare = point.is_none() && rest.is_empty();
            if !ends_bare && point.is_none_or(|op| next.push(op).is_ok()) {
                let settled = if rest.is_empty() { settled } else { next.ops.len() };
                self.extend(next, rest, used.clone(), settled, out);
            }
        }
    }

    fn sample(&self, skeleton: u64) -> Option<Built> {
        let mut rng =
            SmallRng::seed_from_u64(self.seed ^ skeleton.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5e93);
        let all = if self.kind == Kind::Edges { Core::edges() } else { Core::all() };
        let mut script = self.script();
        let (mut settled, mut used) = (0, Vec::new());
        for at in 0..3 {
            let from = if rng.random_bool(0.75) { &self.cores } else { &all };
            let core = *from.choose(&mut rng)?;
            script.prepare(core).ok()?;
            if at == 0 && rng.random_bool(0.5) {
                script.push(Op::Sync).ok()?;
                settled = script.ops.len();
            }
            script.run(core).ok()?;
            used.extend(core.uses());
            let points = script.points(&used);
            let point = if at == 2 { points[1..].choose(&mut rng)? } else { points.choose(&mut rng)? };
            if let Some(op) = point {
                script.push(op.clone()).ok()?;
            }
        }
        Some((script.ops, settled))
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
