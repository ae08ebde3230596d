//! File handles.
//!
//! ```text
//! magic 4 | uuid of the image 16 | inode number 8 | generation 8
//! ```
//!
//! A handle holds nothing of this process, so it stays valid when the server starts again. Inode
//! numbers are not reused, but for one case: a number that was given out and lost in a crash before
//! it was durable. No reply that makes a file is sent before the file is durable, but a LOOKUP of
//! another client may have seen the file a moment earlier. The *generation* covers this case. It is
//! the inode's time of creation, which nothing changes.
//!
//! A handle is no secret: it can be guessed, like the user in a credential.

use crate::status::{Outcome, Status};
use crate::xdr::{Decoded, Reader};
use kedgefs::{Attr, Ino};

const MAGIC: [u8; 4] = *b"KFS1";
/// The length of a handle in bytes.
pub(crate) const LEN: usize = 36;
/// The longest handle that the protocol allows.
const PROTOCOL_MAX: usize = 64;

/// Reads a handle of any server.
pub(crate) fn read<'a>(args: &mut Reader<'a>) -> Decoded<&'a [u8]> {
    args.opaque(PROTOCOL_MAX)
}

pub(crate) fn encode(uuid: &[u8; 16], attr: &Attr) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..20].copy_from_slice(uuid);
    bytes[20..28].copy_from_slice(&attr.ino.0.to_be_bytes());
    bytes[28..].copy_from_slice(&generation(attr).to_be_bytes());
    bytes
}

/// The number and the generation of an inode of the image `uuid`.
pub(crate) fn decode(uuid: &[u8; 16], handle: &[u8]) -> Outcome<(Ino, u64)> {
    let mut r = Reader::new(handle);
    let parts = (|| Ok((r.fixed::<4>()?, r.fixed::<16>()?, r.u64()?, r.u64()?)))();
    match parts {
        Ok((MAGIC, of, ino, generation)) if handle.len() == LEN => match of == *uuid && ino != 0 {
            true => Ok((Ino(ino), generation)),
            false => Err(Status::Stale),
        },
        Ok(_) | Err(crate::xdr::Malformed) => Err(Status::BadHandle),
    }
}

pub(crate) fn generation(attr: &Attr) -> u64 {
    (attr.btime.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(attr.btime.nsec.into())
}
