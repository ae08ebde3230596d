//! KedgeFS as a mount, with its own FUSE server. The server is thin, because the transport is the
//! main cost of a file system in user space.
//!
//! ```text
//! mount, helper, unmount      making and ending mounts; `helper` runs fusermount3
//! loopdev, mountinfo          the block device of a mount, and the mount table
//! limits                      limits of the kernel that a mount's server lifts
//! session, pool, handoff      the threads of one mount, and the choice of the receiving one
//! placement, companion        a receiver on its client's processor
//! devfuse                     requests from /dev/fuse      (under the trait in `transport`)
//! uring                       requests from rings of io_uring
//! courier                     a process for notifications for which the kernel may wait
//! server                      the state of one mount's server, and what INIT negotiates
//! handle, dispatch            from request to call to reply    (over the trait in `ops`)
//! args, errno                 parsed arguments, and errors
//! settle                      requests that need dirty pages written first
//! control, flags              control xattrs and ioctls; the ioctls of chattr(1)
//! trees                       forks, deletions and the list of trees
//! tree_limits                 limits of directory trees
//! status                      a socket that reports a mount's state when no worker is free
//! private, peer               the directory of sockets, and the process at the other end of one
//! one_tree                    one tree of a file system as a whole mount
//! notify                      notifies the kernel of changes that bypass it
//! keep, takeover              notes of a server for the one that replaces it when it dies
//! parking, freeze             changes that wait for a thaw, and the thread that serves them
//! failures                    counts requests that failed
//! caller, task                the thread that made a request, and its rights
//! abi                         the wire format
//! sys                         system calls without a safe wrapper: all `unsafe`, except for the
//!                             mapping in `keep::words` and the rings in `uring`
//! ```
#![deny(unsafe_code)]
// They panic if the line cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod abi;
mod args;
mod atomics;
mod caller;
mod companion;
mod control;
mod copy;
pub mod courier;
mod devfuse;
mod dispatch;
mod errno;
pub mod failures;
mod flags;
mod freeze;
mod handle;
mod handoff;
mod helper;
pub mod keep;
mod limits;
mod loopdev;
mod mount;
mod mount_error;
mod mountinfo;
mod notify;
mod one_tree;
mod opens;
mod ops;
mod options;
mod parking;
mod peer;
mod placement;
mod pool;
mod private;
mod server;
mod session;
pub mod settle;
mod spare;
mod status;
mod sys;
mod takeover;
mod task;
pub mod transport;
mod tree_limits;
mod trees;
mod unmount;
pub mod uring;

pub use caller::caller;
pub use limits::become_io_flusher;
pub use mount::{is_dir, make_for_keeper, mount, mount_again, mount_remote};
pub use mount_error::MountError;
pub use mountinfo::{MountEntry, asks_strangers, mount_at, mount_of, mounts, mounts_of, other_mounts};
pub use notify::{Changing, Notifier};
pub use one_tree::OneTree;
pub use ops::{Done, Ops};
pub use options::{FuseOptions, TransportKind};
pub use peer::Peer;
pub use placement::PlacementMode;
pub use private::{Bound, PrivateDir, connect_within};
pub use server::{DeviceState, Server};
pub use session::{MountedSession, serve};
pub use status::{VISIT, Visits, ask as ask_status, visit};
pub use sys::{
    FileMapping, commit_tree, delete_tree, file_mapping, fork, freeze, roll_back, set_limit, thaw, trim,
    write_back,
};
pub use task::Capability;
pub use unmount::{MountPoint, unmount};
