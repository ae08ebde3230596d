//! Readers that say what they read in a line of their own, in place of writing the latch's.
//!
//! A reader-writer lock costs each reader two stores into a line that all its readers share, so that readers
//! of one leaf queue for it although they do not exclude each other. A latch that was read for a while
//! without a write is *biased*: its readers only put its name into their own slot of a table. A writer, who
//! has the latch already, takes the bias away and waits until no slot names the latch; after that all goes
//! through the latch until it is calm again. So a leaf that is written all the time costs its writers
//! nothing, and one that is read all the time costs its readers no shared line.
//!
//! Why they exclude each other: the reader stores its slot and then looks at the bias, the writer stores the
//! bias and then looks at the slots, each with a fence between. At least one sees the other: the reader goes
//! to the latch, or the writer waits.

use super::sync::{AtomicU32, AtomicU64, Ordering::*, fence, relax};

/// Reads through the latch in a row that make it biased: as many as there are slots to look at for who takes
/// the bias away.
const CALM: u32 = 16;

#[repr(align(128))]
struct Slot(AtomicU64);

/// What the threads read just now, by name; 0: nothing.
pub(crate) struct Readers(Box<[Slot]>);

impl Readers {
    pub fn new(slots: usize) -> Readers {
        Readers((0..slots).map(|_| Slot(AtomicU64::new(0))).collect())
    }
}

/// A latch's part.
#[derive(Debug)]
pub(crate) struct Bias {
    on: AtomicU32,
    calm: AtomicU32,
}

/// Keeps writers away from what it names until it is dropped.
pub(crate) struct Visible<'a>(&'a AtomicU64);

impl Drop for Visible<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

impl Default for Bias {
    fn default() -> Self {
        Bias { on: AtomicU32::new(0), calm: AtomicU32::new(0) }
    }
}

impl Bias {
    fn name(&self) -> u64 {
        self as *const Bias as usize as u64
    }

    /// None: through the latch. One thing at a time per slot, so also for who reads something already.
    #[inline]
    pub fn enter<'a>(&self, readers: &'a Readers, slot: usize) -> Option<Visible<'a>> {
        if self.on.load(Relaxed) == 0 {
            return None;
        }
        let slot = &readers.0[slot % readers.0.len()].0;
        slot.compare_exchange(0, self.name(), AcqRel, Relaxed).ok()?;
        let visible = Visible(slot);
        fence(SeqCst);
        // Acquires what was written before the latch became biased.
        (self.on.load(Acquire) != 0).then_some(visible)
    }

    /// By a reader that has the latch.
    #[inline]
    pub fn note_read(&self) {
        if self.on.load(Relaxed) == 0 && self.calm.fetch_add(1, Relaxed) + 1 >= CALM {
            self.on.store(1, Release);
        }
    }

    /// By a writer that has the latch, before it touches what the latch guards.
    #[inline]
    pub fn revoke(&self, readers: &Readers) {
        if self.calm.load(Relaxed) > 0 {
            self.calm.store(0, Relaxed);
        }
        if self.on.load(Relaxed) != 0 {
            self.wait_for_readers(readers);
        }
    }

    #[cold]
    fn wait_for_readers(&self, readers: &Readers) {
        self.on.store(0, Relaxed);
        fence(SeqCst);
        for slot in &readers.0 {
            let mut looks = 0;
            while slot.0.load(Acquire) == self.name() {
                relax(&mut looks);
            }
        }
    }
}
