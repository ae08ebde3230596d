//! Copying into a mounted image beside the kernel: the process that serves the mount puts the files
//! into its file system through the library, and tells the kernel of each.
//!
//! | part | does |
//! |---|---|
//! | `server` | in the serving process: takes archives |
//! | `guest` | there: who sends one, where to, and what may be in it |
//! | `client` | in `kedge cp` and `kedge tar -x`: finds the process, sends an archive |
//!
//! # Protocol
//! The socket is that of the mount's status (`kedge_fuse::visit`), in a directory that only the
//! user who serves the mount can enter. The client sends one line, `kedge-beside 2`, and with it
//! the open directory, and waits for a line of JSON: an error, or that the archive is awaited. It
//! sends a tar archive. The answer is one line of JSON: an error, or that everything is there,
//! durable (unless the mount is a `volatile` one), and known to the kernel.
//!
//! # Who may
//! Whoever could make the same files through the kernel, through the directory that is sent: the
//! page 0017 of `docs/rfcs` has the threats.
//! 1. The peer has the capabilities that root of this user namespace has, or is the ordinary user
//!    who serves the mount, in the same namespaces. The kernel says so, by a descriptor of the
//!    process.
//! 2. The directory is one of this mount, seen through a mount of the peer's own that is neither
//!    read-only nor idmapped. Its inode comes from the descriptor, and no number or path from the
//!    peer. A `nosuid` mount takes no set-id files, a `nodev` mount no devices.
//! 3. The user gets no more than a mount gives him: the files are his own, in directories that are
//!    his; there are no devices and no attributes that only root sets.
//!
//! What cannot be found out is refused. The client believes nobody either: the mount must be one of
//! KedgeFS by root or the same user, and the process that it talks to must be the mount's own.
//!
//! # Bounds
//! Connecting and the client's first line take at most [`PATIENCE`], the first answer of the
//! process that the client has identified [`ANSWER_PATIENCE`]. From then on both ends are known,
//! and the archive takes as long as its source and the device need.

pub mod client;
mod guest;
pub mod server;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The first line, with the version of the protocol.
const HELLO: &[u8] = b"kedge-beside 2\n";
/// For a connection, and the client's first line.
const PATIENCE: Duration = Duration::from_secs(2);
/// For the first answer of a process that the client has identified.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are read and written with one call.
const CHUNK: usize = 256 << 10;

#[derive(Serialize, Deserialize, Debug)]
struct Answer {
    error: Option<String>,
}
