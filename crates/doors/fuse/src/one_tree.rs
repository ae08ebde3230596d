//! Shows one tree of a file system as a whole mount: [`OneTree`].
//!
//! The kernel's root has the number 1, which in the engine is the root of the first tree. So
//! numbers are translated here: 1 means the root of the shown tree in every call, and the root has
//! the number 1 in every result. All other inodes keep their numbers. Nothing outside of the tree
//! can be reached: names lead down, and `..` of the root is the root.
//!
//! Trees attached below the shown tree are a part of the mount, as of any other mount. Operations
//! on the whole image, such as resizing, freezing or a shutdown, affect the whole image.

use crate::ops::{Done, Ops};
use kedgefs::{
    AtomicWrite, Attr, DirEntry, Error, FallocateMode, FileFlags, FileSystem, Ino, Limit, Owner, RenameMode,
    Result, SeekKind, SetAttr, SetLimit, StatFs, Thawed, TreeInfo, TreeSpace, WriteMode, XattrMode,
};

/// A file system of which only one tree is visible.
pub struct OneTree {
    fs: FileSystem,
    root: Ino,
}

/// Converts an inode number of the kernel into that of the file system.
pub(crate) fn inward(root: Ino, ino: Ino) -> Ino {
    if ino == Ino::ROOT { root } else { ino }
}

/// Converts an inode number of the file system into that for the kernel.
pub(crate) fn outward(root: Ino, ino: Ino) -> Ino {
    if ino == root { Ino::ROOT } else { ino }
}

impl OneTree {
    /// Shows only the tree with this root.
    pub fn new(fs: FileSystem, root: Ino) -> OneTree {
        OneTree { fs, root }
    }

    fn inward(&self, ino: Ino) -> Ino {
        inward(self.root, ino)
    }

    fn outward(&self, ino: Ino) -> Ino {
        outward(self.root, ino)
    }

    fn attr(&self, found: Result<Attr>) -> Result<Attr> {
        found.map(|attr| Attr { ino: self.outward(attr.ino), ..attr })
    }

    fn limit(&self, mut limit: Limit) -> Limit {
        limit.dir = self.outward(limit.dir);
        limit.inside = limit.inside.map(|dir| self.outward(dir));
        limit
    }

    /// The trees that are visible on the mount, the shown tree first.
    fn shown(&self) -> Vec<TreeInfo> {
        let mut hidden = self.fs.trees();
        let Some(at) = hidden.iter().position(|tree| tree.root == self.root) else { return Vec::new() };
        let mut shown = vec![hidden.swap_remove(at)];
        let mut looked = 0;
        while let Some(above) = shown.get(looked).map(|tree| tree.root) {
            let (below, others): (Vec<_>, Vec<_>) =
                hidden.into_iter().partition(|tree| tree.dir.tree() == above.tree());
            shown.extend(below);
            hidden = others;
            looked += 1;
        }
        shown[1..].sort_by_key(|tree| tree.root);
        shown
    }

    /// Refuses a tree that is not visible on the mount.
    fn shown_tree(&self, root: Ino) -> Result<Ino> {
        let root = self.inward(root);
        match self.shown().iter().any(|tree| tree.root == root) {
            true => Ok(root),
            false => Err(Error::Invalid("the directory is not the root of a tree")),
        }
    }
}

/// Implements methods by converting their numbers inward, and the attributes that they return
/// outward.
macro_rules! translated {
    (
        attr { $($made:ident($($ino:ident),*; $($arg:ident: $kind:ty),*);)* }
        plain { $($name:ident($($node:ident),*; $($part:ident: $ty:ty),*) -> $result:ty;)* }
    ) => {
        $(fn $made(&self, $($ino: Ino,)* $($arg: $kind),*) -> Result<Attr> {
            self.attr(Ops::$made(&self.fs, $(self.inward($ino),)* $($arg),*))
        })*
        $(fn $name(&self, $($node: Ino,)* $($part: $ty),*) -> $result {
            Ops::$name(&self.fs, $(self.inward($node),)* $($part),*)
        })*
    };
}

impl Ops for OneTree {
    translated! {
        attr {
            getattr(ino;);
            setattr(ino; set: &SetAttr);
            create(dir; name: &[u8], mode: u32, owner: Owner);
            mkdir(dir; name: &[u8], mode: u32, owner: Owner);
            mknod(dir; name: &[u8], mode: u32, rdev: u64, owner: Owner);
            symlink(dir; name: &[u8], target: &[u8], owner: Owner);
            tmpfile(dir; mode: u32, owner: Owner);
            link(ino, dir; name: &[u8]);
        }
        plain {
            set_flags(ino; flags: FileFlags) -> Result<()>;
            readlink(ino;) -> Result<Vec<u8>>;
            unlink(dir; name: &[u8]) -> Result<()>;
            rmdir(dir; name: &[u8]) -> Result<()>;
            read_uncached(ino; offset: u64, buf: &mut [u8]) -> Result<usize>;
            write_with(ino; offset: u64, data: &[u8], mode: WriteMode) -> Result<usize>;
            atomic(ino;) -> Result<AtomicWrite>;
            fallocate(ino; mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
            seek(ino; offset: u64, kind: SeekKind) -> Result<u64>;
            fsync_async(ino; datasync: bool, done: Done) -> ();
            sync(;) -> Result<()>;
            sync_async(; done: Done) -> ();
            getxattr(ino; name: &[u8]) -> Result<Vec<u8>>;
            setxattr(ino; name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
            list_xattrs(ino; visit: &mut dyn FnMut(&[u8]) -> bool) -> Result<()>;
            removexattr(ino; name: &[u8]) -> Result<()>;
            pin(ino;) -> Result<()>;
            unpin(ino; count: u64) -> ();
            statfs_at(ino;) -> Result<StatFs>;
            has_acls(;) -> bool;
            has_immutable(;) -> bool;
            cache_size(;) -> u64;
            shutdown(; flush: bool) -> Result<()>;
            trim(; offset: u64, len: u64, min_len: u64) -> Result<u64>;
            resize(; bytes: Option<u64>) -> Result<u64>;
            delete_tree(dir; name: &[u8]) -> Result<()>;
            stats_json(;) -> String;
            info_json(;) -> String;
            set_options(; list: &str) -> Result<()>;
            freeze(;) -> Result<()>;
            thaw(;) -> Result<()>;
            change_or(; now: &mut dyn FnMut(), later: &mut dyn FnMut() -> Option<Thawed>) -> ();
        }
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        match (dir, name) {
            (Ino::ROOT, b"..") => self.getattr(dir),
            _ => self.attr(Ops::lookup(&self.fs, self.inward(dir), name)),
        }
    }

    fn rename(&self, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        Ops::rename(&self.fs, self.inward(dir), name, self.inward(new_dir), new_name, mode)
    }

    fn clone_most(&self, source: Ino, offset: u64, target: Ino, to: u64, len: u64) -> Result<u64> {
        Ops::clone_most(&self.fs, self.inward(source), offset, self.inward(target), to, len)
    }

    fn readdir(&self, dir: Ino, cookie: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        Ops::readdir(&self.fs, self.inward(dir), cookie, &mut |entry| {
            let is_up = dir == Ino::ROOT && entry.name == b"..";
            let ino = if is_up { Ino::ROOT } else { self.outward(entry.ino) };
            visit(DirEntry { ino, ..entry })
        })
    }

    fn statfs(&self) -> StatFs {
        // A limit of the tree's root applies to the whole mount.
        Ops::statfs_at(&self.fs, self.root).unwrap_or_else(|_| Ops::statfs(&self.fs))
    }

    fn set_limit(&self, dir: Ino, change: SetLimit) -> Result<Limit> {
        Ops::set_limit(&self.fs, self.inward(dir), change).map(|limit| self.limit(limit))
    }

    fn limit_of(&self, ino: Ino) -> Result<Option<Limit>> {
        Ok(Ops::limit_of(&self.fs, self.inward(ino))?.map(|limit| self.limit(limit)))
    }

    fn limits(&self) -> Vec<Limit> {
        let shown = self.shown();
        let is_shown = |limit: &Limit| shown.iter().any(|tree| tree.root.tree() == limit.dir.tree());
        Ops::limits(&self.fs).into_iter().filter(is_shown).map(|limit| self.limit(limit)).collect()
    }

    fn fork(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Attr> {
        self.attr(Ops::fork(&self.fs, self.shown_tree(source)?, self.inward(dir), name, read_only))
    }

    fn roll_back(&self, source: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.attr(Ops::roll_back(&self.fs, self.shown_tree(source)?, self.inward(dir), name))
    }

    fn commit_tree(&self, fork: Ino, dir: Ino, name: &[u8], force: bool) -> Result<()> {
        let fork = self.shown_tree(fork)?;
        if fork == self.root {
            return Err(Error::Invalid("the root of the mount cannot take another name"));
        }
        Ops::commit_tree(&self.fs, fork, self.inward(dir), name, force)
    }

    fn roll_back_root(&self, _source: Ino) -> Result<()> {
        Err(Error::NotSupported("the root of the mount is a fork: replace it where it has a name"))
    }

    fn commit_root(&self, _fork: Ino, _force: bool) -> Result<()> {
        self.roll_back_root(self.root)
    }

    fn tree_named(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        Ops::tree_named(&self.fs, self.inward(dir), name).map(|root| self.outward(root))
    }

    fn trees(&self) -> Vec<TreeInfo> {
        let mut shown = self.shown();
        for tree in &mut shown {
            tree.dir = self.outward(tree.dir);
        }
        if let Some(own) = shown.first_mut() {
            own.root = Ino::ROOT;
            own.dir = Ino::ROOT;
            own.name.clear();
        }
        shown
    }

    fn tree_space(&self, root: Ino) -> Result<TreeSpace> {
        Ops::tree_space(&self.fs, self.shown_tree(root)?)
    }

    fn path_of(&self, dir: Ino) -> Result<Vec<u8>> {
        let (top, whole) = (Ops::path_of(&self.fs, self.root)?, Ops::path_of(&self.fs, self.inward(dir))?);
        let below = whole.strip_prefix(&top[..]).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
        match below {
            Some(b"") => Ok(b"/".to_vec()),
            Some(path) => Ok(path.to_vec()),
            None => Err(Error::NotFound),
        }
    }
}
