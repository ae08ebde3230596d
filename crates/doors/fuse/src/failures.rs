//! Counts requests that failed, by operation and errno, and logs them at level debug.
//!
//! A lookup of a name that does not exist is no failure, because the kernel gets a negative entry.
//! ENOSYS is no failure either, because the kernel then does without that request.

use crate::abi::op_name;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Operations and errnos are few, so the map is bounded. Only failures take its lock.
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

    /// The counts as a JSON object: by operation, then by errno.
    pub(crate) fn to_json(&self) -> String {
        let failed = self.0.lock().clone();
        let mut json = String::from("{");
        let mut last = None;
        for ((opcode, errno), count) in failed {
            let opens = last != Some(opcode);
            json.push_str(match (opens, last) {
                (true, None) => "",
                (true, Some(_)) => "},",
                (false, _) => ",",
            });
            if opens {
                write!(json, "\"{}\":{{", op_name(opcode)).expect("strings take any text");
            }
            write!(json, "\"{}\":{count}", errno_name(errno)).expect("strings take any text");
            last = Some(opcode);
        }
        json.push_str(if last.is_some() { "}}" } else { "}" });
        json
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
