//! Copying into a mounted image beside the kernel: the process that serves the mount puts the files
//! into its file system through the library, and tells the kernel of each.
//!
//! | part | does |
//! |---|---|
//! | `server` | in the serving process: takes archives at a socket |
//! | `client` | in `kedge cp` and `kedge tar -x`: finds the socket, sends an archive |
//!
//! # Protocol
//! The control xattr `system.kedgefs.beside` of a directory names an abstract Unix socket. The
//! client sends one line, `kedge-beside 1 INODE`, where INODE is the directory, and a tar archive.
//! The answer is one line of JSON: an error, or that everything is there, durable (unless the mount
//! is a `volatile` one), and known to the kernel.
//!
//! # Who may
//! Root, and the user who serves the mount: both can write to the image anyway. The kernel says who
//! is at the other end of a socket; the client asks, too, before it sends anything. The user gets
//! no more than a mount gives him: the files are his own, and there are no devices and no
//! attributes that only root sets.
//!
//! The socket's name is a random number that the mount tells to nobody else, and lies in the
//! network namespace of the serving process.

pub mod client;
pub mod server;

use serde::{Deserialize, Serialize};

/// First word and version of a request.
const HELLO: &str = "kedge-beside 1";
/// Longest first line.
const LINE_MAX: u64 = 64;
/// Bytes that are read and written with one call.
const CHUNK: usize = 256 << 10;

#[derive(Serialize, Deserialize, Debug)]
struct Answer {
    error: Option<String>,
}
