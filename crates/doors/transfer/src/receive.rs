//! `kedge receive`: makes a snapshot from a stream of `kedge send`.
//!
//! The tree is filled under the preliminary name `.kedge-receive-part.NAME`, where nothing else can
//! change it. It gets its name after the stream has ended and everything was verified: the checksum
//! of each record, the hash of all records, and that link counts and sizes match the source's. At
//! each mark of the stream, `.kedge-receive.NAME` becomes a snapshot of the tree, from which an
//! interrupted transfer can be resumed.
//!
//! Inodes keep their numbers within the tree. All numbers in a stream refer to inodes of the new
//! tree, so a stream cannot reach anything outside of it. The operations of the engine apply the
//! records, and refuse what is not a tree: a directory inside itself, two names of a directory, a
//! name with a slash.
//!
//! If the image is mounted, the caller passes each change on to the kernel, which may have read the
//! tree under its preliminary name.
//!
//! An inode whose old name is removed before its new name is made has the name
//! `.kedge-IDENTITY-NUMBER` in the root, with the source's identity.

use crate::import::sink::Changed;
use crate::stream::{Hash, Reader, Record, Token};
use anyhow::{Context, Result, bail, ensure};
use kedgefs::{
    Attr, Error, FallocateMode, FileFlags, FileKind, FileSystem, Ino, Receiving, SetAttr, SetTime,
    TreeIdentity,
};
use serde::{Deserialize, Serialize};
use std::io::Read;

/// An interrupted transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partial {
    pub id: TreeIdentity,
    /// The snapshot from which the stream is the difference; `None` if the stream is whole.
    pub base: Option<TreeIdentity>,
    pub token: Token,
}

/// What `kedge send` needs for the rest of an interrupted transfer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rest {
    pub token: String,
    /// For a difference, the snapshot that `--from` must name: its path in the receiving image, or
    /// its identity if the image does not have it any more.
    pub base: Option<String>,
}

impl Partial {
    /// Returns what `kedge send` needs to go on.
    pub fn rest(&self, fs: &FileSystem) -> Rest {
        let base = self.base.map(|base| {
            let path = find_base(fs, &base).ok().and_then(|root| fs.path_of(root).ok());
            path.map_or_else(|| base.to_string(), |path| String::from_utf8_lossy(&path).into_owned())
        });
        Rest { token: self.token.to_string(), base }
    }
}

/// The preliminary names of a tree: of the unfinished tree, and of the snapshot at the last mark.
fn preliminary(name: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    ensure!(name.len() <= 200, "the name is too long by {} bytes", name.len() - 200);
    // The prefixes differ before the name, so no two trees have a preliminary name in common.
    Ok(([b".kedge-receive-part.", name].concat(), [b".kedge-receive.", name].concat()))
}

fn root_named(fs: &FileSystem, dir: Ino, name: &[u8]) -> Option<Ino> {
    fs.tree_named(dir, name)
}

/// The state of an interrupted transfer of a tree with this name, if it reached a mark.
pub fn partial(fs: &FileSystem, dir: Ino, name: &[u8]) -> Result<Option<Partial>> {
    let (_, mark) = preliminary(name)?;
    let Some(root) = root_named(fs, dir, &mark) else { return Ok(None) };
    let noted = fs.receive_noted(root)?.unwrap_or_default();
    let read = || {
        let (id, rest) = noted.split_first_chunk::<32>()?;
        let (base, rest) = rest.split_first_chunk::<32>()?;
        let (number, hash) = rest.split_first_chunk::<8>()?;
        let token = Token { mark: u64::from_le_bytes(*number), hash: hash.try_into().ok()? };
        Some(Partial { id: TreeIdentity(*id), base: base_of(*base), token })
    };
    match (read(), noted.len()) {
        (Some(partial), _) => Ok(Some(partial)),
        (None, NOTE_WITHOUT_BASE) => bail!(
            "an older version began the interrupted transfer and did not note its base: \
             kedge receive --forget deletes it"
        ),
        (None, _) => bail!("the tree of an interrupted transfer has no note"),
    }
}

/// Bytes of a note of versions that did not note the base: identity, number and hash.
const NOTE_WITHOUT_BASE: usize = 32 + 8 + 32;

/// The base of a stream as its `Begin` has it.
fn base_of(base: Hash) -> Option<TreeIdentity> {
    (base != [0; 32]).then_some(TreeIdentity(base))
}

/// Deletes the unfinished trees of an interrupted transfer.
pub fn forget(fs: &FileSystem, dir: Ino, name: &[u8], changed: &dyn Fn(Changed<'_>)) -> Result<()> {
    let (part, mark) = preliminary(name)?;
    for name in [part, mark] {
        if root_named(fs, dir, &name).is_some() {
            fs.delete_tree(dir, &name)?;
            changed(Changed::Name(dir, &name));
            changed(Changed::Inode(dir));
        }
    }
    Ok(())
}

/// Makes a tree in `dir` from a stream. Its name is `name`, or without `name` that of the source.
/// With `resume` it continues an interrupted transfer. Returns the name.
///
/// An error deletes what was received since the last mark, or everything if there was no mark.
pub fn receive(
    fs: &FileSystem,
    dir: Ino,
    name: Option<&[u8]>,
    input: impl Read,
    resume: bool,
    changed: &dyn Fn(Changed<'_>),
) -> Result<Vec<u8>> {
    let (mut reader, first) = Reader::begin(input)?;
    let Record::Begin { name: given, .. } = &first else { bail!("no beginning") };
    let name = name.unwrap_or(given).to_vec();
    let (part, at_mark) = preliminary(&name)?;
    match fs.lookup(dir, &name) {
        Err(Error::NotFound) => {}
        Ok(_) => bail!("{} is there already", String::from_utf8_lossy(&name)),
        Err(e) => return Err(e.into()),
    }
    let done = fill(fs, dir, (&name, &part, &at_mark), (&mut reader, first), resume, changed);
    [&name, &part, &at_mark].into_iter().for_each(|name| changed(Changed::Name(dir, name)));
    changed(Changed::Inode(dir));
    done.map(|()| name)
}

/// The final name, the name of the unfinished tree, and that of the snapshot at the last mark.
type Names<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn fill<R: Read>(
    fs: &FileSystem,
    dir: Ino,
    (name, part, at_mark): Names<'_>,
    (reader, first): (&mut Reader<R>, Record),
    resume: bool,
    changed: &dyn Fn(Changed<'_>),
) -> Result<()> {
    let Record::Begin { id, base, mark, hash, .. } = first else { bail!("no beginning") };
    let there = if resume { partial(fs, dir, name)? } else { None };
    let from = match (resume, there) {
        (true, Some(there)) => {
            ensure!(there.id.0 == id, "the stream is of another snapshot than the interrupted transfer");
            // What the earlier part left out is as in its base. The rest must leave out the same.
            ensure!(
                there.base == base_of(base),
                "the stream is the difference from {}, the interrupted transfer that from {}",
                shown(base_of(base)),
                shown(there.base)
            );
            let wanted = Token { mark, hash };
            ensure!(
                there.token == wanted,
                "the stream begins after mark {mark}, the interrupted transfer needs --resume-from {}",
                there.token
            );
            let root = root_named(fs, dir, at_mark).context("no state at a mark")?;
            let kept = fs.trees().iter().any(|tree| tree.root == root && tree.read_only);
            ensure!(
                kept,
                "{} is writable, so it may have changed since the mark: kedge receive --forget deletes it",
                String::from_utf8_lossy(at_mark)
            );
            Some(root)
        }
        (true, None) => bail!("no interrupted transfer of {} is there", String::from_utf8_lossy(name)),
        (false, _) => {
            ensure!(mark == 0, "the stream is the rest of an interrupted transfer: --resume");
            forget(fs, dir, name, changed)?;
            base_of(base).map(|base| find_base(fs, &base)).transpose()?
        }
    };
    if root_named(fs, dir, part).is_some() {
        fs.delete_tree(dir, part)?;
    }
    let tree = fs.receive(from, dir, part)?;
    changed(Changed::Name(dir, part));
    changed(Changed::Inode(dir));
    let receiver = Receiver { fs, tree, id: TreeIdentity(id), base, dir, at_mark, changed };
    let done = receiver.run(reader, name);
    match done {
        Ok(()) => {
            if root_named(fs, dir, at_mark).is_some() {
                fs.delete_tree(dir, at_mark)?;
            }
            Ok(())
        }
        Err(e) => Err(match receiver.tree.abandon() {
            Ok(()) => e,
            Err(left) => e.context(format!("the unfinished tree stays: {left}")),
        }),
    }
}

fn shown(base: Option<TreeIdentity>) -> String {
    base.map_or_else(|| "no snapshot".to_owned(), |base| format!("snapshot {base}"))
}

/// Returns the root of the snapshot with this identity.
fn find_base(fs: &FileSystem, base: &TreeIdentity) -> Result<Ino> {
    for tree in fs.trees().into_iter().filter(|tree| tree.read_only) {
        if fs.tree_identity(tree.root)? == *base && !tree.name.starts_with(b".kedge-receive.") {
            return Ok(tree.root);
        }
    }
    bail!("the snapshot from which the stream says the difference is not here, or was changed ({base})")
}

struct Receiver<'a> {
    fs: &'a FileSystem,
    tree: Receiving,
    id: TreeIdentity,
    /// The base as `Begin` has it.
    base: Hash,
    dir: Ino,
    at_mark: &'a [u8],
    changed: &'a dyn Fn(Changed<'_>),
}

/// The name and the inodes that a record changes, for the kernel's caches.
#[derive(Default)]
struct Touched {
    name: Option<(u64, Vec<u8>)>,
    inodes: [Option<u64>; 3],
}

impl Touched {
    fn of(record: &Record) -> Touched {
        let name = |dir: u64, name: &Vec<u8>, ino: u64| Touched {
            name: Some((dir, name.clone())),
            // An inode without its final name has a preliminary one in the root.
            inodes: [Some(dir), Some(ino), Some(Ino::ROOT.0)],
        };
        let inode = |ino: u64| Touched { inodes: [Some(ino), None, None], ..Touched::default() };
        match record {
            Record::New { ino, dir: 0, .. } => {
                Touched { inodes: [Some(*ino), Some(Ino::ROOT.0), None], name: None }
            }
            Record::New { ino, dir, name: made, .. } => name(*dir, made, *ino),
            Record::Take { dir, name: taken, ino } => name(*dir, taken, *ino),
            Record::Remove { dir, name: removed, ino } => name(*dir, removed, *ino),
            Record::Name { dir, name: given, ino } => name(*dir, given, *ino),
            Record::Size { ino, .. }
            | Record::Data { ino, .. }
            | Record::Reserve { ino, .. }
            | Record::Punch { ino, .. }
            | Record::Xattr { ino, .. }
            | Record::NoXattr { ino, .. }
            | Record::Attr { ino, .. } => inode(*ino),
            Record::Named {} => inode(Ino::ROOT.0),
            Record::Begin { .. } | Record::Mark { .. } | Record::End { .. } => Touched::default(),
        }
    }
}

fn is_dir(attr: &Attr) -> bool {
    attr.kind == FileKind::Directory
}

impl Receiver<'_> {
    fn run(&self, reader: &mut Reader<impl Read>, name: &[u8]) -> Result<()> {
        self.relax(Ino::ROOT)?;
        loop {
            let applied = match reader.record()? {
                Record::End { .. } => break,
                Record::Mark { number, hash } => self.keep(&Token { mark: number, hash }),
                record => {
                    let touched = Touched::of(&record);
                    let applied = self.apply(record);
                    self.pass_on(&touched);
                    applied
                }
            };
            applied.with_context(|| format!("record {}", reader.place()))?;
        }
        self.check_staged()?;
        Ok(self.tree.finish(self.dir, name, &self.id)?)
    }

    /// Makes the snapshot for a mark, which keeps the present state of the tree.
    fn keep(&self, token: &Token) -> Result<()> {
        let note = [&self.id.0[..], &self.base, &token.mark.to_le_bytes(), &token.hash].concat();
        self.tree.note(&note)?;
        self.tree.keep(self.dir, self.at_mark)?;
        (self.changed)(Changed::Name(self.dir, self.at_mark));
        (self.changed)(Changed::Inode(self.dir));
        Ok(())
    }

    /// Reports what a record has changed, or after an error may have changed.
    fn pass_on(&self, touched: &Touched) {
        let here = |ino: u64| Ino(ino).in_tree(self.tree.root().tree());
        if let Some((dir, name)) = &touched.name {
            (self.changed)(Changed::Name(here(*dir), name));
        }
        touched.inodes.iter().flatten().for_each(|ino| (self.changed)(Changed::Inode(here(*ino))));
    }

    /// The preliminary name of an inode.
    fn staged(&self, ino: u64) -> Vec<u8> {
        format!("{}{ino}", self.prefix()).into_bytes()
    }

    fn prefix(&self) -> String {
        format!(".kedge-{}-", self.id)
    }

    /// Clears the flags that forbid changes. The last record of the inode sets them again.
    fn relax(&self, ino: Ino) -> Result<Attr> {
        let attr = self.tree.attr(ino).with_context(|| format!("inode {ino}"))?;
        let hard = FileFlags::IMMUTABLE | FileFlags::APPEND;
        if attr.flags.has(hard) {
            self.tree.set_flags(ino, attr.flags.without(hard))?;
        }
        Ok(attr)
    }

    fn file(&self, ino: u64) -> Result<Ino> {
        let attr = self.relax(Ino(ino))?;
        ensure!(attr.kind == FileKind::Regular, "inode {ino} is no file");
        Ok(Ino(ino))
    }

    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<Attr>> {
        match self.tree.lookup(Ino(dir), name) {
            Ok(attr) => Ok(Some(attr)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("name in directory {dir}")),
        }
    }

    fn apply(&self, record: Record) -> Result<()> {
        let tree = &self.tree;
        match record {
            Record::New { ino, dir, name, mode, rdev, flags, target } => {
                self.make(ino, (dir, name), (mode, rdev, flags), &target)
            }
            Record::Size { ino, size } => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                tree.setattr(self.file(ino)?, &set)?;
                Ok(())
            }
            Record::Data { ino, offset, bytes } => Ok(tree.write(self.file(ino)?, offset, &bytes)?),
            Record::Reserve { ino, offset, len } => {
                let ino = self.file(ino)?;
                tree.fallocate(ino, FallocateMode::PunchHole, offset, len)?;
                Ok(tree.fallocate(ino, FallocateMode::Allocate { keep_size: true }, offset, len)?)
            }
            Record::Punch { ino, offset, len } => {
                Ok(tree.fallocate(self.file(ino)?, FallocateMode::PunchHole, offset, len)?)
            }
            Record::Xattr { ino, name, value } => {
                self.relax(Ino(ino))?;
                Ok(tree.set_xattr(Ino(ino), &name, Some(&value))?)
            }
            Record::NoXattr { ino, name } => {
                self.relax(Ino(ino))?;
                Ok(tree.set_xattr(Ino(ino), &name, None)?)
            }
            Record::Take { dir, name, ino } => self.take(dir, &name, ino),
            Record::Remove { dir, name, ino } => self.remove(dir, &name, ino),
            Record::Name { dir, name, ino } => self.name(dir, &name, ino),
            Record::Named {} => self.clean(),
            Record::Attr { ino, mode, uid, gid, flags, nlink, size, atime, mtime, ctime } => {
                let times = (atime, mtime, ctime);
                self.attributes(Ino(ino), (mode, uid, gid), flags, (nlink, size), times)
            }
            Record::Begin { .. } | Record::Mark { .. } | Record::End { .. } => bail!("out of place"),
        }
    }

    fn make(
        &self,
        ino: u64,
        (dir, name): (u64, Vec<u8>),
        (mode, rdev, flags): (u32, u64, u32),
        target: &[u8],
    ) -> Result<()> {
        if self.tree.attr(Ino(ino)).is_ok() {
            return Ok(());
        }
        let (dir, name) = if dir == 0 { (Ino::ROOT, self.staged(ino)) } else { (Ino(dir), name) };
        self.relax(dir)?;
        let made = self.tree.make(Ino(ino), dir, &name, mode, rdev, target);
        made.with_context(|| format!("make inode {ino}"))?;
        // Removes attributes that the inode has inherited from its directory: the source's follow
        // as records.
        for name in self.fs.listxattr(Ino(ino).in_tree(self.tree.root().tree()))? {
            self.tree.set_xattr(Ino(ino), &name, None)?;
        }
        let attr = self.tree.attr(Ino(ino))?;
        let flags = FileFlags::from_bits(flags).context("unknown flags")?;
        if matches!(attr.kind, FileKind::Regular | FileKind::Directory) && attr.flags != flags {
            self.set_flags(Ino(ino), flags)?;
        }
        Ok(())
    }

    /// Sets flags. An image without data checksums does not support NOCOW (no checksums for this
    /// file), which has no effect there and is left out.
    fn set_flags(&self, ino: Ino, flags: FileFlags) -> Result<()> {
        match self.tree.set_flags(ino, flags) {
            Err(Error::NotSupported(_)) if flags.has(FileFlags::NOCOW) => {
                self.set_flags(ino, flags.without(FileFlags::NOCOW))
            }
            set => set.with_context(|| format!("flags of inode {ino}")),
        }
    }

    fn take(&self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        self.relax(Ino(dir))?;
        let attr = self.relax(Ino(ino))?;
        let there = self.find(dir, name)?;
        ensure!(there.is_some_and(|there| there.ino == attr.ino), "inode {ino} does not have the name");
        let staged = self.staged(ino);
        match self.find(Ino::ROOT.0, &staged)? {
            Some(_) if !is_dir(&attr) => Ok(self.tree.unlink(Ino(dir), name)?),
            _ => Ok(self.tree.rename((Ino(dir), name), (Ino::ROOT, &staged))?),
        }
    }

    /// Removes a name. For a directory, first removes its remaining contents, depth first.
    fn remove(&self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        let there = self.find(dir, name)?.context("the name is not there")?;
        ensure!(there.ino.local().0 == ino, "inode {ino} does not have the name");
        let mut left = vec![(Ino(dir), name.to_vec(), Ino(ino))];
        while let Some((above, name, ino)) = left.last().cloned() {
            self.relax(above)?;
            if !is_dir(&self.relax(ino)?) {
                self.tree.unlink(above, &name)?;
                left.pop();
                continue;
            }
            let entries = crate::offline::entries(self.fs, ino.in_tree(self.tree.root().tree()))?;
            if entries.is_empty() {
                self.tree.rmdir(above, &name)?;
                left.pop();
            } else {
                left.extend(entries.into_iter().map(|(name, below)| (ino, name, below.local())));
            }
        }
        Ok(())
    }

    fn name(&self, dir: u64, name: &[u8], ino: u64) -> Result<()> {
        let attr = self.relax(Ino(ino))?;
        self.relax(Ino(dir))?;
        match self.find(dir, name)? {
            Some(there) if there.ino == attr.ino => return Ok(()),
            Some(_) => bail!("a name in directory {dir} is taken"),
            None => {}
        }
        match is_dir(&attr) {
            true => Ok(self.tree.rename((Ino::ROOT, &self.staged(ino)), (Ino(dir), name))?),
            false => Ok(self.tree.link(Ino(ino), Ino(dir), name)?),
        }
    }

    fn entries_staged(&self) -> Result<Vec<(Vec<u8>, Ino)>> {
        let prefix = self.prefix();
        let mut found = Vec::new();
        self.fs.readdir(self.tree.root(), 0, &mut |entry| {
            if entry.name.starts_with(prefix.as_bytes()) {
                found.push((entry.name.to_vec(), entry.ino));
            }
            found.len() < 1024
        })?;
        Ok(found)
    }

    /// Removes the preliminary names of files. All of these files have their final names by now.
    fn clean(&self) -> Result<()> {
        loop {
            let found = self.entries_staged()?;
            if found.is_empty() {
                return Ok(());
            }
            for (name, ino) in found {
                ensure!(!is_dir(&self.relax(ino.local())?), "directory {} gets no name", ino.local());
                self.tree.unlink(Ino::ROOT, &name)?;
            }
        }
    }

    fn check_staged(&self) -> Result<()> {
        ensure!(self.entries_staged()?.is_empty(), "the stream ends before all names are given");
        Ok(())
    }

    fn attributes(
        &self,
        ino: Ino,
        (mode, uid, gid): (u32, u32, u32),
        flags: u32,
        (nlink, size): (u32, u64),
        (atime, mtime, ctime): (kedgefs::Timespec, kedgefs::Timespec, kedgefs::Timespec),
    ) -> Result<()> {
        let before = self.relax(ino)?;
        ensure!(FileKind::from_mode(mode) == Some(before.kind), "inode {ino} has another type");
        if before.kind == FileKind::Regular && before.size != size {
            self.tree.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        }
        let flags = FileFlags::from_bits(flags).context("unknown flags")?;
        let fixed = self.tree.attr(ino)?.flags != flags;
        if fixed && matches!(before.kind, FileKind::Regular | FileKind::Directory) {
            // The flags that forbid changes are set last.
            let hard = FileFlags::IMMUTABLE | FileFlags::APPEND;
            self.set_flags(ino, flags.without(hard))?;
        }
        let set = SetAttr {
            mode: Some(mode & 0o7777),
            uid: Some(uid),
            gid: Some(gid),
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ctime: Some(ctime),
            ..SetAttr::default()
        };
        self.tree.setattr(ino, &set)?;
        let now = self.tree.attr(ino)?;
        if now.flags != flags && flags.has(FileFlags::IMMUTABLE | FileFlags::APPEND) {
            self.set_flags(ino, flags)?;
            self.tree.setattr(ino, &SetAttr { ctime: Some(ctime), ..SetAttr::default() })?;
        }
        ensure!(now.nlink == nlink, "inode {ino} has {} links instead of {nlink}", now.nlink);
        ensure!(now.size == size, "inode {ino} has size {} instead of {size}", now.size);
        Ok(())
    }
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
