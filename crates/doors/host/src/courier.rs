//! The courier of a mount ([`kedge_fuse::courier`]): this program, started again by a server.

use crate::os::TerminationSignals;
use anyhow::{Context, Result};
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The hidden subcommand.
pub const COURIER: &str = "courier";

/// Whether this program has the subcommand.
static OFFERED: AtomicBool = AtomicBool::new(false);

/// Says that this program calls [`run`] when it is started with [`COURIER`].
pub fn offer() {
    OFFERED.store(true, SeqCst);
}

pub(crate) fn offered() -> Option<&'static str> {
    OFFERED.load(SeqCst).then_some(COURIER)
}

/// Serves the server that has started this process. Its socket is the standard input, the
/// connection to the kernel the standard output, and a pidfd of the keeper, if there is one, the
/// standard error.
pub fn run(kept: bool) -> Result<()> {
    // The server unmounts at such a signal, and needs its courier for that.
    let _blocked = TerminationSignals::block().context("block signals")?;
    kedge_fuse::become_io_flusher();
    let server = std::io::stdin().as_fd().try_clone_to_owned().context("the server's socket")?;
    let connection = std::io::stdout().as_fd().try_clone_to_owned().context("the connection")?;
    let keeper = kept.then(|| std::io::stderr().as_fd().try_clone_to_owned()).transpose();
    kedge_fuse::courier::run(server, connection, keeper.context("the keeper")?).context("start a thread")
}
