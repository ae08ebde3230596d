//! Which blocks have an owner: one bit for each block. The bits of an allocation group are
//! allocated on first use, so that a large, empty image costs little memory.

use kedge_base::{BLOCK_SIZE, BlockNo};
use kedge_format::alloc::GROUP_BLOCKS;

const WORDS: usize = BLOCK_SIZE / 8;
/// One group, in the layout of the bitmap on the device.
pub(crate) type GroupBits = [u64; WORDS];

#[derive(Clone)]
pub(crate) struct Owned {
    groups: Vec<Option<Box<GroupBits>>>,
    used: u64,
}

impl Owned {
    pub fn new(groups: u64) -> Owned {
        Owned { groups: vec![None; groups as usize], used: 0 }
    }

    /// Blocks with an owner.
    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn group(&self, group: u64) -> Option<&GroupBits> {
        self.groups.get(group as usize)?.as_deref()
    }

    /// Whether no block of the run has an owner.
    pub fn is_free(&self, start: BlockNo, blocks: u64) -> bool {
        let mut free = true;
        self.visit(start, blocks, |_, bits| free &= bits == 0);
        free
    }

    /// Returns the owned runs within the given run, which must lie inside the groups.
    pub fn taken(&self, start: BlockNo, blocks: u64) -> Vec<(BlockNo, u64)> {
        let mut runs = Vec::new();
        self.visit(start, blocks, |base, bits| push_runs(&mut runs, base, bits));
        runs
    }

    /// Calls `see` for each word of the run with the word's first block and the owned bits inside
    /// the run.
    fn visit(&self, start: BlockNo, blocks: u64, mut see: impl FnMut(u64, u64)) {
        let end = start.0 + blocks;
        let mut at = start.0;
        while at < end {
            let (group, bit) = (at / GROUP_BLOCKS, at % GROUP_BLOCKS);
            let (word, shift) = ((bit / 64) as usize, bit % 64);
            let count = (64 - shift).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << shift;
            see(at - shift, self.group(group).map_or(0, |bits| bits[word] & mask));
            at += count;
        }
    }

    /// All owned blocks, as runs.
    pub fn runs(&self) -> Vec<(BlockNo, u64)> {
        self.not_in(&Owned::new(self.groups.len() as u64))
    }

    /// The blocks that both have. Both must describe the same image.
    pub fn shared_with(&self, other: &Owned) -> Vec<(BlockNo, u64)> {
        self.runs_with(other, |mine, other| mine & other)
    }

    /// The blocks that only `self` has, as runs.
    pub fn not_in(&self, other: &Owned) -> Vec<(BlockNo, u64)> {
        self.runs_with(other, |mine, other| mine & !other)
    }

    fn runs_with(&self, other: &Owned, wanted: impl Fn(u64, u64) -> u64) -> Vec<(BlockNo, u64)> {
        let mut runs = Vec::new();
        for (group, bits) in (0..).zip(&self.groups) {
            let Some(bits) = bits else { continue };
            let others = other.group(group);
            for (i, mine) in bits.iter().enumerate() {
                let bits = wanted(*mine, others.map_or(0, |bits| bits[i]));
                push_runs(&mut runs, group * GROUP_BLOCKS + i as u64 * 64, bits);
            }
        }
        runs
    }

    /// Adds the owned blocks of `other`, which must describe the same image.
    pub fn add(&mut self, other: &Owned) {
        for (group, bits) in (0..).zip(&other.groups) {
            if let Some(bits) = bits {
                self.add_group(group, bits);
            }
        }
    }

    /// Adds the set bits of a group.
    pub fn add_group(&mut self, group: u64, bits: &GroupBits) {
        let mine = self.groups[group as usize].get_or_insert_with(|| Box::new([0; WORDS]));
        for (word, more) in mine.iter_mut().zip(bits) {
            self.used += (more & !*word).count_ones() as u64;
            *word |= more;
        }
    }

    /// Removes the owned blocks of `other`, which must describe the same image.
    pub fn remove(&mut self, other: &Owned) {
        for (mine, other) in self.groups.iter_mut().zip(&other.groups) {
            if let (Some(mine), Some(other)) = (mine, other) {
                for (word, less) in mine.iter_mut().zip(other.iter()) {
                    self.used -= (*word & less).count_ones() as u64;
                    *word &= !less;
                }
            }
        }
    }

    /// Marks the run's blocks as having no owner.
    pub fn release(&mut self, start: BlockNo, blocks: u64) {
        for at in start.0..start.0 + blocks {
            if let Some(bits) = &mut self.groups[(at / GROUP_BLOCKS) as usize] {
                let (word, mask) = ((at % GROUP_BLOCKS / 64) as usize, 1 << (at % 64));
                self.used -= u64::from(bits[word] & mask != 0);
                bits[word] &= !mask;
            }
        }
    }

    /// Marks the run's blocks as owned. Returns the blocks that were owned already, as runs of
    /// first block and length. The run must lie inside the groups.
    pub fn claim(&mut self, start: BlockNo, blocks: u64) -> Vec<(BlockNo, u64)> {
        let mut taken = Vec::new();
        let end = start.0 + blocks;
        let mut at = start.0;
        while at < end {
            let (group, bit) = (at / GROUP_BLOCKS, at % GROUP_BLOCKS);
            let (word, shift) = ((bit / 64) as usize, bit % 64);
            let count = (64 - shift).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << shift;
            let bits = self.groups[group as usize].get_or_insert_with(|| Box::new([0; WORDS]));
            let double = bits[word] & mask;
            bits[word] |= mask;
            self.used += count - double.count_ones() as u64;
            if double != 0 {
                push_runs(&mut taken, at - shift, double);
            }
            at += count;
        }
        taken
    }
}

/// Appends the runs of set bits of `word`, whose bit 0 is block `base`, extending the last run if
/// the first bit continues it.
pub(crate) fn push_runs(runs: &mut Vec<(BlockNo, u64)>, base: u64, word: u64) {
    let mut rest = word;
    while rest != 0 {
        let first = rest.trailing_zeros() as u64;
        let len = (!(rest >> first)).trailing_zeros() as u64;
        match runs.last_mut() {
            Some((start, blocks)) if start.0 + *blocks == base + first => *blocks += len,
            _ => runs.push((BlockNo(base + first), len)),
        }
        let done = first + len;
        rest = if done >= 64 { 0 } else { rest >> done << done };
    }
}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
