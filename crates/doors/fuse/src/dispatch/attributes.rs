//! Attributes of inodes and of the file system, and the set-id bits that a change by another user
//! clears.

use crate::abi::{InHeader, fattr};
use crate::args::Args;
use crate::errno::{Answer, EINVAL};
use crate::ops::Ops;
use crate::server::Server;
use crate::task::Capability;
use crate::transport::Request;
use crate::{abi, caller};
use kedge_base::BLOCK_SIZE;
use kedgefs::{Attr, FileKind, Ino, SetAttr, SetTime, Timespec};
use zerocopy::FromZeros;

const S_ISUID: u32 = 0o4000;
pub(super) const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
pub(super) const PERMISSIONS: u32 = 0o7777;

impl<O: Ops> Server<O> {
    pub(super) fn getattr(&self, node: Ino) -> Answer<abi::AttrOut> {
        Ok(self.attr_out(&self.ops.getattr(node)?))
    }

    pub(super) fn statx(&self, node: Ino) -> Answer<abi::StatxOut> {
        const STATX_BASIC_STATS: u32 = 0x7ff;
        const STATX_BTIME: u32 = 0x800;
        // The attribute bits of statx(2) have the values of FS_IOC_SETFLAGS.
        const ATTRIBUTES: u64 = 0x70;
        let attr = self.ops.getattr(node)?;
        let time = |t: Timespec| abi::StatxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
        let (attr_valid, attr_valid_nsec) = self.timeout();
        let stat = abi::Statx {
            mask: STATX_BASIC_STATS | STATX_BTIME,
            attributes: u64::from(attr.flags.bits()) & ATTRIBUTES,
            attributes_mask: ATTRIBUTES,
            blksize: BLOCK_SIZE as u32,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime),
            btime: time(attr.btime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: (attr.rdev >> 8) as u32 & 0xfff,
            rdev_minor: (attr.rdev & 0xff) as u32 | ((attr.rdev >> 12) & 0xfff00) as u32,
            ..abi::Statx::new_zeroed()
        };
        Ok(abi::StatxOut { attr_valid, attr_valid_nsec, stat, ..abi::StatxOut::new_zeroed() })
    }

    pub(super) fn setattr(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<abi::AttrOut> {
        let node = Ino(request.header.nodeid);
        let asked: abi::SetattrIn = args.take()?;
        let has = |flag| asked.valid & flag != 0;
        let mut set = SetAttr {
            mode: has(fattr::MODE).then_some(asked.mode & PERMISSIONS),
            uid: has(fattr::UID).then_some(asked.uid),
            gid: has(fattr::GID).then_some(asked.gid),
            size: has(fattr::SIZE).then_some(asked.size),
            ..SetAttr::default()
        };
        if has(fattr::ATIME) {
            set.atime = Some(set_time(has(fattr::ATIME_NOW), asked.atime, asked.atimensec)?);
        }
        if has(fattr::MTIME) {
            set.mtime = Some(set_time(has(fattr::MTIME_NOW), asked.mtime, asked.mtimensec)?);
        }
        if has(fattr::CTIME) {
            set.ctime = Some(timespec(asked.ctime, asked.ctimensec)?);
        }
        if has(fattr::KILL_SUIDGID) && set.mode.is_none() {
            let attr = self.ops.getattr(node)?;
            match set.size {
                Some(_) => self.drop_privilege(&attr, &request.header, false, || true)?,
                None => set.mode = mode_without_privilege(&attr, &request.header, set.gid),
            }
        }
        Ok(self.attr_out(&self.ops.setattr(node, &set)?))
    }

    /// Clears the set-user-id bits before a change of the file's content, so that no crash leaves
    /// changed content with the old privilege. `applies` is called only if there are such bits. In
    /// an append-only file the bits can be cleared only `before_append`. Such a file refuses any
    /// other change, and then the bits must stay.
    pub(crate) fn drop_privilege(
        &self,
        attr: &Attr,
        header: &InHeader,
        before_append: bool,
        applies: impl FnOnce() -> bool,
    ) -> Answer<()> {
        let (node, mode) = (attr.ino, mode_without_privilege(attr, header, None));
        if mode.is_some() && applies() {
            self.ops.setattr(node, &SetAttr { mode, before_append, ..SetAttr::default() })?;
            // Because execve(2) uses the mode that the kernel has cached.
            self.forget_attributes(node.0);
        }
        Ok(())
    }

    pub(super) fn statfs(&self, node: Ino) -> Answer<abi::StatfsOut> {
        self.atomics.forget_ended();
        let st = self.ops.statfs_at(node)?;
        Ok(abi::StatfsOut {
            blocks: st.blocks,
            bfree: st.blocks_free,
            bavail: st.blocks_available,
            files: st.inodes,
            ffree: st.inodes_free,
            bsize: st.block_size,
            namelen: st.name_max,
            frsize: st.block_size,
            ..abi::StatfsOut::new_zeroed()
        })
    }
}

fn timespec(sec: u64, nsec: u32) -> Answer<Timespec> {
    // Times before 1970 are negative numbers in an unsigned field.
    if nsec < 1_000_000_000 { Ok(Timespec { sec: sec as i64, nsec }) } else { Err(EINVAL) }
}

fn set_time(now: bool, sec: u64, nsec: u32) -> Answer<SetTime> {
    if now { Ok(SetTime::Now) } else { Ok(SetTime::At(timespec(sec, nsec)?)) }
}

/// The permission bits without those of set-user-id and set-group-id that a change clears; `None`
/// if it clears none. The set-group-id bit stays without group execution, because it grants no
/// rights then, and if the caller is a member of the group or has CAP_FSETID. If the set-user-id
/// bit is cleared, the membership is checked against a new group, as on Linux. /proc is read only
/// for files with such bits, which are rare.
fn mode_without_privilege(attr: &Attr, header: &InHeader, new_gid: Option<u32>) -> Option<u32> {
    let mut mode = attr.mode & PERMISSIONS;
    if attr.kind == FileKind::Directory {
        return None;
    }
    let new_gid = new_gid.filter(|_| mode & S_ISUID != 0);
    let keeps = || {
        let is_member = |gid| caller::is_member(header, gid);
        is_member(attr.gid) && new_gid.is_none_or(is_member) || caller::is_capable(header, Capability::Fsetid)
    };
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !keeps()) {
        mode &= !S_ISGID;
    }
    mode &= !S_ISUID;
    (mode != attr.mode & PERMISSIONS).then_some(mode)
}
