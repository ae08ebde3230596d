//! Reads a file system's tree into a recording, and makes a file system hold a crash state.

use kedge_crash::state::{Body, Node, State};
use kedge_crash::{Call, Event};
use kedgefs::{Attr, Error, FileKind, FileSystem, Ino, Owner, Result, SetAttr, WriteMode, XattrMode};
use std::collections::{HashMap, HashSet};

/// The number of bytes that are read or written at once.
const CHUNK: usize = 1 << 20;

/// The names in a directory, without "." and "..".
fn entries(fs: &FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        true
    })?;
    Ok(names)
}

/// The calls that would create the current tree, followed by a baseline, so that none of it can be
/// lost. Files in `nameless` are included if they are still open and have no name: they may get one
/// later, or be written through their descriptors.
pub fn baseline(fs: &FileSystem, nameless: &[Ino]) -> Result<Vec<Event>> {
    let mut reader = Reader { fs, events: Vec::new(), seen: HashSet::new() };
    let mut todo = vec![Ino::ROOT];
    while let Some(dir) = todo.pop() {
        for name in entries(fs, dir)? {
            let attr = fs.lookup(dir, &name)?;
            reader.read(dir, name, &attr)?;
            if attr.kind == FileKind::Directory {
                todo.push(attr.ino);
            }
        }
    }
    for ino in nameless {
        match fs.getattr(*ino) {
            Ok(attr) if attr.nlink == 0 && attr.kind == FileKind::Regular => reader.read_nameless(&attr)?,
            // The file has a name, or its last descriptor is closed, or it has no bytes.
            Ok(_) | Err(Error::NotFound) => {}
            Err(e) => return Err(e),
        }
    }
    reader.put(Call::Baseline);
    Ok(reader.events)
}

struct Reader<'a> {
    fs: &'a FileSystem,
    events: Vec<Event>,
    seen: HashSet<Ino>,
}

impl Reader<'_> {
    fn put(&mut self, call: Call) {
        self.events.push(Event { time: 0, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() });
    }

    fn read(&mut self, dir: Ino, name: Vec<u8>, attr: &Attr) -> Result<()> {
        let ino = attr.ino.0;
        if !self.seen.insert(attr.ino) {
            self.put(Call::Link { ino, dir: dir.0, name });
            return Ok(());
        }
        let target = match attr.kind {
            FileKind::Symlink => Some(self.fs.readlink(attr.ino)?),
            _ => None,
        };
        let (mode, uid, gid) = (attr.mode, attr.uid, attr.gid);
        self.put(Call::Create { dir: dir.0, name, ino, mode, uid, gid, target });
        self.read_contents(attr)
    }

    fn read_nameless(&mut self, attr: &Attr) -> Result<()> {
        self.put(Call::Tmpfile { ino: attr.ino.0, mode: attr.mode, uid: attr.uid, gid: attr.gid });
        self.read_contents(attr)
    }

    fn read_contents(&mut self, attr: &Attr) -> Result<()> {
        if attr.kind == FileKind::Regular {
            self.read_bytes(attr)?;
        }
        for name in self.fs.listxattr(attr.ino)? {
            let value = Some(self.fs.getxattr(attr.ino, &name)?);
            self.put(Call::Xattr { ino: attr.ino.0, name, value });
        }
        Ok(())
    }

    fn read_bytes(&mut self, attr: &Attr) -> Result<()> {
        let mut buf = vec![0; CHUNK];
        let mut offset = 0;
        while offset < attr.size {
            let len = self.fs.read(attr.ino, offset, &mut buf)?;
            if len == 0 {
                break;
            }
            // Skip zeros, so that holes stay holes.
            if buf[..len].iter().any(|b| *b != 0) {
                let data = buf[..len].to_vec();
                self.put(Call::Write { ino: attr.ino.0, offset, data, mapped: false });
            }
            offset += len as u64;
        }
        self.put(Call::Truncate { ino: attr.ino.0, size: attr.size });
        Ok(())
    }
}

/// Makes the file system hold exactly this tree, durably. Pipes, sockets and devices are left out,
/// and times are the current time.
pub fn restore(fs: &FileSystem, state: &State) -> Result<()> {
    empty(fs, Ino::ROOT)?;
    let mut writer = Writer { fs, dirs: HashMap::new(), made: HashMap::new() };
    let mut result = Ok(());
    state.walk(&mut |path, ino, node| {
        if result.is_ok() {
            result = writer.make(path, ino, node);
        }
    });
    result?;
    fs.sync()
}

/// Removes everything below a directory. This also frees the space of files that are still open.
fn empty(fs: &FileSystem, dir: Ino) -> Result<()> {
    // Collect directories parents first, and remove them in reverse order.
    let mut dirs = vec![(dir, None)];
    let mut next = 0;
    while next < dirs.len() {
        let dir = dirs[next].0;
        for name in entries(fs, dir)? {
            let attr = fs.lookup(dir, &name)?;
            if attr.kind == FileKind::Directory {
                dirs.push((attr.ino, Some((dir, name))));
                continue;
            }
            if attr.kind == FileKind::Regular {
                fs.setattr(attr.ino, &SetAttr { size: Some(0), ..SetAttr::default() })?;
            }
            fs.unlink(dir, &name)?;
        }
        next += 1;
    }
    dirs.into_iter().rev().filter_map(|d| d.1).try_for_each(|(dir, name)| fs.rmdir(dir, &name))
}

struct Writer<'a> {
    fs: &'a FileSystem,
    /// The new directories by path.
    dirs: HashMap<Vec<u8>, Ino>,
    /// The new files by their inode number in the state.
    made: HashMap<u64, Ino>,
}

impl Writer<'_> {
    fn make(&mut self, path: &[u8], ino: u64, node: &Node) -> Result<()> {
        if path.is_empty() {
            self.dirs.insert(Vec::new(), Ino::ROOT);
            return Ok(());
        }
        let (above, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        // The walk visits parents first, so a missing parent was left out.
        let Some(dir) = self.dirs.get(above).copied() else { return Ok(()) };
        let owner = Owner { uid: node.meta.uid, gid: node.meta.gid };
        let mode = node.meta.mode & 0o7777;
        let attr = match &node.body {
            Body::Dir(_) => {
                let attr = self.fs.mkdir(dir, name, FileKind::Directory.mode_bits() | mode, owner)?;
                self.dirs.insert(path.to_vec(), attr.ino);
                attr
            }
            _ if self.made.contains_key(&ino) => {
                return self.fs.link(self.made[&ino], dir, name).map(drop);
            }
            Body::Symlink(target) => self.fs.symlink(dir, name, target, owner)?,
            Body::Special => return Ok(()),
            Body::File(file) => {
                let attr = self.fs.create(dir, name, FileKind::Regular.mode_bits() | mode, owner)?;
                for (at, bytes) in file.pieces() {
                    write_all(self.fs, attr.ino, at, bytes)?;
                }
                set_size(self.fs, attr.ino, file.size)?;
                attr
            }
        };
        self.made.insert(ino, attr.ino);
        for (name, value) in &node.xattrs {
            self.fs.setxattr(attr.ino, name, value, XattrMode::Any)?;
        }
        // Set the mode again, since creating and writing may have changed it: a directory may
        // inherit the set-group-id bit, and a write clears set-id bits.
        let set =
            SetAttr { mode: Some(mode), uid: Some(owner.uid), gid: Some(owner.gid), ..SetAttr::default() };
        match node.body {
            Body::Symlink(_) => Ok(()),
            _ => self.fs.setattr(attr.ino, &set).map(drop),
        }
    }
}

pub fn write_all(fs: &FileSystem, ino: Ino, at: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match fs.write_with(ino, at + done as u64, &bytes[done..], WriteMode::default())? {
            0 => return Err(kedgefs::Error::WriteBack(ino)),
            n => done += n,
        }
    }
    Ok(())
}

pub fn set_size(fs: &FileSystem, ino: Ino, size: u64) -> Result<()> {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}
