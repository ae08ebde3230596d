//! Flags of an inode in the reference model that forbid operations.

use super::Model;
use super::effect::{Answer, No};
use super::inode::Id;
use crate::ops::{Op, errno};
use kedgefs::FileFlags;

impl Model {
    /// Runs an operation. If flags forbid it, the result is EPERM or another error that also
    /// applies.
    pub(super) fn run_permitted(&mut self, op: &Op) -> Answer {
        if !self.is_forbidden(op).unwrap_or(false) {
            return self.run(op);
        }
        match self.clone().run(op) {
            Ok(_) => Err(errno::EPERM.into()),
            Err(No::Errno(mut errors)) => {
                errors.push(errno::EPERM);
                Err(No::Errno(errors))
            }
            Err(No::Unspecified) => Err(No::Unspecified),
        }
    }

    /// Whether flags of an inode forbid the operation. Fails if the operation names an inode that
    /// does not exist.
    fn is_forbidden(&self, op: &Op) -> Result<bool, No> {
        const FIXED: FileFlags = FileFlags::IMMUTABLE;
        let either = FIXED | FileFlags::APPEND;
        let has = |id: Id, flags| self.get(id).flags.has(flags);
        Ok(match op {
            Op::Create { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Mknod { path, .. }
            | Op::Symlink { path, .. } => has(self.parent(path)?.0, FIXED),
            Op::Tmpfile { dir, .. } => has(self.resolve(dir)?, FIXED),
            Op::Link { from, path } => has(self.parent(path)?.0, FIXED) || has(self.target(from)?, either),
            Op::Unlink { path } | Op::Rmdir { path } => {
                let (dir, name) = self.parent(path)?;
                if self.is_tree_root(self.lookup(dir, name)?) {
                    return Ok(false);
                }
                has(dir, either) || has(self.lookup(dir, name)?, either)
            }
            Op::Rename { from, to, .. } => {
                let (old_dir, old_name) = self.parent(from)?;
                let (new_dir, new_name) = self.parent(to)?;
                let moved = self.lookup(old_dir, old_name)?;
                match self.lookup(new_dir, new_name) {
                    Ok(there) if there == moved => false,
                    Ok(there) => [old_dir, new_dir, moved, there].into_iter().any(|id| has(id, either)),
                    Err(_) => has(old_dir, either) || has(new_dir, FIXED) || has(moved, either),
                }
            }
            Op::Write { on, offset, .. } | Op::WriteText { on, offset, .. } => {
                let id = self.target(on)?;
                has(id, FIXED) || has(id, FileFlags::APPEND) && *offset < self.get(id).content.size()
            }
            Op::Append { on, .. } => has(self.target(on)?, FIXED),
            Op::Fallocate { on, how, .. } => {
                has(self.target(on)?, if how.zeroes() || how.shifts() { either } else { FIXED })
            }
            Op::Truncate { on, .. }
            | Op::Clone { on, .. }
            | Op::CloneFile { on, .. }
            | Op::Chmod { on, .. }
            | Op::Chown { on, .. }
            | Op::Utimes { on, .. }
            | Op::SetXattr { on, .. }
            | Op::RemoveXattr { on, .. }
            | Op::SetAcl { on, .. } => has(self.target(on)?, either),
            _ => false,
        })
    }
}
