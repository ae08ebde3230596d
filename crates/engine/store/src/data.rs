//! Blocks for data: promised before bytes are accepted, allocated when they are written.

use crate::checkpoint::cause::CheckpointCause;
use crate::handle::{NODE_WAIT, NODE_WAITS};
use crate::store::Store;
use kedge_alloc::{DataReservation, Waited};
use kedge_base::{BlockNo, Error, Extent, Ino, Lsn, Result};
use kedge_log::ForceCause;

impl Store {
    /// Promises blocks. On a full image it first forces the log if freed blocks wait for that, and
    /// then makes a checkpoint if that would free enough. A full image on which neither helps fails
    /// at once. Must not be called with a handle, or with a lock that the holder of a handle may
    /// need, because it waits for the handles of others.
    pub fn reserve_data(&self, blocks: u64) -> Result<DataReservation> {
        if kedge_base::broken::refusal::should_fail() {
            return Err(Error::NoSpace);
        }
        let mut waits = 0;
        while waits < NODE_WAITS {
            match self.reserve_now(blocks) {
                // Some free blocks are being discarded. They become available when the discard
                // ends.
                Err(Error::NoSpace) if self.alloc.wait_for_claims() => waits += 1,
                // Node reservations of running operations hold blocks, most of which they will
                // return.
                Err(Error::NoSpace) if self.alloc.available_soon() >= blocks => {
                    self.stats.node_stalls.inc();
                    match self.alloc.wait_for_nodes(NODE_WAIT) {
                        Waited::Returned => {}
                        Waited::TimedOut => waits += 1,
                        Waited::NothingHeld => break,
                    }
                }
                answer => return answer,
            }
        }
        self.reserve_now(blocks)
    }

    /// Promises as many blocks as are available, fewer than `blocks`. For a caller to which
    /// [`Store::reserve_data`] has refused the whole number. `None` if no block is available.
    pub fn reserve_some_data(&self, blocks: u64) -> Option<DataReservation> {
        let mut some = self.alloc.available_data().min(blocks);
        while some > 0 {
            match self.alloc.reserve_data(some) {
                Ok(promise) => return Some(promise),
                // Another thread has reserved blocks since the number was read.
                Err(_) => some /= 2,
            }
        }
        None
    }

    fn reserve_now(&self, blocks: u64) -> Result<DataReservation> {
        self.alloc.durable(self.log.durable_lsn());
        let refused = match self.alloc.reserve_data(blocks) {
            Err(Error::NoSpace) => Error::NoSpace,
            other => return other,
        };
        if self.alloc.free_counts().pending_data > 0 {
            self.force(Lsn(u64::MAX), ForceCause::Space)?;
            self.alloc.durable(self.log.durable_lsn());
        }
        match self.alloc.reserve_data(blocks) {
            Err(Error::NoSpace) if self.alloc.available_after_checkpoint() >= blocks => {
                self.checkpoint(CheckpointCause::NodeSpace)?;
                self.alloc.reserve_data(blocks)
            }
            Err(Error::NoSpace) => Err(refused),
            other => other,
        }
    }

    /// Allocates a run of at most `want` blocks near `goal` for IO. The blocks have no owner until
    /// a record names them.
    pub fn alloc_data(&self, goal: BlockNo, want: u64, from: Option<&mut DataReservation>) -> Result<Extent> {
        self.alloc.alloc_data(goal, want, from)
    }

    /// Frees blocks that no record has named.
    pub fn release_data(&self, extent: Extent) {
        self.alloc.release_data(extent);
    }

    pub fn data_goal(&self, ino: Ino, dir: Ino) -> BlockNo {
        self.alloc.goal_for(ino, dir)
    }
}
