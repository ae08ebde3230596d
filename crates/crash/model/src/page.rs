//! Names, and the pages of a file, with their digests.

use std::sync::{Arc, OnceLock};
use twox_hash::XxHash3_128;

pub const PAGE: usize = 4096;
pub type Name = Arc<[u8]>;
/// The digest of visible contents. It has 128 bits, so states with equal digests count as equal.
pub type Digest = u128;

/// One page of a file, with the digest of its bytes.
#[derive(Clone, Debug)]
pub struct Page {
    bytes: Box<[u8]>,
    digest: OnceLock<Digest>,
}

impl Page {
    pub fn zeroed() -> Page {
        Page { bytes: vec![0; PAGE].into_boxed_slice(), digest: OnceLock::new() }
    }

    pub fn full(bytes: &[u8]) -> Page {
        debug_assert_eq!(bytes.len(), PAGE);
        Page { bytes: bytes.into(), digest: OnceLock::new() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.digest = OnceLock::new();
    }

    pub fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| digest_of(&self.bytes))
    }
}

/// The digest of a missing page and of a page of zeros, since both read the same.
pub const ZEROS: Digest = 0;

/// Compares chunks of the size of a cache line, which the compiler turns into a few instructions
/// each. A comparison byte by byte would cost more than the digest.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|line| line.iter().fold(0, |seen, byte| seen | byte) == 0)
}

pub fn digest_of(bytes: &[u8]) -> Digest {
    match is_zero(bytes) {
        true => ZEROS,
        false => XxHash3_128::oneshot(bytes),
    }
}
