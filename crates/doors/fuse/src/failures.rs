//! Counts requests that failed, by operation and errno, and logs them at level debug.
//!
//! A lookup of a missing name is no failure, because the kernel gets a negative entry. ENOSYS is no
//! failure either, because the kernel then works without that request.

use crate::abi::op_name;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The numbers of operations and errnos bound the map. Only failures take its lock.
#[derive(Debug, Default)]
pub struct Failures(Mutex<BTreeMap<(u32, i32), u64>>);

impl Failures {
    pub(crate) fn note(&self, opcode: u32, node: u64, errno: i32) {
        if errno == libc::ENOSYS {
            return;
        }
        *self.0.lock().entry((opcode, errno)).or_default() += 1;
        tracing::debug!(op = op_name(opcode), node, errno = errno_name(errno), "request failed");
    }

    /// The counts by operation, then by errno.
    pub(crate) fn to_json(&self) -> Value {
        let mut failed = json!({});
        for ((opcode, errno), count) in &*self.0.lock() {
            failed[op_name(*opcode)][errno_name(*errno)] = json!(count);
        }
        failed
    }
}

/// The names in `errno.h` of the errors that the server returns.
fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::E2BIG => "E2BIG",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENOTTY => "ENOTTY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::ERANGE => "ERANGE",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ENODATA => "ENODATA",
        libc::EPROTO => "EPROTO",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EUCLEAN => "EUCLEAN",
        other => return format!("errno_{other}"),
    };
    name.to_owned()
}

#[cfg(test)]
#[path = "failures_tests.rs"]
mod tests;
