//! Forks, deletions and the list of trees on a mount.
//!
//! Forks, deletions and replacements are ioctls on the directory that contains the tree's name: an
//! ioctl holds no lock of the directory, and the kernel takes this lock to drop the name. Only the
//! owner of the mount and root may use them ([`control::check_owner`]): a fork copies files that
//! the caller may not be able to read, and a deletion removes files that the caller may not be able
//! to change.
//!
//! A fork includes all changes that the server has received. To include the kernel's dirty pages, a
//! caller first calls syncfs(2), as `kedge fork` does.
//!
//! A rollback or commit on the root directory with an empty name replaces the first tree.
//!
//! rmdir(2) of an empty tree and rename(2) of a tree are served here as well. They stop changes,
//! which a worker cannot wait for while it makes one itself. So a thread of [`crate::settle`]
//! serves them.
//!
//! The attribute `system.kedgefs.trees.N` of the root directory lists the trees from number N on,
//! as many as fit, and `system.kedgefs.tree.N` shows the space that tree N uses. They have the same
//! restriction, because they show names in directories that other users may not be able to list.

use crate::abi::{self, InHeader, ioctl};
use crate::args::Args;
use crate::control;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::transport::{Reply, Transport};
use kedgefs::{Ino, RenameMode};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::{FromZeros, IntoBytes};

/// The list ends after this many bytes. The next attribute continues the list.
const LIST_BYTES: usize = 32 << 10;
/// Limit for the bytes of a path in a list.
const PATH_MAX: usize = 4096;

/// A request that makes, replaces, removes or renames a tree.
pub(crate) struct TreeCall {
    dir: Ino,
    name: Vec<u8>,
    kind: Kind,
    /// Whether an earlier server has made the change, so that only the notifications remain.
    is_made: bool,
}

enum Kind {
    Fork {
        source: Ino,
        read_only: bool,
    },
    Delete,
    RollBack {
        source: Ino,
    },
    Commit {
        fork: Ino,
        force: bool,
    },
    /// rmdir(2). The kernel holds the directory's lock, and drops the name itself.
    Rmdir,
    /// rename(2). The kernel holds the directories' locks, and drops the names itself.
    Rename {
        new_dir: Ino,
        new_name: Vec<u8>,
        mode: RenameMode,
    },
}

impl TreeCall {
    /// Whether the call replaces the first tree.
    pub(crate) fn replaces_root(cmd: u32, args: &mut Args<'_>) -> bool {
        matches!(cmd, ioctl::ROLL_BACK | ioctl::COMMIT_TREE)
            && args.take().is_ok_and(|asked: abi::TreeIn| asked.name_len == 0)
    }

    pub(crate) fn is_asked(cmd: u32) -> bool {
        matches!(cmd, ioctl::FORK | ioctl::DELETE_TREE | ioctl::ROLL_BACK | ioctl::COMMIT_TREE)
    }

    pub(crate) fn parse(cmd: u32, header: &InHeader, args: &mut Args<'_>) -> Answer<TreeCall> {
        control::check_owner(header)?;
        let asked: abi::TreeIn = args.take()?;
        let name = asked.name_head.as_bytes().get(..asked.name_len as usize);
        let name = name.ok_or(Errno(libc::ENAMETOOLONG))?.to_vec();
        let kind = match (cmd, asked.flags) {
            (ioctl::FORK, 0) => Kind::Fork { source: Ino(asked.source), read_only: false },
            (ioctl::FORK, abi::TREE_READ_ONLY) => Kind::Fork { source: Ino(asked.source), read_only: true },
            (ioctl::DELETE_TREE, 0) => Kind::Delete,
            (ioctl::ROLL_BACK, 0) => Kind::RollBack { source: Ino(asked.source) },
            (ioctl::COMMIT_TREE, flags) if flags & !abi::TREE_FORCE == 0 => {
                Kind::Commit { fork: Ino(asked.source), force: flags != 0 }
            }
            _ => return Err(Errno(libc::EINVAL)),
        };
        Ok(TreeCall { dir: Ino(header.nodeid), name, kind, is_made: false })
    }

    pub(crate) fn rmdir(dir: Ino, name: &[u8]) -> TreeCall {
        TreeCall { dir, name: name.to_vec(), kind: Kind::Rmdir, is_made: false }
    }

    pub(crate) fn rename(dir: Ino, name: &[u8], to: (Ino, &[u8]), mode: RenameMode) -> TreeCall {
        let kind = Kind::Rename { new_dir: to.0, new_name: to.1.to_vec(), mode };
        TreeCall { dir, name: name.to_vec(), kind, is_made: false }
    }

    /// Whether the call replaces the first tree.
    pub(crate) fn is_of_root(&self) -> bool {
        self.name.is_empty() && matches!(self.kind, Kind::RollBack { .. } | Kind::Commit { .. })
    }

    /// The same call, of which an earlier server has already made the change.
    pub(crate) fn made(self) -> TreeCall {
        TreeCall { is_made: true, ..self }
    }

    pub(crate) fn answer<O: Ops>(self, ops: &O, transport: &dyn Transport, reply: Reply) {
        let TreeCall { dir, name, kind, is_made } = self;
        let done = match kind {
            _ if is_made => Ok(()),
            Kind::RollBack { source } if name.is_empty() => {
                return finish(reply, replace_root(ops, transport, dir, || ops.roll_back_root(source)));
            }
            Kind::Commit { fork, force } if name.is_empty() => {
                return finish(reply, replace_root(ops, transport, dir, || ops.commit_root(fork, force)));
            }
            Kind::Fork { source, read_only } => ops.fork(source, dir, &name, read_only).map(drop),
            Kind::Delete => ops.delete_tree(dir, &name),
            Kind::RollBack { source } => ops.roll_back(source, dir, &name).map(drop),
            Kind::Commit { fork, force } => {
                // The commit removes the fork's present name. If the server dies in between, the
                // next server does not know this name any more. So the kernel drops the name before
                // the commit, too.
                let old = ops.trees().into_iter().find(|tree| tree.root == fork);
                if let Some(old) = &old
                    && let Err(e) = forget_name(transport, old.dir, &old.name)
                {
                    return reply.err(e.0);
                }
                let done = ops.commit_tree(fork, dir, &name, force).map_err(Errno::from);
                let forgotten = old.map_or(Ok(()), |old| forget_name(transport, old.dir, &old.name));
                return finish(reply, done.and(forgotten).and_then(|()| forget_name(transport, dir, &name)));
            }
            Kind::Rmdir => return reply.finish(ops.rmdir(dir, &name).map_err(Errno::from)),
            Kind::Rename { new_dir, new_name, mode } => {
                let renamed = ops.rename(dir, &name, new_dir, &new_name, mode);
                return reply.finish(renamed.map_err(Errno::from));
            }
        };
        finish(reply, done.map_err(Errno::from).and_then(|()| forget_name(transport, dir, &name)));
    }
}

/// Replaces the first tree. The kernel must then look up each name in the root again, including
/// names that did not exist before: the inodes have changed.
fn replace_root<O: Ops>(
    ops: &O,
    transport: &dyn Transport,
    dir: Ino,
    replace: impl FnOnce() -> kedgefs::Result<()>,
) -> Answer<()> {
    if dir != Ino::ROOT {
        return Err(Errno(libc::ENOENT));
    }
    let mut names = BTreeSet::new();
    let mut list = || {
        ops.readdir(dir, 0, &mut |entry| {
            names.insert(entry.name.to_vec());
            true
        })
    };
    list()?;
    replace()?;
    list()?;
    names.iter().try_for_each(|name| forget_name(transport, dir, name))
}

fn finish(reply: Reply, done: Answer<()>) {
    reply.finish(done.map(|()| abi::IoctlOut::new_zeroed()));
}

/// Makes the kernel look up the name and list the directory again.
fn forget_name(transport: &dyn Transport, dir: Ino, name: &[u8]) -> Answer<()> {
    let head =
        abi::InvalEntryOut { parent: dir.0, namelen: name.len() as u32, flags: abi::INVAL_EXPIRE_ONLY };
    let entry = [head.as_bytes(), name, b"\0"].concat();
    let contents = abi::InvalInodeOut { ino: dir.0, off: 0, len: 0 };
    let sent = [(abi::NOTIFY_INVAL_ENTRY, &entry[..]), (abi::NOTIFY_INVAL_INODE, contents.as_bytes())]
        .into_iter()
        .try_for_each(|(code, body)| match transport.notify(code, body) {
            // The kernel has cached neither the name nor the directory.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            sent => sent,
        });
    sent.map_err(|e| {
        tracing::warn!(dir = dir.0, "the kernel keeps a name that has changed: {e}");
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    })
}

/// The request in the name of an attribute of the root directory.
pub(crate) enum AskedOf {
    /// Lists the trees from this number on.
    From(u64),
    /// Shows the space that one tree uses.
    Space(u64),
}

/// Parses the name of an attribute; `None` if it is not one of these.
pub(crate) fn asked_of(name: &[u8]) -> Option<AskedOf> {
    let rest = std::str::from_utf8(name.strip_prefix(control::XATTR_PREFIX)?).ok()?;
    match rest.split_once('.')? {
        ("trees", from) => Some(AskedOf::From(from.parse().ok()?)),
        ("tree", number) => Some(AskedOf::Space(number.parse().ok()?)),
        _ => None,
    }
}

/// Joins the path of a directory and a name in it. With an empty name, returns the directory's
/// path.
fn path_in(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let between: &[u8] = if name.is_empty() || dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, between, name].concat()
}

impl AskedOf {
    pub(crate) fn json(&self, ops: &impl Ops) -> Answer<String> {
        let trees = ops.trees();
        match self {
            AskedOf::From(from) => {
                let mut rows = Vec::new();
                let mut bytes = 0;
                let mut dirs = BTreeMap::new();
                for tree in trees.iter().filter(|tree| u64::from(tree.root.tree()) >= *from) {
                    if bytes > LIST_BYTES {
                        break;
                    }
                    let dir = dirs.entry(tree.dir).or_insert_with(|| ops.path_of(tree.dir).ok());
                    let path = dir.as_ref().map(|dir| path_in(dir, &tree.name));
                    let path = path.filter(|path| path.len() <= PATH_MAX);
                    let row = json!({
                        "tree": tree.root.tree(),
                        "path": path.map(|path| String::from_utf8_lossy(&path).into_owned()),
                        "read_only": tree.read_only,
                        "created": tree.created,
                        "inodes": tree.inodes,
                    });
                    bytes += row.to_string().len();
                    rows.push(row);
                }
                Ok(json!(rows).to_string())
            }
            AskedOf::Space(number) => {
                let tree = trees.iter().find(|tree| u64::from(tree.root.tree()) == *number);
                let space = ops.tree_space(tree.ok_or(Errno(libc::ENODATA))?.root)?;
                Ok(json!({ "own_data": space.own_data, "own_nodes": space.own_nodes }).to_string())
            }
        }
    }
}
