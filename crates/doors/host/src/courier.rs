//! The courier of a mount ([`kedge_fuse::courier`]): a process that a server starts from its own
//! program.

use crate::os::TerminationSignals;
use anyhow::{Context, Result};
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The hidden subcommand.
pub const COURIER: &str = "courier";

/// Whether this program has the subcommand [`COURIER`].
static OFFERED: AtomicBool = AtomicBool::new(false);

/// Declares that this program calls [`run`] when it is started with [`COURIER`].
pub fn offer() {
    OFFERED.store(true, SeqCst);
}

pub(crate) fn offered() -> Option<&'static str> {
    OFFERED.load(SeqCst).then_some(COURIER)
}

/// Serves the server that has started this process. Standard input is the server's socket, standard
/// output the connection to the kernel. With `kept`, standard error is a pidfd of the keeper.
pub fn run(kept: bool) -> Result<()> {
    // A termination signal makes the server unmount, for which the server needs the courier. So the
    // courier ignores the signal.
    let _blocked = TerminationSignals::block().context("block signals")?;
    kedge_fuse::become_io_flusher();
    let server = std::io::stdin().as_fd().try_clone_to_owned().context("the server's socket")?;
    let connection = std::io::stdout().as_fd().try_clone_to_owned().context("the connection")?;
    let keeper = kept.then(|| std::io::stderr().as_fd().try_clone_to_owned()).transpose();
    kedge_fuse::courier::run(server, connection, keeper.context("the keeper")?).context("start a thread")
}
