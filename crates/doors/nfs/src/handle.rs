//! File handles.
//!
//! ```text
//! magic 4 | uuid of the image 16 | inode number 8 | generation 8
//! ```
//!
//! A handle refers to no state of this process, so it stays valid when the server restarts. Inode
//! numbers are not reused, except in two cases, which the *generation* covers:
//! - A number was assigned and lost in a crash before it was durable. A reply that creates a file
//!   is sent only after the file is durable, but a LOOKUP of another client may have seen the file
//!   earlier. So the generation includes the inode's creation time, which never changes.
//! - A fork or a snapshot was deleted, and a later mount assigned its number to another tree. Both
//!   may be forks of one tree, with the same inode numbers and creation times. So the generation
//!   also includes the second in which the tree was made.
//!
//! A handle is no secret: it can be guessed, like the user in a credential.

use crate::status::{Outcome, Status};
use crate::xdr::{Decoded, Reader};
use kedgefs::{Attr, Ino, TreeInfo};

const MAGIC: [u8; 4] = *b"KFS1";
/// The length of a handle in bytes.
pub(crate) const LEN: usize = 36;
/// The longest handle that the protocol allows.
const PROTOCOL_MAX: usize = 64;

/// Reads a handle from a call. The handle may be from any server, so its contents are not checked.
pub(crate) fn read<'a>(args: &mut Reader<'a>) -> Decoded<&'a [u8]> {
    args.opaque(PROTOCOL_MAX)
}

pub(crate) fn encode(uuid: &[u8; 16], attr: &Attr, tree: Option<&TreeInfo>) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..20].copy_from_slice(uuid);
    bytes[20..28].copy_from_slice(&attr.ino.0.to_be_bytes());
    bytes[28..].copy_from_slice(&generation(attr, tree).to_be_bytes());
    bytes
}

/// Returns inode number and generation from a handle. Fails if the handle is not of the image
/// `uuid`.
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

/// An odd multiplier, so that different seconds have different products modulo 2^64.
const TREE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generation of an inode (see the head of this module). `tree` is the fork or snapshot that
/// contains the inode.
pub(crate) fn generation(attr: &Attr, tree: Option<&TreeInfo>) -> u64 {
    let of_inode = (attr.btime.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(attr.btime.nsec.into());
    of_inode.wrapping_add(tree.map_or(0, |tree| TREE_STEP.wrapping_mul(tree.created as u64)))
}
