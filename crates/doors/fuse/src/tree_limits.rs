//! Limits of directory trees on a mount.
//!
//! An ioctl on a directory sets its limit. Only the owner of the mount and root may do that
//! ([`control::check_owner`]), so users below the directory cannot lift the limit. The ioctl stops
//! changes and waits for checkpoints, so a thread of [`crate::settle`] serves it.
//!
//! The attribute `system.kedgefs.limit` of a file or directory shows the limit that applies to it,
//! which is its own or that of the nearest directory above. Any user may read it, like statfs(2).
//! The attribute `system.kedgefs.limits.N` of the root directory lists all limits after the first
//! N, as many as fit, for the callers that may set limits.

use crate::abi::{self, InHeader};
use crate::args::Args;
use crate::control;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::transport::Reply;
use kedgefs::{Ino, Limit, SetLimit};
use serde_json::{Value, json};
use zerocopy::FromZeros;

/// The attribute that shows the limit that applies to a file or directory.
pub(crate) const XATTR_LIMIT: &[u8] = b"system.kedgefs.limit";
/// The list ends after this many bytes. The next attribute continues the list.
const LIST_BYTES: usize = 32 << 10;
/// Limit for the bytes of a path in a list.
const PATH_MAX: usize = 4096;

/// A request to set the limit of a directory.
pub(crate) struct LimitCall {
    dir: Ino,
    change: SetLimit,
}

impl LimitCall {
    pub(crate) fn parse(header: &InHeader, args: &mut Args<'_>) -> Answer<LimitCall> {
        control::check_owner(header)?;
        let asked: abi::LimitIn = args.take()?;
        if asked.flags & !(abi::LIMIT_BYTES | abi::LIMIT_FILES) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // 0 removes the maximum.
        let max = |flag, n: u64| (asked.flags & flag != 0).then_some(Some(n).filter(|n| *n > 0));
        let change =
            SetLimit { bytes: max(abi::LIMIT_BYTES, asked.bytes), files: max(abi::LIMIT_FILES, asked.files) };
        Ok(LimitCall { dir: Ino(header.nodeid), change })
    }

    pub(crate) fn answer<O: Ops>(self, ops: &O, reply: Reply) {
        let set = ops.set_limit(self.dir, self.change);
        if let Err(e) = &set {
            // The caller gets only the errno.
            tracing::info!(dir = self.dir.0, "limit not set: {e}");
        }
        reply.finish(set.map(|_| abi::IoctlOut::new_zeroed()).map_err(Errno::from));
    }
}

/// A limit as JSON, with directories as inode numbers.
pub(crate) fn json_of(limit: &Limit) -> Value {
    json!({
        "dir": limit.dir.0,
        "inside": limit.inside.map(|dir| dir.0),
        "bytes": limit.bytes,
        "bytes_max": limit.bytes_max,
        "files": limit.files,
        "files_max": limit.files_max,
    })
}

/// The value of [`XATTR_LIMIT`]: `null` without a limit.
pub(crate) fn nearest(ops: &impl Ops, ino: Ino) -> Answer<String> {
    Ok(ops.limit_of(ino)?.map_or(Value::Null, |limit| json_of(&limit)).to_string())
}

/// The number N in the name of an attribute `limits.N`.
pub(crate) fn list_from(name: &[u8]) -> Option<usize> {
    let rest = std::str::from_utf8(name.strip_prefix(control::XATTR_PREFIX)?).ok()?;
    rest.strip_prefix("limits.")?.parse().ok()
}

/// The list of the limits after the first `from`.
pub(crate) fn list(ops: &impl Ops, from: usize) -> String {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for limit in ops.limits().iter().skip(from) {
        if bytes > LIST_BYTES {
            break;
        }
        let path = ops.path_of(limit.dir).ok().filter(|path| path.len() <= PATH_MAX);
        let mut row = json_of(limit);
        row["path"] = path.map(|path| String::from_utf8_lossy(&path).into_owned()).into();
        bytes += row.to_string().len();
        rows.push(row);
    }
    json!(rows).to_string()
}
