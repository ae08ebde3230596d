//! The library that programs around the engine share: it opens images, mounts and serves them, and
//! reads the state of a live mount.
//!
//! | part | does |
//! |---|---|
//! | [`engine`] | opens, makes, mounts and checks images |
//! | [`create`] | makes an image in a new file |
//! | [`embed`] | makes and opens images in the process of a program in another language |
//! | [`image`] | finds an image by its name, reads its superblock without a lock |
//! | [`key`] | finds the key of an encrypted image |
//! | [`tag`] | finds the block device of a label or a uuid |
//! | [`options`] | parses the words of `mount -o` |
//! | [`mounts`] | finds the mount that a path names, reads its attributes |
//! | [`status`] | reads state and counters of an image and of a live mount |
//! | [`waits`] | reports requests that a mount's device has not completed |
//! | [`serve`] | serves one mount until it ends |
//! | [`keeper`] | starts the server of a mount, and starts another when that one dies |
//! | [`handover`] | replaces the server of a mount with a keeper by another program |
//! | [`offer`] | states what a program can serve |
//! | `kept_server` | the process of a server, from the keeper's point of view |
//! | [`init`] | waits for orphans where the command is the first process of a container |
//! | [`courier`] | runs the process that sends notifications for which the kernel may wait |
//! | [`daemon`] | serves several mounts in one process |
//! | [`background`] | starts the process that serves, and waits until the mount is live |
//! | [`notify`] | reports readiness to the service manager |
//! | [`logging`], [`syslog`] | send messages to standard error and to the system's log |
//! | `stderr` | writes lines to standard error without a panic |
//! | [`users`] | finds the processes that keep a mount in use |
//! | [`memory`] | sizes the cache of a mount, and shrinks it while memory is short |
//! | [`clock`] | provides the clock of a new image |
//! | [`os`] | wraps system calls: signals, heaps and descriptors |
//! | [`text`], [`usage`] | format values and errors for users |
#![deny(unsafe_code)]
// A line that cannot be written must not end a process that serves: see `stderr::note`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod background;
pub mod clock;
pub mod courier;
pub mod create;
pub mod daemon;
pub mod embed;
pub mod engine;
pub mod handover;
pub mod image;
pub mod init;
pub mod keeper;
mod kept_server;
pub mod key;
pub mod logging;
pub mod memory;
pub mod mounts;
pub mod notify;
pub mod offer;
pub mod options;
pub mod os;
pub mod serve;
pub mod status;
mod stderr;
pub mod syslog;
pub mod tag;
pub mod text;
pub mod usage;
pub mod users;
pub mod waits;

pub use usage::Usage;
