//! One device, one engine in a process. The lock of an image file keeps other processes out, and
//! whoever opens the file anew. It knows nothing of a second engine on the same [`Device`]. Two
//! engines would ruin the image: each would write where the other has its log.
//!
//! Engines that only read may share one.

use kedge_base::{Clock, Error, Result};
use kedge_device::Device;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is in use: an address of a device, and whether it is only read from. Without a rank: an
/// engine may be dropped under whatever lock, and nothing is locked below this one.
static CLAIMED: Mutex<Vec<(usize, bool)>> = Mutex::new(Vec::new());

/// The threads of an engine that was dropped may hold it a little longer.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// Holds the device, so that its address stays its own.
pub(crate) struct Claim {
    device: Arc<dyn Device>,
    read_only: bool,
    held: AtomicBool,
}

impl Claim {
    pub(crate) fn new(device: &Arc<dyn Device>, clock: &dyn Clock, read_only: bool) -> Result<Claim> {
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

    /// Called again it does nothing.
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
