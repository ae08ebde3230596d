//! Bulk work on a mounted image without passing through the kernel. The process that serves the
//! mount makes files and trees through the library and notifies the kernel of each change. It also
//! compares and sends trees.
//!
//! | part | does |
//! |---|---|
//! | `server` | in the serving process: manages connections, and unpacks archives |
//! | `guest` | in the serving process: identifies client and directories, and checks rights |
//! | `requests` | in the serving process: compares, sends and receives trees |
//! | `client` | in `kedge cp` and `kedge tar -x`: finds the serving process and sends an archive |
//! | `trees` | in `kedge diff`, `send` and `receive`: asks for the work on trees |
//! | `frames` | splits a stream of unknown length into frames, with an end mark |
//!
//! # Protocol
//! The socket is the mount's status socket (`kedge_fuse::visit`), in a directory that only the user
//! who serves the mount can enter. The client sends one line, `kedge-beside 2`, with the descriptor
//! of the target directory, and waits for a line of JSON: an error, or that the server is ready.
//! Then the client sends a tar archive. The reply is one line of JSON: an error, or that all files
//! are made, durable (unless the mount is `volatile`), and the kernel notified.
//!
//! To work on trees, the client sends the line `kedge-trees 1 read` with the roots of one or two
//! trees, or `kedge-trees 1 write` with the directory that will contain a new tree. After the reply
//! the client sends a request, one line of JSON. The server sends a stream in frames, and its reply
//! after the last frame. The client ends a stream by shutting down its sending half of the
//! connection.
//!
//! A client may copy only files that it could make through the kernel in the directory that it
//! sends. Page 0017 of `docs/rfcs` lists the threats.
//! 1. The peer has the capabilities that root of this user namespace has, or is the ordinary user
//!    who serves the mount, in the same namespaces. The kernel's record of the peer's process (a
//!    pidfd) proves it.
//! 2. The directory is on this file system, reached through a mount in the peer's namespace that is
//!    neither read-only nor idmapped. Its inode is read from the descriptor; no number or path is
//!    accepted from the peer. Through a `nosuid` mount no set-id files are made, through a `nodev`
//!    mount no devices.
//! 3. An ordinary user gets no more rights than a mount gives: the user owns all files, in
//!    directories that the user owns. Devices and attributes that only root may set are refused.
//! 4. A snapshot is received with its owners and set-id bits, or not at all. Root needs a mount
//!    that is neither `nosuid` nor `nodev`. An ordinary user's mount is always both, so nothing in
//!    the snapshot grants rights, and the user could write the same bytes to the image without the
//!    mount. For comparing and sending, the mount may be read-only.
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
mod frames;
mod guest;
mod requests;
pub mod server;
pub mod trees;

use crate::receive::Rest;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Limit for the bytes of the first line.
const HELLO_MAX: usize = 32;
/// Limit for the descriptors sent with the first line.
const DIRS_MAX: usize = 2;

/// The client's first line: the purpose of the connection, with the version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hello {
    /// An archive with files to copy follows.
    Copy,
    /// A request that changes nothing follows.
    Read,
    /// A request that makes or deletes a tree follows.
    Write,
}

impl Hello {
    fn line(self) -> &'static [u8] {
        match self {
            Hello::Copy => b"kedge-beside 2\n",
            Hello::Read => b"kedge-trees 1 read\n",
            Hello::Write => b"kedge-trees 1 write\n",
        }
    }

    fn parse(line: &[u8]) -> Option<Hello> {
        [Hello::Copy, Hello::Read, Hello::Write].into_iter().find(|hello| hello.line() == line)
    }

    fn dirs_max(self) -> usize {
        if self == Hello::Read { DIRS_MAX } else { 1 }
    }

    /// The reason for which a client is refused that is neither root nor the user serving the
    /// mount.
    fn refusal(self) -> &'static str {
        match self {
            Hello::Copy => {
                "only root with its capabilities, in the namespaces of the serving process, and the user who \
                 serves the mount copy this way; use cp(1) or tar(1)"
            }
            Hello::Read | Hello::Write => {
                "only root with its capabilities, in the namespaces of the serving process, and the user who \
                 serves the mount may compare, send and receive trees"
            }
        }
    }
}
/// The time limit for a connection and for the client's first line.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time limit for the first reply of a process that the client has identified.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Limit for the bytes read or written with one call.
const CHUNK: usize = 256 << 10;

#[derive(Serialize, Deserialize, Debug, Default)]
struct Answer {
    error: Option<String>,
    /// The token with which an interrupted transfer can be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// With a token, the base of the interrupted transfer: see [`crate::receive::Rest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<String>,
}

impl Answer {
    fn failed(error: String) -> Answer {
        Answer { error: Some(error), ..Answer::default() }
    }

    /// Takes what is needed to go on with an interrupted transfer.
    fn take_rest(&mut self) -> Option<Rest> {
        self.token.take().map(|token| Rest { token, base: self.base.take() })
    }
}

/// A request about trees.
#[derive(Serialize, Deserialize, Debug)]
enum Request {
    /// Returns the differences between the two trees.
    Diff,
    /// Sends the first tree as a stream, as the difference from the second one if there are two.
    Send { resume: Option<String> },
    /// Makes a snapshot with this name from the stream that follows.
    Receive { name: Vec<u8>, resume: bool },
    /// Returns the token of an interrupted transfer, and its base.
    Status { name: Vec<u8> },
    /// Deletes the unfinished trees of an interrupted transfer.
    Forget { name: Vec<u8> },
}

/// Limit for the bytes of a request.
const REQUEST_MAX: u64 = 8 << 10;
