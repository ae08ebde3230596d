//! The content of an open file system, read through its interface, and its comparison with the
//! model.
//!
//! Reading already checks what holds in every state: readdir, lookup and getattr agree, "." and
//! ".." are right, link counts equal the number of names, no directory has two names, sizes match
//! the bytes, and holes read as zeros.

use crate::content::{CHUNK, Content};
use crate::model::{Id, Inode, Limit, Model, ROOT};
use crate::ops::{acl_bits, acl_name};
use kedgefs::{Attr, DirEntry, Error, FileKind, FileSystem, Ino, SeekKind};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Files up to this size are read whole, larger ones only where SEEK_DATA finds data.
const READ_WHOLE_MAX: u64 = 8 << 20;
/// Entries of each readdir call: few, so that continuing from a cookie is tested often.
const READDIR_BATCH: usize = 7;

/// An inode as the file system shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub attr: Attr,
    pub content: Content,
    pub target: String,
    pub xattrs: BTreeMap<String, String>,
    pub entries: BTreeMap<String, Ino>,
    /// The limit of a directory.
    pub limit: Option<Limit>,
    /// One of its paths, for messages.
    pub path: String,
}

/// The whole tree below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub inodes: BTreeMap<Ino, Found>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(path: &str, call: &str) -> impl Fn(Error) -> String {
    move |e| format!("{path}: {call} fails: {e} (errno {})", e.errno())
}

impl View {
    /// Walks the tree. An error names the path and the fault.
    pub fn of(fs: &FileSystem) -> Result<View, String> {
        View::walk(fs, read_content)
    }

    /// [`View::of`] for an image whose data may not match its checksums: such a file's content is
    /// empty.
    pub fn of_damaged(fs: &FileSystem) -> Result<View, String> {
        View::walk(fs, read_damaged)
    }

    fn walk(fs: &FileSystem, content: Contents) -> Result<View, String> {
        let mut view = View { inodes: BTreeMap::new() };
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut queue = vec![(Ino::ROOT, Ino::ROOT, ".".to_owned())];
        while let Some((ino, parent, path)) = queue.pop() {
            if view.inodes.contains_key(&ino) {
                return Err(format!("{path}: directory {ino} is found twice"));
            }
            // getattr comes first, since readdir may update the atime.
            let mut found = read_inode_with(fs, ino, &path, content)?;
            let entries = read_entries(fs, ino, parent, &path)?;
            let mut subdirs = 0;
            for (name, child, kind) in entries {
                let below = if ino == Ino::ROOT { name.clone() } else { format!("{path}/{name}") };
                let attr = fs.lookup(ino, name.as_bytes()).map_err(said(&below, "lookup"))?;
                if (attr.ino, attr.kind) != (child, kind) {
                    return Err(format!(
                        "{below}: readdir says inode {child} {kind:?}, lookup says {} {:?}",
                        attr.ino, attr.kind
                    ));
                }
                *names.entry(child).or_default() += 1;
                if kind == FileKind::Directory {
                    subdirs += 1;
                    queue.push((child, ino, below));
                } else if let Entry::Vacant(vacant) = view.inodes.entry(child) {
                    vacant.insert(read_inode_with(fs, child, &below, content)?);
                }
                if found.entries.insert(name, child).is_some() {
                    return Err(format!("{path}: readdir shows a name twice"));
                }
            }
            if found.attr.nlink != 2 + subdirs {
                return Err(format!("{path}: {} links with {subdirs} subdirectories", found.attr.nlink));
            }
            if found.attr.size != found.entries.len() as u64 {
                return Err(format!("{path}: size {} with {} entries", found.attr.size, found.entries.len()));
            }
            view.inodes.insert(ino, found);
        }
        for limit in fs.limits() {
            let found = view.inodes.get_mut(&limit.dir);
            let found = found.ok_or_else(|| format!("a limit of inode {}, which has no name", limit.dir))?;
            found.limit = Some((limit.bytes_max.unwrap_or(0), limit.files_max.unwrap_or(0)));
        }
        for (ino, found) in &view.inodes {
            let count = names.get(ino).copied().unwrap_or(0);
            if found.attr.kind != FileKind::Directory && found.attr.nlink != count {
                return Err(format!("{}: {} links with {count} names", found.path, found.attr.nlink));
            }
        }
        Ok(view)
    }

    /// A hash of what most often differs. Equal trees have equal hashes.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (ino, found) in &self.inodes {
            let attr = &found.attr;
            (ino.0, attr.size, attr.nlink, attr.mode, attr.blocks).hash(&mut hasher);
            (attr.atime, attr.mtime, attr.ctime).hash(&mut hasher);
            (&found.entries, &found.xattrs, &found.limit).hash(&mut hasher);
            for number in found.content.chunk_numbers() {
                (number, found.content.chunk(number)).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    pub fn at(&self, path: &str) -> Option<&Found> {
        let ino = crate::ops::components(path)
            .try_fold(Ino::ROOT, |dir, name| self.inodes.get(&dir)?.entries.get(name).copied())?;
        self.inodes.get(&ino)
    }

    /// A model that holds this tree.
    pub fn to_model(&self) -> Model {
        let mut parents = BTreeMap::from([(Ino::ROOT, Ino::ROOT)]);
        for (dir, found) in &self.inodes {
            for child in found.entries.values() {
                parents.insert(*child, *dir);
            }
        }
        let inode = |(ino, found): (&Ino, &Found)| {
            let inode = Inode {
                kind: found.attr.kind,
                perm: found.attr.mode & 0o7777,
                uid: found.attr.uid,
                gid: found.attr.gid,
                rdev: found.attr.rdev,
                flags: found.attr.flags,
                nlink: found.attr.nlink,
                dead: false,
                content: found.content.clone(),
                entries: found.entries.iter().map(|(name, child)| (name.clone(), child.0)).collect(),
                parent: parents.get(ino).map_or(0, |p| p.0),
                target: found.target.clone(),
                tree: Ino::ROOT.in_tree(ino.tree()).0,
                limit: found.limit,
                xattrs: found.xattrs.clone(),
                access: found.xattrs.get(acl_name(false)).and_then(|text| acl_bits(text)),
                default: found.xattrs.get(acl_name(true)).and_then(|text| acl_bits(text)),
                atime: None,
                mtime: None,
                ctime: None,
            };
            (ino.0, Arc::new(inode))
        };
        Model::from_inodes(self.inodes.iter().map(inode).collect())
    }
}

fn read_entries(
    fs: &FileSystem,
    dir: Ino,
    parent: Ino,
    path: &str,
) -> Result<Vec<(String, Ino, FileKind)>, String> {
    let mut entries = Vec::new();
    let mut cookie = 0;
    loop {
        let mut batch = 0;
        fs.readdir(dir, cookie, &mut |entry: DirEntry<'_>| {
            entries.push((text(entry.name), entry.ino, entry.kind));
            cookie = entry.cookie;
            batch += 1;
            batch < READDIR_BATCH
        })
        .map_err(said(path, "readdir"))?;
        if batch < READDIR_BATCH {
            break;
        }
        if entries.len() > 1_000_000 {
            return Err(format!("{path}: readdir does not end"));
        }
    }
    let dots: Vec<_> = entries.iter().take(2).map(|(name, ino, kind)| (name.as_str(), *ino, *kind)).collect();
    if dots != [(".", dir, FileKind::Directory), ("..", parent, FileKind::Directory)] {
        return Err(format!("{path}: readdir begins with {dots:?}, the directory is {dir} in {parent}"));
    }
    Ok(entries.split_off(2))
}

/// Attributes and content of one inode, read as in [`View::of`].
pub fn read_inode(fs: &FileSystem, ino: Ino, path: &str) -> Result<Found, String> {
    read_inode_with(fs, ino, path, read_content)
}

fn read_inode_with(fs: &FileSystem, ino: Ino, path: &str, content: Contents) -> Result<Found, String> {
    let attr = fs.getattr(ino).map_err(said(path, "getattr"))?;
    if attr.ino != ino || attr.mode & FileKind::MODE_MASK != attr.kind.mode_bits() {
        return Err(format!("{path}: getattr of inode {ino} answers {attr:?}"));
    }
    let mut found = Found {
        attr,
        content: Content::default(),
        target: String::new(),
        xattrs: BTreeMap::new(),
        entries: BTreeMap::new(),
        limit: None,
        path: path.to_owned(),
    };
    match attr.kind {
        FileKind::Regular => found.content = content(fs, &attr, path)?,
        FileKind::Symlink => {
            let target = fs.readlink(ino).map_err(said(path, "readlink"))?;
            found.target = text(&target);
            if target.is_empty() || target.len() as u64 != attr.size {
                return Err(format!("{path}: symlink of size {} to {:?}", attr.size, found.target));
            }
        }
        _ => {}
    }
    for name in fs.listxattr(ino).map_err(said(path, "listxattr"))? {
        let value = fs.getxattr(ino, &name).map_err(said(path, "getxattr"))?;
        if found.xattrs.insert(text(&name), text(&value)).is_some() {
            return Err(format!("{path}: listxattr shows {:?} twice", text(&name)));
        }
    }
    Ok(found)
}

/// Reads the content of a file.
type Contents = fn(&FileSystem, &Attr, &str) -> Result<Content, String>;

fn read_damaged(fs: &FileSystem, attr: &Attr, path: &str) -> Result<Content, String> {
    let errors = || {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).expect("it is JSON");
        stats["data"]["checksum_errors"].as_u64().expect("it is counted")
    };
    let before = errors();
    read_content(fs, attr, path).or_else(|e| if errors() > before { Ok(Content::default()) } else { Err(e) })
}

fn read_content(fs: &FileSystem, attr: &Attr, path: &str) -> Result<Content, String> {
    let mut content = Content::default();
    content.set_size(attr.size);
    let mut data = data_ranges(fs, attr, path)?;
    if attr.size <= READ_WHOLE_MAX {
        let all = read_range(fs, attr.ino, 0, attr.size, path)?;
        let mut hole = 0;
        for (from, to) in data.iter().copied().chain([(attr.size, attr.size)]) {
            if let Some(at) = all[hole as usize..from as usize].iter().position(|b| *b != 0) {
                return Err(format!("{path}: byte {} is not zero in a hole", hole + at as u64));
            }
            hole = to;
        }
        content.write(0, &all);
        data.clear();
    }
    for (mut from, to) in data {
        while from < to {
            let len = (to - from).min(256 * CHUNK);
            content.write(from, &read_range(fs, attr.ino, from, len, path)?);
            from += len;
        }
    }
    let mut beyond = [0xee; 16];
    let behind = fs.read(attr.ino, attr.size, &mut beyond).map_err(said(path, "read"))?;
    if behind != 0 {
        return Err(format!("{path}: {behind} bytes past the end at {}", attr.size));
    }
    Ok(content)
}

fn read_range(fs: &FileSystem, ino: Ino, offset: u64, len: u64, path: &str) -> Result<Vec<u8>, String> {
    let mut buf = vec![0xee; len as usize];
    let read = fs.read(ino, offset, &mut buf).map_err(said(path, "read"))?;
    if read as u64 != len {
        return Err(format!("{path}: {read} bytes of {len} at {offset}"));
    }
    Ok(buf)
}

/// The data ranges of a file, as lseek(2) reports them.
pub fn data_ranges(fs: &FileSystem, attr: &Attr, path: &str) -> Result<Vec<(u64, u64)>, String> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < attr.size {
        let from = match fs.seek(attr.ino, at, SeekKind::Data) {
            Ok(from) => from,
            Err(Error::NoSuchOffset) => break,
            Err(e) => return Err(said(path, "seek to data")(e)),
        };
        let to = fs.seek(attr.ino, from, SeekKind::Hole).map_err(said(path, "seek to a hole"))?;
        if from < at || to <= from || to > attr.size {
            return Err(format!(
                "{path}: seek from {at} found data from {from} to {to} in a file of {}",
                attr.size
            ));
        }
        ranges.push((from, to));
        at = to;
    }
    Ok(ranges)
}

/// How much of each file [`compare_trees`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names and attributes only. After a crash, bytes and sizes have a rule of their own.
    Names,
    Everything,
}

/// Compares the view with the model, and returns the pairs of corresponding inodes.
pub fn compare_trees(view: &View, model: &Model, depth: Depth) -> Result<BTreeMap<Id, Ino>, String> {
    let mut pairs = BTreeMap::from([(ROOT, Ino::ROOT)]);
    let mut taken = BTreeSet::from([Ino::ROOT]);
    let mut queue = vec![ROOT];
    while let Some(id) = queue.pop() {
        let inode = model.inode(id).expect("found in the model's own entries");
        let found = &view.inodes[&pairs[&id]];
        compare_inode(found, inode, depth)?;
        for (name, child) in &inode.entries {
            let Some(ino) = found.entries.get(name) else {
                return Err(format!("{}: {name:?} is missing", found.path));
            };
            match pairs.get(child) {
                Some(known) if known == ino => {}
                Some(known) => {
                    return Err(format!(
                        "{}: {name:?} is inode {ino}, its other name is {known}",
                        found.path
                    ));
                }
                None if !taken.insert(*ino) => {
                    return Err(format!("{}: {name:?} has the inode {ino} of another file", found.path));
                }
                None => {
                    pairs.insert(*child, *ino);
                    queue.push(*child);
                }
            }
        }
        if let Some(name) = found.entries.keys().find(|name| !inode.entries.contains_key(*name)) {
            return Err(format!("{}: {name:?} should not be there", found.path));
        }
    }
    Ok(pairs)
}

/// Compares one inode with the model, without its entries.
pub fn compare_inode(found: &Found, inode: &Inode, depth: Depth) -> Result<(), String> {
    let attr = &found.attr;
    let (path, is_file) = (&found.path, inode.kind == FileKind::Regular);
    macro_rules! same {
        ($what:literal, $found:expr, $expected:expr) => {
            if $found != $expected {
                return Err(format!("{path}: {} is {:?}, expected {:?}", $what, $found, $expected));
            }
        };
    }
    same!("kind", attr.kind, inode.kind);
    same!("mode", attr.mode & 0o7777, inode.perm);
    same!("nlink", attr.nlink, inode.nlink);
    same!("owner", (attr.uid, attr.gid), (inode.uid, inode.gid));
    same!("rdev", attr.rdev, inode.rdev);
    same!("flags", attr.flags, inode.flags);
    same!("target", found.target, inode.target);
    same!("limit", found.limit, inode.limit);
    same!("xattrs", found.xattrs, inode.xattrs);
    if depth == Depth::Names {
        return Ok(());
    }
    same!("size", attr.size, inode.size());
    if let Some(mtime) = inode.mtime {
        same!("mtime", attr.mtime, mtime);
    }
    if let Some(ctime) = inode.ctime {
        same!("ctime", attr.ctime, ctime);
    }
    if let Some(atime) = inode.atime {
        same!("atime", attr.atime, atime);
    }
    if is_file && let Some(at) = found.content.first_difference(&inode.content) {
        let byte = |content: &Content| content.read(at, 8);
        return Err(format!(
            "{path}: byte {at} begins {:02x?}, expected {:02x?}",
            byte(&found.content),
            byte(&inode.content)
        ));
    }
    Ok(())
}

/// Checks that the content of the file system equals that of the model.
pub fn compare(fs: &FileSystem, model: &Model) -> Result<(), String> {
    compare_trees(&View::of(fs)?, model, Depth::Everything).map(|_| ())
}

/// Like [`compare`], and also for inodes that only handles keep.
pub fn compare_with_handles(exec: &crate::ops::Executor, model: &Model) -> Result<(), String> {
    compare(&exec.fs, model)?;
    for (handle, ino) in exec.handles() {
        let Some(inode) = model.handles().get(handle).and_then(|id| model.inode(*id)) else {
            return Err(format!("handle {handle} is open, not in the model"));
        };
        let found = read_inode(&exec.fs, *ino, &format!("handle {handle}"))?;
        // The comparison of the tree read the file and may have updated its atime.
        compare_inode(&found, &Inode { atime: None, ..inode.clone() }, Depth::Everything)?;
    }
    Ok(())
}
