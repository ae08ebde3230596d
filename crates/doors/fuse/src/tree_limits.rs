//! Limits of directory trees on a mount.
//!
//! An ioctl on the directory sets its limit. It is for the owner of the mount and for root
//! ([`control::check_owner`]), so the users inside cannot lift it. It stops changes and waits for
//! checkpoints, so a thread of [`crate::settle`] carries it out.
//!
//! The attribute `system.kedgefs.limit` of a file or directory shows the nearest limit at or above
//! it, to any user, like statfs(2). The attribute `system.kedgefs.limits.N` of the root directory
//! lists all limits after the first N, as many as fit, to the callers that may set them.

use crate::abi::{self, InHeader};
use crate::args::Args;
use crate::control;
use crate::errno::{Answer, Errno};
use crate::ops::Ops;
use crate::transport::Reply;
use kedgefs::{Ino, Limit, SetLimit};
use serde_json::{Value, json};
use zerocopy::FromZeros;

/// The attribute that shows the nearest limit.
pub(crate) const XATTR_LIMIT: &[u8] = b"system.kedgefs.limit";
/// The list ends after this many bytes; the next attribute continues it.
const LIST_BYTES: usize = 32 << 10;
/// The longest path that a list shows.
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
        // 0 stands for no maximum.
        let max = |flag, n: u64| (asked.flags & flag != 0).then_some(Some(n).filter(|n| *n > 0));
        let change =
            SetLimit { bytes: max(abi::LIMIT_BYTES, asked.bytes), files: max(abi::LIMIT_FILES, asked.files) };
        Ok(LimitCall { dir: Ino(header.nodeid), change })
    }

    pub(crate) fn answer<O: Ops>(self, ops: &O, reply: Reply) {
        let set = ops.set_limit(self.dir, self.change);
        if let Err(e) = &set {
            // The caller gets the number alone.
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

/// The number in the name of an attribute that lists limits.
pub(crate) fn list_from(name: &[u8]) -> Option<usize> {
    let rest = std::str::from_utf8(name.strip_prefix(control::XATTR_PREFIX)?).ok()?;
    rest.strip_prefix("limits.")?.parse().ok()
}

/// The limits after the first `from`.
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
