//! The control interface of a mount: its state as xattrs of the root directory, and the ioctls for
//! shutdown and trim.
//!
//! Every user can read `system.kedgefs.stats`, `.info` and `.pid`. These attributes take no space
//! in the image and are not listed. Setting `system.kedgefs.options` changes options, and setting
//! `system.kedgefs.size` makes the image larger or smaller.

use crate::abi::{self, InHeader};
use crate::caller;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::task::{Capability, Task};
use kedge_base::BLOCK_SIZE;
use serde_json::{Map, Value};
use std::os::unix::fs::FileExt;
use zerocopy::FromZeros;

/// Prefix of all control xattrs.
pub const XATTR_PREFIX: &[u8] = b"system.kedgefs.";

/// Setting this attribute to a comma-separated list changes options of the mount.
pub const XATTR_OPTIONS: &[u8] = b"system.kedgefs.options";

/// Setting this attribute to a number of bytes makes the image larger or smaller. An empty value
/// means the size of its device.
pub const XATTR_SIZE: &[u8] = b"system.kedgefs.size";

/// The pid of the serving process. Every file has this attribute, so that it can also be read on a
/// bind mount of a subdirectory.
pub const XATTR_PID: &[u8] = b"system.kedgefs.pid";

/// Permits a caller with CAP_SYS_ADMIN, which the kernel demands for such calls, and the ordinary
/// user who serves the mount. A caller whose rights cannot be determined is refused.
pub(crate) fn check_owner(header: &InHeader) -> Answer<()> {
    if caller::is_capable(header, Capability::SysAdmin) || caller::serves_the_mount(header) {
        Ok(())
    } else {
        Err(Errno(libc::EPERM))
    }
}

pub fn set_options(ops: &impl Ops, header: &InHeader, list: &[u8]) -> Answer<()> {
    check_owner(header)?;
    let list = std::str::from_utf8(list).map_err(|_| Errno(libc::EINVAL))?;
    ops.set_options(list).inspect_err(|e| tracing::warn!("remount with {list}: {e}"))?;
    Ok(())
}

/// Makes the image larger or smaller.
pub fn resize(ops: &impl Ops, header: &InHeader, value: &[u8]) -> Answer<()> {
    check_owner(header)?;
    let bytes = match std::str::from_utf8(value).map(str::parse) {
        Ok(_) if value.is_empty() => None,
        Ok(Ok(bytes)) => Some(bytes),
        _ => return Err(Errno(libc::EINVAL)),
    };
    ops.resize(bytes).inspect_err(|e| tracing::warn!("resize to {bytes:?} bytes: {e}"))?;
    Ok(())
}

/// Flags of [`abi::ioctl::SHUTDOWN`].
const SHUTDOWN_DEFAULT: u32 = 0;
const SHUTDOWN_LOGFLUSH: u32 = 1;
const SHUTDOWN_NOLOGFLUSH: u32 = 2;

/// Shuts the file system down in the mode that the flag at the caller's address `arg` selects.
///
/// The ioctl's number declares the flag as output, so the kernel does not send it, and it is read
/// from the caller's memory. If that is not permitted, the shutdown does not flush the log, which
/// is the strictest mode.
pub fn shutdown(ops: &impl Ops, header: &InHeader, arg: u64) -> Answer<()> {
    check_owner(header)?;
    let flag = read_u32(header.pid, arg).unwrap_or_else(|e| {
        tracing::info!(pid = header.pid, "shutdown flag not readable, taken as no log flush: {e}");
        SHUTDOWN_NOLOGFLUSH
    });
    match flag {
        SHUTDOWN_DEFAULT => {
            ops.sync()?;
            ops.shutdown(true)?;
        }
        SHUTDOWN_LOGFLUSH => ops.shutdown(true)?,
        SHUTDOWN_NOLOGFLUSH => ops.shutdown(false)?,
        _ => return Err(Errno(libc::EINVAL)),
    }
    Ok(())
}

/// Discards free space. Returns the range with the number of bytes discarded.
pub fn trim(ops: &impl Ops, header: &InHeader, asked: abi::TrimRange) -> Answer<abi::IoctlTrimOut> {
    check_owner(header)?;
    if asked.len < BLOCK_SIZE as u64 {
        return Err(Errno(libc::EINVAL));
    }
    let len = ops.trim(asked.start, asked.len, asked.min_len)?;
    let range = abi::TrimRange { len, ..asked };
    Ok(abi::IoctlTrimOut { out: abi::IoctlOut::new_zeroed(), range })
}

fn read_u32(tid: u32, address: u64) -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    Task::open(tid)?.file("mem")?.read_exact_at(&mut bytes, address)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Adds members to the JSON object `object`. If `object` is not valid, its own members are left out
/// and a warning is logged.
pub fn with_members(object: &str, more: impl IntoIterator<Item = (&'static str, Value)>) -> String {
    let mut members: Map<String, Value> = serde_json::from_str(object).unwrap_or_else(|e| {
        tracing::warn!("state of the file system is not a JSON object: {e}");
        Map::new()
    });
    members.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
    Value::Object(members).to_string()
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
