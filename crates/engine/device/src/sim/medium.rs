//! The medium and the volatile cache: a model of rules 2 to 4 of the device contract.
//!
//! Writes and discards wait in `pending` until a flush moves them to `durable`. At a power loss any
//! subset of the pending writes has reached the medium, in any order, each sector independently.
//! But no write overwrites a later write that a flush has covered: the later write removes its
//! sectors from the masks of all older writes.
//!
//! A FUA write is durable when it completes, and makes nothing else durable. A write or a discard
//! of the same sectors that completed before it, and that no flush has covered, may still reach the
//! medium after it: a device may queue discards separately from writes, and in a stack of devices a
//! FUA write may overtake other writes. So such a FUA write is durable and also waits in `pending`
//! for the flush that settles the order. A caller that relies on the FUA write's contents needs a
//! flush before it.

use crate::MemDevice;
use crate::mem::put;
use crate::pages::{Data, Page, Pages, blocks};
use kedge_base::BLOCK_SIZE;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

pub(super) const SECTOR: usize = 512;
const SECTORS: usize = BLOCK_SIZE / SECTOR;
/// The mask of all sectors of a block.
pub(super) const WHOLE: u8 = u8::MAX;
const _: () = assert!(SECTORS == u8::BITS as usize);

/// A write that is not durable, or a FUA write whose order to older writes is not settled.
#[derive(Clone)]
pub(super) struct Pending {
    pub seq: u64,
    block: u64,
    data: Data,
    /// For each block the sectors that may reach the medium.
    masks: Vec<u8>,
    /// Whether the flush that should have made the write durable has failed. No later flush makes
    /// it durable.
    lost: bool,
    /// Whether this is a FUA write: it is on the medium, above or below older writes.
    fua: bool,
}

/// Selects the pending writes, in the order of their completion, that have reached the medium at a
/// power loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    All,
    None,
    /// Bit `i` selects the i-th pending write.
    Mask(u64),
    AllBut(usize),
    Only(usize),
    /// A random subset of complete writes, in random order. The value is the seed.
    Subset(u64),
    /// A random subset in random order, torn at sectors. The value is the seed.
    Torn(u64),
}

pub(super) struct Medium {
    durable: MemDevice,
    pending: Vec<Pending>,
}

impl Medium {
    pub fn new(base: MemDevice) -> Medium {
        Medium { durable: base, pending: Vec::new() }
    }

    pub fn durable(&self) -> &MemDevice {
        &self.durable
    }

    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Records a completed write. `torn` is the sectors of each block that the write reached, if
    /// not all; such a write has failed, and FUA does not make it durable.
    pub fn write(&mut self, seq: u64, offset: u64, data: &Data, torn: Option<&[u8]>, fua: bool) {
        let masks = torn.map_or_else(|| vec![WHOLE; data.blocks() as usize], <[u8]>::to_vec);
        let fua = fua && torn.is_none();
        let write = Pending { seq, block: blocks(offset), data: data.clone(), masks, lost: false, fua };
        if fua {
            land(self.durable.pages_mut(), &write, |i| write.masks[i]);
            // An older pending FUA write was on the medium before this one, so this one replaces
            // its sectors.
            self.pending.retain_mut(|older| !older.fua || older.yield_to(&write));
        }
        if !fua || self.pending.iter().any(|older| older.overlaps(&write)) {
            self.pending.push(write);
        }
    }

    /// Applies a completed flush, which covers the writes with numbers below `covers`.
    pub fn flush(&mut self, covers: u64) {
        let (settled, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|write| write.seq < covers && !write.lost);
        self.pending = pending;
        let settled: Vec<Pending> = settled;
        for write in &settled {
            self.settle(write);
        }
        // Newer FUA writes stay above the blocks that the flush has made durable.
        for write in self.pending.iter().filter(|write| write.fua) {
            land(self.durable.pages_mut(), write, |i| write.masks[i]);
        }
    }

    /// Applies a failed flush: no later flush makes the writes with numbers below `covers` durable.
    pub fn lose(&mut self, covers: u64) {
        for write in self.pending.iter_mut().filter(|write| write.seq < covers) {
            write.lost = true;
        }
    }

    fn settle(&mut self, write: &Pending) {
        land(self.durable.pages_mut(), write, |i| write.masks[i]);
        self.pending.retain_mut(|older| older.seq > write.seq || older.yield_to(write));
    }

    /// Returns the medium after a power loss now, for one choice of pending writes.
    pub fn build(&self, choice: Choice) -> MemDevice {
        let mut image = self.durable.fork();
        let pages = image.pages_mut();
        match choice {
            Choice::None => {}
            Choice::Subset(seed) => self.land_random(pages, seed, false),
            Choice::Torn(seed) => self.land_random(pages, seed, true),
            Choice::All | Choice::Mask(_) | Choice::AllBut(_) | Choice::Only(_) => {
                let kept = self.pending.iter().enumerate().filter(|(i, _)| choice.keeps(*i));
                kept.for_each(|(_, write)| land(pages, write, |b| write.masks[b]));
            }
        }
        image
    }

    /// Does what [`Medium::build`] does with a random subset, and adds on top a torn write in
    /// flight: either its sectors up to a random one, or a random subset of its sectors.
    pub fn build_torn(&self, seq: u64, offset: u64, data: &Data, seed: u64) -> MemDevice {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut image = self.build(Choice::Subset(rng.random()));
        let sectors = data.blocks() as usize * SECTORS;
        let cut = if rng.random() { Some(rng.random_range(1..sectors)) } else { None };
        let mask = |block: usize| match cut {
            Some(cut) => match cut.saturating_sub(block * SECTORS) {
                n if n >= SECTORS => WHOLE,
                n => (1u8 << n) - 1,
            },
            None => rng.random(),
        };
        let masks = (0..data.blocks() as usize).map(mask).collect();
        let write =
            Pending { seq, block: blocks(offset), data: data.clone(), masks, lost: false, fua: false };
        land(image.pages_mut(), &write, |i| write.masks[i]);
        image
    }

    fn land_random(&self, pages: &mut Pages, seed: u64, tear: bool) {
        let mut rng = SmallRng::seed_from_u64(seed);
        // The probability varies, because crashes lose different amounts. With a fixed probability
        // nearly all writes would never be lost together.
        let keep = *[0.05, 0.3, 0.5, 0.7, 0.95].choose(&mut rng).expect("not empty");
        let torn = if tear { *[0.1, 0.5, 1.0].choose(&mut rng).expect("not empty") } else { 0.0 };
        let mut order: Vec<&Pending> = self.pending.iter().collect();
        order.shuffle(&mut rng);
        for write in order {
            if !rng.random_bool(keep) {
                continue;
            }
            if rng.random_bool(torn) {
                let reached: Vec<u8> = write.masks.iter().map(|mask| mask & rng.random::<u8>()).collect();
                land(pages, write, |i| reached[i]);
            } else {
                land(pages, write, |i| write.masks[i]);
            }
        }
    }
}

impl Choice {
    fn keeps(self, index: usize) -> bool {
        match self {
            Choice::All => true,
            Choice::Mask(mask) => index < 64 && mask >> index & 1 == 1,
            Choice::AllBut(i) => index != i,
            Choice::Only(i) => index == i,
            Choice::None | Choice::Subset(_) | Choice::Torn(_) => false,
        }
    }
}

impl Pending {
    fn overlaps(&self, newer: &Pending) -> bool {
        let start = self.block.max(newer.block);
        let end = (self.block + self.data.blocks()).min(newer.block + newer.data.blocks());
        (start..end).any(|block| {
            self.masks[(block - self.block) as usize] & newer.masks[(block - newer.block) as usize] != 0
        })
    }

    /// Removes the sectors that a newer durable write covers. Returns false if no sector is left.
    fn yield_to(&mut self, newer: &Pending) -> bool {
        let start = self.block.max(newer.block);
        let end = (self.block + self.data.blocks()).min(newer.block + newer.data.blocks());
        if start >= end {
            return true;
        }
        for block in start..end {
            self.masks[(block - self.block) as usize] &= !newer.masks[(block - newer.block) as usize];
        }
        self.masks.iter().any(|&mask| mask != 0)
    }
}

/// Writes the selected sectors of a write to an image.
fn land(pages: &mut Pages, write: &Pending, mask: impl Fn(usize) -> u8) {
    for i in 0..write.data.blocks() {
        let block = write.block + i;
        match mask(i as usize) {
            0 => {}
            WHOLE => put(pages, block, write.data.page(i)),
            mask => {
                let old = pages.get(block).unwrap_or(&Page::ZERO);
                let torn = mix(old, &write.data.page(i), mask);
                put(pages, block, torn);
            }
        }
    }
}

/// Returns `old` with the sectors in `mask` taken from `new`.
pub(super) fn mix(old: &Page, new: &Page, mask: u8) -> Page {
    let mut bytes = *old.bytes();
    for sector in (0..SECTORS).filter(|s| mask >> s & 1 == 1) {
        let at = sector * SECTOR..(sector + 1) * SECTOR;
        bytes[at.clone()].copy_from_slice(&new.bytes()[at]);
    }
    Page::new(&bytes)
}
