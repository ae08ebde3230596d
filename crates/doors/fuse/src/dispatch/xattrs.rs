//! Extended attributes, including those of the root directory that control the mount.

use crate::args::{Args, NAME_END};
use crate::dispatch::attributes::{PERMISSIONS, S_ISGID};
use crate::errno::{Answer, EINVAL, Errno};
use crate::ops::Ops;
use crate::server::Server;
use crate::task::Capability;
use crate::transport::{Reply, Request};
use crate::{abi, caller, control, tree_limits, trees};
use kedgefs::{Ino, SetAttr, XattrMode, acl};
use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use zerocopy::{FromZeros, IntoBytes};

/// The largest size of a value or a list of names.
const XATTR_SIZE_MAX: usize = 65536;

impl<O: Ops> Server<O> {
    pub(super) fn getxattr(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let node = Ino(request.header.nodeid);
        let value = args.take().and_then(|asked: abi::GetxattrIn| {
            let name = args.text()?;
            if node == Ino::ROOT
                && let Some(asked_of) = trees::asked_of(name)
            {
                control::check_owner(&request.header)?;
                return Ok((asked.size, asked_of.json(&*self.ops)?.into_bytes()));
            }
            if name == tree_limits::XATTR_LIMIT {
                return Ok((asked.size, tree_limits::nearest(&*self.ops, node)?.into_bytes()));
            }
            if let Some(from) = tree_limits::list_from(name).filter(|_| node == Ino::ROOT) {
                control::check_owner(&request.header)?;
                return Ok((asked.size, tree_limits::list(&*self.ops, from).into_bytes()));
            }
            let control = node == Ino::ROOT && name.starts_with(control::XATTR_PREFIX);
            if control || name == control::XATTR_PID {
                return Ok((asked.size, self.control_xattr(name).ok_or(Errno(libc::ENODATA))?));
            }
            self.check_xattr_name(name)?;
            Ok((asked.size, self.ops.getxattr(node, name)?))
        });
        finish_xattr(reply, value);
    }

    /// Stops with an error as soon as the list is too long, because a caller could repeat the
    /// request.
    pub(super) fn listxattr(&self, request: &Request<'_>, args: &mut Args<'_>, reply: Reply) {
        let list = args.take().and_then(|asked: abi::GetxattrIn| {
            let mut list = Vec::new();
            // Only a caller with CAP_SYS_ADMIN sees `trusted.` names, as on file systems of the
            // kernel.
            let trusted = OnceCell::new();
            let is_shown = |name: &[u8]| {
                !name.starts_with(b"trusted.")
                    || *trusted.get_or_init(|| caller::is_capable(&request.header, Capability::SysAdmin))
            };
            self.ops.list_xattrs(Ino(request.header.nodeid), &mut |name| {
                if is_shown(name) {
                    list.extend_from_slice(name);
                    list.push(NAME_END);
                }
                list.len() <= XATTR_SIZE_MAX
            })?;
            Ok((asked.size, list))
        });
        finish_xattr(reply, list);
    }

    pub(super) fn setxattr(&self, request: &Request<'_>, args: &mut Args<'_>) -> Answer<()> {
        let node = Ino(request.header.nodeid);
        let asked: abi::SetxattrIn = args.take()?;
        let acls = self.acls.load(Ordering::Relaxed);
        // The kernel builds a request before it waits for the reply to INIT. So the first SETXATTR
        // of a mount may lack the negotiated extension.
        let is_extended = acls && !args.is_name_and_value(asked.size);
        let ext = if is_extended { args.take()? } else { abi::SetxattrInExt::new_zeroed() };
        let name = args.text()?;
        let value = args.bytes(asked.size)?;
        if node == Ino::ROOT && name == control::XATTR_OPTIONS {
            let set = || control::set_options(&*self.ops, &request.header, value);
            return match &self.kept {
                None => set(),
                Some(kept) => kept.options.lock().change(&kept.area, value, set),
            };
        }
        if node == Ino::ROOT && name == control::XATTR_SIZE {
            return control::resize(&*self.ops, &request.header, value);
        }
        self.check_xattr_name(name)?;
        let mode = match asked.flags as i32 {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(EINVAL),
        };
        // Clear the bit first, so that no crash leaves it with the new list. The kernel sets the
        // flag for a default list too, which does not affect the directory itself.
        if name == acl::ACCESS && ext.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 {
            let mode = self.ops.getattr(node)?.mode & PERMISSIONS;
            if mode & S_ISGID != 0 {
                let set = SetAttr { mode: Some(mode & !S_ISGID), ..SetAttr::default() };
                self.ops.setattr(node, &set)?;
            }
        }
        Ok(self.ops.setxattr(node, name, value, mode)?)
    }

    /// Whether a SETXATTR of the root directory sets options or the size of the mount, rather than
    /// an attribute of the directory.
    pub(crate) fn sets_options(&self, mut args: Args<'_>) -> bool {
        let acls = self.acls.load(Ordering::Relaxed);
        let asked = args.take::<abi::SetxattrIn>().map(drop);
        let ext = if acls { args.take::<abi::SetxattrInExt>().map(drop) } else { Ok(()) };
        asked
            .and(ext)
            .and_then(|()| args.text())
            .is_ok_and(|name| [control::XATTR_OPTIONS, control::XATTR_SIZE].contains(&name))
    }

    pub(super) fn removexattr(&self, node: Ino, args: &mut Args<'_>) -> Answer<()> {
        let name = args.text()?;
        self.check_xattr_name(name)?;
        match self.ops.removexattr(node, name) {
            // Removing a missing list succeeds: the mode alone applies already.
            Err(kedgefs::Error::NoXattr) if acl::is_acl_name(name) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Refuses `system.posix_acl_*`, which the kernel passes on if ACLs were not negotiated.
    fn check_xattr_name(&self, name: &[u8]) -> Answer<()> {
        if name.is_empty() {
            return Err(EINVAL);
        }
        let list = acl::is_acl_name(name) && self.acls.load(Ordering::Relaxed);
        if name.starts_with(b"system.") && !list { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(()) }
    }
}

/// Replies with a value, or with its size if the caller's buffer is empty.
fn finish_xattr(reply: Reply, value: Answer<(u32, Vec<u8>)>) {
    match value {
        Ok((_, value)) if value.len() > XATTR_SIZE_MAX => reply.err(libc::E2BIG),
        Ok((0, value)) => reply.ok(&[abi::GetxattrOut { size: value.len() as u32, padding: 0 }.as_bytes()]),
        Ok((room, value)) if value.len() > room as usize => reply.err(libc::ERANGE),
        Ok((_, value)) => reply.ok(&[&value]),
        Err(e) => reply.err(e.0),
    }
}
