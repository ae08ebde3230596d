//! Reader-biased latches (BRAVO): a reader announces itself in a table instead of writing to the
//! latch.
//!
//! A reader-writer lock costs each reader two stores to a cache line that all its readers share. So
//! readers of one leaf contend for that line although they do not exclude each other. A latch that
//! was read repeatedly without a write becomes *biased*: its readers only store the latch's name in
//! the slot of their stripe in a table. A writer takes the latch, revokes the bias, and waits until
//! no slot has the latch's name. After that all readers go through the latch until it is biased
//! again. So a leaf that is often written costs its writers nothing more, and a leaf that is often
//! read costs its readers no shared cache line.
//!
//! Readers and writers exclude each other: the reader stores its slot and then loads the bias,
//! while the writer stores the bias and then loads the slots. Each has a fence in between, so at
//! least one sees the other's store. Then the reader goes through the latch, or the writer waits.

use super::sync::{AtomicU32, AtomicU64, Ordering::*, fence, relax};

/// Number of consecutive reads through the latch after which the latch becomes biased. It equals
/// the number of slots that revoking has to check.
const CALM: u32 = 16;

#[repr(align(128))]
struct Slot(AtomicU64);

/// For each stripe the name of the latch that a thread is reading now, or 0.
pub(crate) struct Readers(Box<[Slot]>);

impl Readers {
    pub(crate) fn new(slots: usize) -> Readers {
        Readers((0..slots).map(|_| Slot(AtomicU64::new(0))).collect())
    }
}

/// The bias of one latch.
#[derive(Debug)]
pub(crate) struct Bias {
    on: AtomicU32,
    calm: AtomicU32,
}

/// A slot with a latch's name. Writers of the latch wait until it is dropped.
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
        std::ptr::from_ref::<Bias>(self) as usize as u64
    }

    /// Starts a read without the latch. Returns `None` if the reader must go through the latch,
    /// because the latch is not biased or the slot is in use.
    #[inline]
    pub(crate) fn enter<'a>(&self, readers: &'a Readers, slot: usize) -> Option<Visible<'a>> {
        if self.on.load(Relaxed) == 0 {
            return None;
        }
        let slot = &readers.0[slot % readers.0.len()].0;
        slot.compare_exchange(0, self.name(), AcqRel, Relaxed).ok()?;
        let visible = Visible(slot);
        fence(SeqCst);
        // The load acquires the stores made before the latch became biased.
        (self.on.load(Acquire) != 0).then_some(visible)
    }

    /// Counts a read through the latch. The caller holds the latch.
    #[inline]
    pub(crate) fn note_read(&self) {
        if self.on.load(Relaxed) == 0 && self.calm.fetch_add(1, Relaxed) + 1 >= CALM {
            self.on.store(1, Release);
        }
    }

    /// Revokes the bias. Called by a writer that holds the latch, before it accesses the guarded
    /// value.
    #[inline]
    pub(crate) fn revoke(&self, readers: &Readers) {
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
