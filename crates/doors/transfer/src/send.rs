//! `kedge send`: writes a snapshot as a stream, whole or as the difference from an older one.
//!
//! The stream refers to inodes by their numbers within the tree, which the receiver keeps. So a
//! file that was changed but not renamed needs no name in the stream, and the cost is proportional
//! to the changes. To keep nothing in memory, the sender reads the changes four times: for
//! contents, for removed names, for new names, and for attributes.

use crate::stream::{DATA_MAX, Hash, Record, Token, Writer};
use anyhow::{Result, bail};
use kedgefs::{Attr, FileFlags, FileKind, FileSystem, Ino, RangeKind, TreeChange, TreeMoment};
use std::io::Write;
use std::ops::ControlFlow;

/// Bytes between two marks, at which a transfer can be resumed.
pub const MARK_BYTES: u64 = 64 << 20;

/// Options of [`send`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Resumes an interrupted transfer after this mark.
    pub resume: Option<Token>,
    pub mark_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { resume: None, mark_bytes: MARK_BYTES }
    }
}

struct Sender<'a, W> {
    tree: &'a TreeMoment,
    base: Option<&'a TreeMoment>,
    out: Writer<W>,
}

/// Writes the snapshot with this root, as the difference from the snapshot `base` if one is given.
pub fn send(fs: &FileSystem, root: Ino, base: Option<Ino>, out: impl Write, options: &Options) -> Result<()> {
    let trees = fs.trees();
    let name = trees.iter().find(|tree| tree.root == root).map_or(Vec::new(), |tree| tree.name.clone());
    for wanted in [Some(root), base].into_iter().flatten() {
        if !trees.iter().any(|tree| tree.root == wanted && tree.read_only) {
            bail!("only snapshots can be sent: make one with kedge snapshot create");
        }
    }
    let roots: Vec<Ino> = [Some(root), base].into_iter().flatten().collect();
    let moments = fs.moments(&roots)?;
    let (tree, base) = (&moments[0], moments.get(1));
    if base.is_some_and(|base| tree.same_below(base).is_none()) {
        bail!("the two snapshots do not come from one tree");
    }
    let none: Hash = [0; 32];
    let ids = (tree.identity()?.0, base.map_or(Ok(none), |base| base.identity().map(|id| id.0))?);
    let out = Writer::begin(out, ids, &name, options.mark_bytes, options.resume)?;
    Sender { tree, base, out }.run()
}

/// Converts the result of a callback for [`TreeMoment::changes`]: after an error the comparison
/// ends.
fn next(result: Result<()>, failed: &mut Option<anyhow::Error>) -> kedgefs::Result<ControlFlow<()>> {
    Ok(match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            *failed = Some(e);
            ControlFlow::Break(())
        }
    })
}

impl<W: Write> Sender<'_, W> {
    fn run(mut self) -> Result<()> {
        self.pass(Self::contents)?;
        self.pass(Self::given_up)?;
        self.pass(Self::removed)?;
        self.pass(Self::given)?;
        self.out.put(&Record::Named {})?;
        let mut last = None;
        self.pass(|sender, change| match change {
            TreeChange::Inode { ino, after: Some(attr), .. } if ino == Ino::ROOT => {
                last = Some(attr);
                Ok(())
            }
            TreeChange::Inode { after: Some(attr), .. } => sender.attributes(&attr),
            _ => Ok(()),
        })?;
        // Sent last, and even if the root is unchanged: the preliminary names in it have changed
        // its times at the receiver.
        let root = last.map_or_else(|| self.tree.attr(Ino::ROOT), |attr| Ok(Some(attr)))?;
        if let Some(attr) = root {
            self.attributes(&attr)?;
        }
        self.out.end()
    }

    fn pass(&mut self, mut send: impl FnMut(&mut Self, TreeChange<'_>) -> Result<()>) -> Result<()> {
        let mut failed = None;
        let (tree, base) = (self.tree, self.base);
        tree.changes(base, &mut |change| next(send(self, change), &mut failed))?;
        failed.map_or(Ok(()), Err)
    }

    fn was_there(&self, ino: Ino) -> Result<bool> {
        match self.base {
            Some(base) => Ok(base.attr(ino)?.is_some()),
            None => Ok(ino == Ino::ROOT),
        }
    }

    fn contents(&mut self, change: TreeChange<'_>) -> Result<()> {
        match change {
            TreeChange::Inode { ino, before: None, after: Some(attr) } if ino != Ino::ROOT => {
                if self.was_there(ino)? {
                    bail!(
                        "inode number {ino} means two files: the older snapshot is no earlier state of the newer one"
                    );
                }
                self.new_inode(&attr, Ino(0), b"")?;
                // The size comes before reservations, because extending a file drops what is
                // reserved past its end.
                match attr.kind == FileKind::Regular && attr.size > 0 {
                    true => self.out.put(&Record::Size { ino: ino.0, size: attr.size }),
                    false => Ok(()),
                }
            }
            TreeChange::Inode { ino, before: Some(old), after: Some(new) }
                if new.kind == FileKind::Regular && new.size != old.size =>
            {
                self.out.put(&Record::Size { ino: ino.0, size: new.size })
            }
            TreeChange::Entry { dir, name, before: None, after: Some((ino, _)) } if ino > dir => {
                match self.tree.attr(ino)? {
                    Some(attr) if !self.was_there(ino)? => self.new_inode(&attr, dir, name),
                    _ => Ok(()),
                }
            }
            TreeChange::Xattr { ino, name, after, .. } => {
                let (ino, name) = (ino.0, name.to_vec());
                self.out.put(&match after {
                    Some(value) => Record::Xattr { ino, name, value: value.to_vec() },
                    None => Record::NoXattr { ino, name },
                })
            }
            TreeChange::Data { ino, offset, len, kind } => match kind {
                RangeKind::Data => self.data(ino, offset, len),
                RangeKind::Unwritten => self.out.put(&Record::Reserve { ino: ino.0, offset, len }),
                RangeKind::Hole => self.out.put(&Record::Punch { ino: ino.0, offset, len }),
            },
            _ => Ok(()),
        }
    }

    fn new_inode(&mut self, attr: &Attr, dir: Ino, name: &[u8]) -> Result<()> {
        let target = match attr.kind {
            FileKind::Symlink => self.tree.target(attr.ino)?,
            _ => Vec::new(),
        };
        self.out.put(&Record::New {
            ino: attr.ino.0,
            dir: dir.0,
            name: name.to_vec(),
            mode: attr.mode,
            rdev: attr.rdev,
            flags: if attr.flags.has(FileFlags::NOCOW) { FileFlags::NOCOW.bits() } else { 0 },
            target,
        })
    }

    fn data(&mut self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let size = self.tree.attr(ino)?.map_or(0, |attr| attr.size);
        let (mut at, end) = (offset, offset.saturating_add(len));
        let block = kedge_base::BLOCK_SIZE as u64;
        while at < end.min(size) {
            let n = (end - at).min(DATA_MAX as u64);
            let mut bytes = vec![0; n as usize];
            if !self.out.is_past() {
                self.tree.read(ino, at, &mut bytes)?;
            }
            bytes.truncate((size - at).min(n) as usize);
            self.out.put(&Record::Data { ino: ino.0, offset: at, bytes })?;
            at += n;
        }
        // Blocks past the end of the file, which fallocate has reserved.
        let at = at.max(size.next_multiple_of(block)).max(offset);
        match at < end {
            true => self.out.put(&Record::Reserve { ino: ino.0, offset: at, len: end - at }),
            false => Ok(()),
        }
    }

    fn given_up(&mut self, change: TreeChange<'_>) -> Result<()> {
        let TreeChange::Entry { dir, name, before: Some((ino, _)), .. } = change else { return Ok(()) };
        match self.tree.attr(ino)? {
            Some(_) => self.out.put(&Record::Take { dir: dir.0, name: name.to_vec(), ino: ino.0 }),
            None => Ok(()),
        }
    }

    fn removed(&mut self, change: TreeChange<'_>) -> Result<()> {
        let TreeChange::Entry { dir, name, before: Some((ino, _)), .. } = change else { return Ok(()) };
        // If the directory is removed as well, the receiver removes its contents with it.
        if self.tree.attr(ino)?.is_some() || self.tree.attr(dir)?.is_none() {
            return Ok(());
        }
        self.out.put(&Record::Remove { dir: dir.0, name: name.to_vec(), ino: ino.0 })
    }

    fn given(&mut self, change: TreeChange<'_>) -> Result<()> {
        let TreeChange::Entry { dir, name, after: Some((ino, _)), .. } = change else { return Ok(()) };
        self.out.put(&Record::Name { dir: dir.0, name: name.to_vec(), ino: ino.0 })
    }

    fn attributes(&mut self, attr: &Attr) -> Result<()> {
        self.out.put(&Record::Attr {
            ino: attr.ino.0,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            flags: attr.flags.bits(),
            nlink: attr.nlink,
            size: attr.size,
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
        })
    }
}
