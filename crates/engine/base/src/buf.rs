//! Buffers aligned for direct IO, without `unsafe`: the element type provides the alignment.

use std::fmt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Size in bytes of a block, the unit of device IO.
pub const BLOCK_SIZE: usize = 4096;

/// One block, aligned to [`BLOCK_SIZE`] as O_DIRECT requires.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_SIZE]);

const _: () = assert!(size_of::<Block>() == BLOCK_SIZE && align_of::<Block>() == BLOCK_SIZE);

/// A whole number of blocks in memory, contiguous and aligned.
#[derive(Default)]
pub struct IoBuf(Vec<Block>);

impl IoBuf {
    /// Returns a zeroed buffer of `blocks` blocks.
    pub fn zeroed(blocks: usize) -> IoBuf {
        IoBuf(Block::new_vec_zeroed(blocks).expect("the allocator serves block buffers"))
    }

    /// Returns a buffer with a copy of `bytes`, padded with zeros to whole blocks.
    pub fn from_bytes(bytes: &[u8]) -> IoBuf {
        let mut buf = IoBuf::zeroed(bytes.len().div_ceil(BLOCK_SIZE));
        buf.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    pub fn blocks(&self) -> usize {
        self.0.len()
    }

    /// Length in bytes: a multiple of [`BLOCK_SIZE`].
    pub fn len(&self) -> usize {
        self.0.len() * BLOCK_SIZE
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }

    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }

    /// Truncates the buffer, or extends it with zeros, to `blocks` blocks.
    pub fn resize(&mut self, blocks: usize) {
        self.0.resize(blocks, Block([0; BLOCK_SIZE]));
    }
}

impl Clone for IoBuf {
    fn clone(&self) -> IoBuf {
        IoBuf::from_bytes(self.as_bytes())
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} blocks)", self.0.len())
    }
}
