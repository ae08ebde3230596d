//! Lifts limits of the kernel that slow a mount's server down.

use crate::{abi, mountinfo};
use std::fs;
use std::path::{Path, PathBuf};

/// Lifts the kernel's strict limit on the dirty pages of an untrusted server. The limit is one per
/// cent of the pages that other file systems may dirty, which makes a stream of writes three times
/// slower. It is no error if lifting it is not permitted or not supported. [`become_io_flusher`]
/// makes lifting it safe.
///
/// Also raises the read-ahead to the size of the largest READ; the default of 128 KiB would split
/// it into eight requests. The kernel uses the smaller value of this and the server's reply to
/// INIT, so it must be set before the server runs.
pub(crate) fn raise_limits(dir: &Path) {
    let Some(entry) = mountinfo::mount_at(dir) else { return };
    let suffix = if entry.kind.starts_with("fuseblk") { "-fuseblk" } else { "" };
    let bdi = PathBuf::from(format!("/sys/class/bdi/{}{suffix}", entry.device));
    let ahead = (abi::MAX_IO >> 10).to_string();
    for (file, value) in [("strict_limit", "0"), ("max_ratio", "100"), ("read_ahead_kb", &ahead)] {
        if let Err(e) = fs::write(bdi.join(file), value) {
            tracing::debug!("{}: {e}", bdi.join(file).display());
        }
    }
}

/// Marks this thread, and threads that it starts from now on, as writing dirty pages
/// (PR_SET_IO_FLUSHER): their memory allocations must not wait for pages that they have to write
/// themselves. The workers of a mount call this; a program that serves a mount calls it before it
/// opens the file system. It needs CAP_SYS_RESOURCE. Without that capability the kernel's strict
/// limit on dirty pages, which only root can lift, prevents the deadlock.
pub fn become_io_flusher() {
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!("not an IO flusher: {e}");
    }
}
