//! Serves a KedgeFS image over NFS version 3 (RFC 1813), for machines and containers that have an
//! NFS client but no KedgeFS.
//!
//! | part | does |
//! |---|---|
//! | [`Server`] | accepts connections, reads requests, sends replies |
//! | `record`, `connection`, `limits` | messages on a stream, and bounds on what a peer uses |
//! | `xdr`, `rpc` | encoding, and the heads of calls and replies |
//! | [`Procedures`] | the table of procedures |
//! | `files`, `names`, `listing`, `figures` | the procedures |
//! | `mounting`, `portmap` | the protocols by which a client finds the root |
//! | `access` | permissions, with the user of the credential |
//! | `export`, `handle`, `wire`, `status` | the image, and how inodes and errors are encoded |
//!
//! # What a reply promises
//! - The reply to SETATTR, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK is sent
//!   after the change is durable. The reply to a WRITE with FILE_SYNC or DATA_SYNC is sent after
//!   its bytes are durable, the reply to COMMIT after all bytes of the file are.
//! - A WRITE with UNSTABLE may be lost in a crash. The client keeps the bytes until a COMMIT
//!   returns the verifier that the WRITE returned. The verifier differs after each start of the
//!   server, and after each failure to make something durable.
//!
//! # Locks
//! A change holds the locks of the inodes whose attributes it reports, and no lock while it waits
//! for the log (`export`). A thread takes these locks before any lock of the library.
#![forbid(unsafe_code)]
// They panic if the line cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![warn(unreachable_pub)]

mod access;
mod connection;
mod export;
mod figures;
mod files;
mod handle;
mod limits;
mod listing;
mod mounting;
mod names;
mod portmap;
mod program;
mod record;
mod rpc;
mod server;
mod status;
mod wire;
mod xdr;

pub use access::Squash;
pub use export::{Changed, OnChange, Rights};
pub use limits::Limits;
pub use program::Procedures;
pub use server::Server;
