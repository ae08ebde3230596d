//! Admits one engine for each device in a process. The lock of an image file excludes other
//! processes and other opens of the file, but not a second engine on the same [`Device`] in this
//! process. Two engines would destroy the image: each would write over the log of the other.
//!
//! Engines that only read may share a device.
//!
//! A process that was forked after its parent had opened a file system is refused. It has copies of
//! the locks and lists that all engines of a process share, such as those of the flusher threads,
//! but none of the threads: no data would become durable, and a copied lock may never be released.

use kedge_base::{Clock, Error, Result, process};
use kedge_device::Device;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The claimed devices: the address of each, and whether the claim is read-only. The lock has no
/// rank, since an engine may be dropped under any lock; no other lock is taken while this one is
/// held.
static CLAIMED: Mutex<Vec<(usize, bool)>> = Mutex::new(Vec::new());

const FORKED: &str = "this process was forked after its parent had opened a file system";

/// Number of attempts, with pauses: the threads of an engine that was dropped may hold its claim a
/// little longer.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A claim on a device. It references the device, so that no other device gets its address.
pub(crate) struct Claim {
    device: Arc<dyn Device>,
    read_only: bool,
    held: AtomicBool,
}

impl Claim {
    pub(crate) fn new(device: &Arc<dyn Device>, clock: &dyn Clock, read_only: bool) -> Result<Claim> {
        // Before any lock, which may be a copy of one that a thread of the parent held.
        if !process::enter() {
            return Err(Error::invalid(FORKED));
        }
        for _ in 0..TRIES {
            let mut claimed = CLAIMED.lock();
            if claimed.iter().all(|&(at, reads)| at != address(device) || (reads && read_only)) {
                claimed.push((address(device), read_only));
                return Ok(Claim { device: device.clone(), read_only, held: AtomicBool::new(true) });
            }
            drop(claimed);
            clock.sleep(PAUSE);
        }
        Err(Error::invalid(format!("{} is open in this process already", device.name())))
    }

    /// Releases the claim. A second call does nothing.
    pub(crate) fn release(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            let mut claimed = CLAIMED.lock();
            let mine = (address(&self.device), self.read_only);
            let at = claimed.iter().position(|one| *one == mine).expect("it was entered with the claim");
            claimed.swap_remove(at);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

fn address(device: &Arc<dyn Device>) -> usize {
    Arc::as_ptr(device).cast::<()>() as usize
}
