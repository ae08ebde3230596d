//! AES-256-XTS over units of 512 bytes (IEEE 1619). The tweak is the number of the unit.
//!
//! Each 16 bytes are encrypted by themselves, with the key, the unit's number and their position in
//! the unit. So a torn write leaves each sector old or new, as it does without encryption. With a
//! cipher whose output depends on neighbouring bytes (CBC, or a wide-block cipher over more than a
//! sector) a torn block would decrypt to noise.

use super::secret::Locked;
use aes::Aes256;
use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};

/// Length of a unit in bytes.
pub const UNIT: usize = 512;
/// Length of the key in bytes: one half for the data, the other half for the tweaks.
pub const KEY: usize = 64;
const BLOCK: usize = 16;

type Block = GenericArray<u8, aes::cipher::consts::U16>;

struct Schedules {
    data: Aes256,
    tweak: Aes256,
}

/// The expanded keys, in locked memory. `Aes256` erases itself on drop.
pub struct Xts(Locked<Schedules>);

#[derive(Clone, Copy)]
enum Way {
    Encrypt,
    Decrypt,
}

impl Xts {
    pub fn new(key: &[u8; KEY]) -> Xts {
        let schedule = |half: &[u8]| Aes256::new(GenericArray::from_slice(half));
        Xts(Locked::new(Schedules { data: schedule(&key[..KEY / 2]), tweak: schedule(&key[KEY / 2..]) }))
    }

    /// Encrypts whole units in place. `first` is the number of the first unit.
    pub fn encrypt(&self, first: u64, bytes: &mut [u8]) {
        self.units(first, bytes, Way::Encrypt);
    }

    pub fn decrypt(&self, first: u64, bytes: &mut [u8]) {
        self.units(first, bytes, Way::Decrypt);
    }

    fn units(&self, first: u64, bytes: &mut [u8], way: Way) {
        let keys = self.0.get();
        for (i, unit) in bytes.chunks_exact_mut(UNIT).enumerate() {
            let tweaks = tweaks(&keys.tweak, first + i as u64);
            let mut blocks = [Block::default(); UNIT / BLOCK];
            for ((block, from), tweak) in blocks.iter_mut().zip(unit.chunks_exact(BLOCK)).zip(&tweaks) {
                *block = masked(from, *tweak);
            }
            // All blocks of a unit are passed in one call, because the cipher works on several at a
            // time.
            match way {
                Way::Encrypt => keys.data.encrypt_blocks(&mut blocks),
                Way::Decrypt => keys.data.decrypt_blocks(&mut blocks),
            }
            for ((block, to), tweak) in blocks.iter().zip(unit.chunks_exact_mut(BLOCK)).zip(&tweaks) {
                to.copy_from_slice(&masked(block, *tweak));
            }
        }
    }
}

fn masked(bytes: &[u8], tweak: u128) -> Block {
    let block: [u8; BLOCK] = bytes.try_into().expect("a block has 16 bytes");
    (u128::from_le_bytes(block) ^ tweak).to_le_bytes().into()
}

/// Returns the tweak of each block of a unit. Each tweak is the one before it times x, modulo x^128
/// + x^7 + x^2 + x + 1.
fn tweaks(key: &Aes256, number: u64) -> [u128; UNIT / BLOCK] {
    let mut first = Block::from(u128::from(number).to_le_bytes());
    key.encrypt_block(&mut first);
    let mut tweak = u128::from_le_bytes(first.into());
    std::array::from_fn(|_| {
        let this = tweak;
        // Computed without a branch, because the tweak is secret.
        tweak = (this << 1) ^ ((this >> 127) * 0x87);
        this
    })
}

#[cfg(test)]
#[path = "xts_tests.rs"]
mod tests;
