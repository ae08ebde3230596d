//! Copies into a mounted image without passing through the kernel: the process that serves the
//! mount makes the files in its file system through the library and notifies the kernel of each.
//!
//! | part | does |
//! |---|---|
//! | `server` | in the serving process: receives archives |
//! | `guest` | in the serving process: identifies the client, its directory, and what its archive may contain |
//! | `client` | in `kedge cp` and `kedge tar -x`: finds the serving process and sends an archive |
//!
//! # Protocol
//! The socket is the mount's status socket (`kedge_fuse::visit`), in a directory that only the user
//! who serves the mount can enter. The client sends one line, `kedge-beside 2`, with the descriptor
//! of the target directory, and waits for a line of JSON: an error, or that the server is ready.
//! Then the client sends a tar archive. The reply is one line of JSON: an error, or that all files
//! are made, durable (unless the mount is `volatile`), and the kernel notified.
//!
//! A client may copy only files that it could make through the kernel in the directory that it
//! sends. Page 0017 of `docs/rfcs` has the threats.
//! 1. The peer has the capabilities that root of this user namespace has, or is the ordinary user
//!    who serves the mount, in the same namespaces. The kernel's record of the peer's process (a
//!    pidfd) proves it.
//! 2. The directory is on this file system, reached through a mount in the peer's namespace that is
//!    neither read-only nor idmapped. Its inode is read from the descriptor; no number or path is
//!    accepted from the peer. Through a `nosuid` mount no set-id files are made, through a `nodev`
//!    mount no devices.
//! 3. An ordinary user gets no more rights than a mount gives: the user owns all files, in
//!    directories that the user owns; devices and attributes that only root sets are refused.
//!
//! If any of this cannot be determined, the client is refused. The client does not trust the server
//! either: the mount must be a KedgeFS mount made by root or the same user, and the process at the
//! socket must be the one that serves the mount.
//!
//! # Bounds
//! Connecting and the client's first line take at most `PATIENCE`, the first reply of the
//! identified process at most `ANSWER_PATIENCE`. After that both ends are identified, and the
//! archive takes as long as its source and the device need.

pub mod client;
mod guest;
pub mod server;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The first line, with the version of the protocol.
const HELLO: &[u8] = b"kedge-beside 2\n";
/// The time limit for a connection and for the client's first line.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time limit for the first reply of a process that the client has identified.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes read or written with one call.
const CHUNK: usize = 256 << 10;

#[derive(Serialize, Deserialize, Debug)]
struct Answer {
    error: Option<String>,
}
