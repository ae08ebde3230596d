//! Seeded random operations. They use the model, so that most of them name existing files, and the
//! others fail on purpose.

use crate::model::{Inode, Model};
use crate::ops::{Falloc, Fill, Op, Rename, Special, Target, XattrFlag, split};
use kedgefs::{FileFlags, FileKind};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Parameters of the operations.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Number of names in a directory: few, so that operations often meet the same name.
    pub names: u32,
    pub depth_max: usize,
    /// Writes and truncates begin below this offset.
    pub offset_max: u64,
    pub write_max: u32,
    /// Persistence operations per thousand.
    pub persists: u32,
    pub remounts: u32,
    pub crashes: u32,
    /// Per thousand: names that are too long, sizes that are too large, sparse files of terabytes.
    pub extremes: u32,
    /// Per thousand data operations: collapse and insert range. If such an operation is not durable
    /// when a later overwrite is, the overwrite appears at another offset after a crash, as on
    /// other file systems. So histories with crashes do not use them.
    pub shifts: u32,
    /// Per thousand data operations: clones.
    pub clones: u32,
    /// Per thousand: forks, deletions and replacements of trees, and limits that are never reached.
    pub trees: u32,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            names: 5,
            depth_max: 3,
            offset_max: 160 << 10,
            write_max: 40 << 10,
            persists: 100,
            remounts: 4,
            crashes: 0,
            extremes: 10,
            shifts: 0,
            clones: 0,
            trees: 0,
        }
    }
}

/// Generates operations.
pub struct Generator {
    rng: SmallRng,
    profile: Profile,
    fills: u32,
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const HANDLES: u8 = 4;

impl Generator {
    pub fn new(seed: u64, profile: Profile) -> Generator {
        Generator { rng: SmallRng::seed_from_u64(seed), profile, fills: 0 }
    }

    pub fn rng(&mut self) -> &mut SmallRng {
        &mut self.rng
    }

    fn chance(&mut self, in_thousand: u32) -> bool {
        self.rng.random_range(0..1000) < in_thousand
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.random_range(0..from.len())].clone()
    }

    fn name(&mut self) -> String {
        if self.chance(self.profile.extremes) {
            return "L".repeat(self.rng.random_range(253..258));
        }
        let count = (self.profile.names as usize).min(NAMES.len());
        self.pick(&NAMES[..count]).to_owned()
    }

    /// Returns a path of an inode for which `want` holds, if there is one.
    fn existing(&mut self, model: &Model, want: impl Fn(&Inode) -> bool) -> Option<String> {
        let paths: Vec<String> = model
            .paths()
            .into_iter()
            .filter(|(_, id)| model.inode(*id).is_some_and(&want))
            .map(|(path, _)| path)
            .collect();
        if paths.is_empty() { None } else { Some(self.pick(&paths)) }
    }

    /// Returns some name in some directory, existing or not; rarely below an inode that is no
    /// directory.
    fn any_path(&mut self, model: &Model) -> String {
        let in_dir = !self.chance(15);
        let depth = self.profile.depth_max;
        let dir = self
            .existing(model, |inode| inode.is_dir() == in_dir)
            .filter(|dir| crate::ops::components(dir).count() < depth)
            .unwrap_or_else(|| ".".to_owned());
        let name = self.name();
        if dir == "." { name } else { format!("{dir}/{name}") }
    }

    /// Returns a path: usually an existing one, and usually of an inode for which `want` holds.
    fn path(&mut self, model: &Model, want: impl Fn(&Inode) -> bool) -> String {
        if self.chance(80) {
            return self.any_path(model);
        }
        let any = self.chance(60);
        self.existing(model, |inode| any || want(inode))
            .filter(|p| p != ".")
            .unwrap_or_else(|| self.any_path(model))
    }

    fn free_path(&mut self, model: &Model) -> String {
        for _ in 0..4 {
            let path = self.any_path(model);
            if model.find(&path).is_none() {
                return path;
            }
        }
        self.any_path(model)
    }

    fn target(&mut self, model: &Model, want: impl Fn(&Inode) -> bool) -> Target {
        if !model.handles().is_empty() && self.chance(150) {
            let handles: Vec<u8> = model.handles().keys().copied().collect();
            return Target::Handle(self.pick(&handles));
        }
        Target::Path(self.path(model, want))
    }

    fn file(&mut self, model: &Model) -> Target {
        self.target(model, Inode::is_file)
    }

    fn any_target(&mut self, model: &Model) -> Target {
        self.target(model, |_| true)
    }

    /// Half of the offsets and sizes are near block boundaries.
    fn offset(&mut self) -> u64 {
        let max = self.profile.offset_max;
        match self.rng.random_range(0..4) {
            0 => 0,
            1 => self.rng.random_range(0..=max / 4096) * 4096,
            2 => (self.rng.random_range(0..=max / 4096) * 4096)
                .saturating_add_signed(self.rng.random_range(-3..=3)),
            _ => self.rng.random_range(0..=max),
        }
    }

    fn length(&mut self) -> u32 {
        let max = self.profile.write_max.max(1);
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(1..=max.min(200)),
            1 => self.rng.random_range(1..=(max / 4096).max(1)) * 4096,
            2 => self.rng.random_range(1..=max.min(9000)),
            _ => self.rng.random_range(1..=max),
        }
    }

    fn fill(&mut self) -> Fill {
        self.fills += 1;
        Fill::Seed(self.fills)
    }

    /// Returns the next operation for a file system in the model's state.
    pub fn next(&mut self, model: &Model) -> Op {
        let Profile { persists, remounts, crashes, .. } = self.profile;
        let at = self.rng.random_range(0..1000);
        if at < remounts {
            return Op::Remount;
        }
        if at < remounts + crashes {
            return Op::CrashRemount { seed: self.rng.random() };
        }
        if at < remounts + crashes + persists {
            return self.persist(model);
        }
        if self.profile.trees > 0
            && self.chance(self.profile.trees)
            && let Some(op) = self.tree_op(model)
        {
            return op;
        }
        if let Some(op) = self.unfix(model) {
            return op;
        }
        match self.rng.random_range(0..100) {
            0..38 => self.names(model),
            38..43 => self.handles(model),
            43..55 => self.attributes(model),
            55..90 => self.data(model),
            _ => self.look(model),
        }
    }

    /// Clears, after a while, a flag that forbids changes. Otherwise ever fewer changes would
    /// succeed.
    fn unfix(&mut self, model: &Model) -> Option<Op> {
        let fixed = |i: &Inode| i.flags.has(FileFlags::IMMUTABLE | FileFlags::APPEND);
        let path = self.existing(model, fixed)?;
        let on = Target::Path(path);
        self.chance(150).then_some(Op::SetFlags { on, flags: 0 })
    }

    /// Returns an operation on trees, or `None` if the model lacks a directory for it.
    fn tree_op(&mut self, model: &Model) -> Option<Op> {
        const TREES_MAX: usize = 5;
        let trees: Vec<String> =
            model.paths().into_iter().filter(|(_, id)| model.is_root(*id)).map(|(path, _)| path).collect();
        let forks: Vec<String> = trees.iter().filter(|path| *path != ".").cloned().collect();
        let pick = self.rng.random_range(0..20);
        if pick < 8 && forks.len() < TREES_MAX || forks.is_empty() {
            return Some(Op::Fork { source: self.pick(&trees), path: self.free_path(model) });
        }
        Some(match pick {
            0..11 => Op::DeleteTree { path: self.pick(&forks) },
            11..13 => Op::RollBack { source: self.pick(&trees), path: self.pick(&forks) },
            13..15 => Op::RollBack { source: self.pick(&forks), path: ".".to_owned() },
            15..17 => Op::CommitTree { fork: self.pick(&forks), path: self.pick(&trees) },
            17 => {
                let path = self.existing(model, Inode::is_dir)?;
                Op::SetLimit { path, bytes: 1 << 40, files: self.rng.random_range(1 << 20..1 << 30) }
            }
            _ => Op::Fork { source: self.pick(&trees), path: self.any_path(model) },
        })
    }

    fn persist(&mut self, model: &Model) -> Op {
        match self.rng.random_range(0..10) {
            0 => Op::Sync,
            1..4 => Op::Fdatasync { on: self.file(model) },
            4..8 => Op::Fsync { on: self.file(model) },
            _ => Op::Fsync { on: self.target(model, Inode::is_dir) },
        }
    }

    fn names(&mut self, model: &Model) -> Op {
        match self.rng.random_range(0..40) {
            0..8 => Op::Create { path: self.free_path(model), mode: self.mode() },
            8..13 => Op::Mkdir { path: self.free_path(model), mode: self.mode() },
            13 => {
                Op::Mknod { path: self.free_path(model), special: self.pick(&[Special::Fifo, Special::Chr]) }
            }
            14 => {
                let len = if self.chance(100) {
                    self.rng.random_range(4090..4100)
                } else {
                    self.rng.random_range(1..60)
                };
                Op::Symlink { target: "t".repeat(len), path: self.free_path(model) }
            }
            15..19 => Op::Link { from: self.target(model, |i| !i.is_dir()), path: self.free_path(model) },
            19..25 => Op::Unlink { path: self.path(model, |i| !i.is_dir()) },
            25..28 => Op::Rmdir { path: self.path(model, |i| i.is_dir() && i.entries.is_empty()) },
            _ => self.rename(model),
        }
    }

    fn rename(&mut self, model: &Model) -> Op {
        let how = self.pick(&[
            Rename::Replace,
            Rename::Replace,
            Rename::Replace,
            Rename::NoReplace,
            Rename::Exchange,
            Rename::Whiteout,
        ]);
        let from = self.path(model, |_| true);
        let to = match self.rng.random_range(0..6) {
            0 | 1 => self.free_path(model),
            2 => {
                // The source has the kind of the target, so that the replacement can succeed.
                let kind =
                    model.find(&from).and_then(|id| model.inode(id)).map_or(FileKind::Regular, |i| i.kind);
                self.path(model, |inode| inode.kind == kind)
            }
            3 => match split(&from) {
                Some((dir, _)) if dir != "." => format!("{dir}/{}", self.name()),
                _ => self.name(),
            },
            4 if self.chance(100) => format!("{from}/{}", self.name()),
            _ => self.path(model, |_| true),
        };
        Op::Rename { from, to, how }
    }

    fn mode(&mut self) -> u32 {
        self.pick(&[0o644, 0o600, 0o755, 0o777, 0o000])
    }

    fn handles(&mut self, model: &Model) -> Op {
        let handle = self.rng.random_range(0..HANDLES);
        if model.handles().contains_key(&handle) && !self.chance(50) {
            return Op::Close { handle };
        }
        if self.chance(400) {
            let dir = self.existing(model, Inode::is_dir).unwrap_or_else(|| ".".to_owned());
            return Op::Tmpfile { dir, handle, mode: self.mode() };
        }
        Op::Open { path: self.path(model, Inode::is_file), handle }
    }

    fn attributes(&mut self, model: &Model) -> Op {
        let on = self.any_target(model);
        let name = format!("user.{}", self.pick(&["x", "yy", "attribute"]));
        match self.rng.random_range(0..14) {
            12.. if self.chance(300) => {
                let on = self.target(model, |i| i.is_dir() || i.is_file());
                let flags = if self.chance(100) {
                    self.pick(&[FileFlags::IMMUTABLE, FileFlags::APPEND])
                } else {
                    self.pick(&[FileFlags::default(), FileFlags::NODUMP, FileFlags::NOATIME])
                };
                Op::SetFlags { on, flags: flags.bits() }
            }
            12.. => {
                let default = self.chance(500);
                let on = self.target(model, |i| i.is_dir() || !default && i.is_file());
                let list = [(); 5].map(|()| self.rng.random_range(0..8));
                Op::SetAcl { on, default, list }
            }
            0..2 => Op::Chmod { on, mode: self.mode() },
            2..4 => Op::Chown { on, uid: self.rng.random_range(0..5), gid: self.rng.random_range(0..5) },
            4..6 => Op::Utimes {
                on,
                atime: self.rng.random_range(-5..2_000_000_000),
                mtime: self.rng.random_range(-5..2_000_000_000),
            },
            6..10 => {
                let len = match self.rng.random_range(0..8) {
                    0 => 0,
                    1 => self.rng.random_range(4000..4097),
                    2 if self.chance(self.profile.extremes * 10) => 65537,
                    // Values stored in parts: two parts, two full ones, three, several, the
                    // maximum.
                    3 => self.pick(&[4097, 8192, 8193, 20_000, 65536]),
                    _ => self.rng.random_range(1..200),
                };
                let letter = char::from(self.rng.random_range(b'a'..=b'z'));
                let how = self.pick(&[XattrFlag::Any, XattrFlag::Any, XattrFlag::Create, XattrFlag::Replace]);
                let on = self.target(model, |i| i.is_file() || i.is_dir());
                Op::SetXattr { on, name, value: letter.to_string().repeat(len), how }
            }
            _ => Op::RemoveXattr { on: self.target(model, |i| !i.xattrs.is_empty()), name },
        }
    }

    fn data(&mut self, model: &Model) -> Op {
        let on = self.file(model);
        if self.chance(self.profile.shifts) {
            let how = self.pick(&[Falloc::Collapse, Falloc::Insert]);
            let block = if self.chance(50) { 1000 } else { 4096 };
            let (offset, len) = (self.offset() / 4096 * 4096, self.rng.random_range(1..8) * block);
            return Op::Fallocate { on, how, offset, len };
        }
        if self.profile.clones > 0 && self.chance(self.profile.clones) {
            return self.clone_op(model, on);
        }
        match self.rng.random_range(0..30) {
            0..16 => {
                let offset = if self.chance(300) { self.size_of(model, &on) } else { self.offset() };
                Op::Write {
                    on,
                    offset: offset.min(self.profile.offset_max * 2),
                    len: self.length(),
                    fill: self.fill(),
                }
            }
            16..23 => {
                let size = match self.chance(self.profile.extremes) {
                    true => self.pick(&[1 << 40, (1 << 55) - 4096, (1 << 55) - 4095, u64::MAX]),
                    false => self.offset(),
                };
                Op::Truncate { on, size }
            }
            _ => {
                let how = self.pick(&[
                    Falloc::Alloc,
                    Falloc::Keep,
                    Falloc::Punch,
                    Falloc::Punch,
                    Falloc::Zero,
                    Falloc::ZeroKeep,
                ]);
                let len = if self.chance(20) { 0 } else { self.length() as u64 };
                Op::Fallocate { on, how, offset: self.offset(), len }
            }
        }
    }

    /// Half of the clones are of whole files.
    fn clone_op(&mut self, model: &Model, on: Target) -> Op {
        let source = self.file(model);
        if self.chance(250) {
            return Op::CloneFile { source, on };
        }
        if self.chance(500) {
            let to = if self.chance(200) { self.offset() / 4096 * 4096 } else { 0 };
            return Op::Clone { source, from: 0, on, to, len: 0 };
        }
        let size = self.size_of(model, &source);
        let from = self.rng.random_range(0..=size / 4096) * 4096;
        let len = self.rng.random_range(0..=(size.saturating_sub(from) / 4096).min(10)) * 4096;
        let len = if self.chance(50) { len + 1000 } else { len };
        Op::Clone { source, from, on, to: self.offset() / 4096 * 4096, len }
    }

    fn size_of(&self, model: &Model, on: &Target) -> u64 {
        let id = match on {
            Target::Path(path) => model.find(path),
            Target::Handle(handle) => model.handles().get(handle).copied(),
        };
        id.and_then(|id| model.inode(id)).map_or(0, |inode| inode.content.size())
    }

    fn look(&mut self, model: &Model) -> Op {
        match self.rng.random_range(0..10) {
            0..6 => Op::Read { on: self.file(model), offset: self.offset(), len: self.length() },
            6..9 => {
                Op::Readdir { path: self.existing(model, Inode::is_dir).unwrap_or_else(|| ".".to_owned()) }
            }
            _ => Op::Readlink { path: self.path(model, |i| i.kind == FileKind::Symlink) },
        }
    }
}
