//! A key slot: the image's key, wrapped with a secret.
//!
//! Argon2id derives from the secret and a random salt a key for XChaCha20-Poly1305, which encrypts
//! the image's key and authenticates the parameters, the header's identity and the number of the
//! slot. So a wrong secret is detected, and a slot that was moved or changed opens nothing.

use super::secret::Secret;
use super::xts::KEY;
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use kedge_base::{Error, Result};
use zeroize::Zeroizing;

/// Length of a slot on the device in bytes.
pub const SLOT: usize = 256;
const SALT: usize = 32;
const NONCE: usize = 24;
const TAG: usize = 16;
/// The kind of a used slot; a free slot has kind 0.
const ARGON2ID: u32 = 1;

/// The work of one attempt to open a slot. It is read from the image, so it is bounded: an image
/// must not make a program use all memory or compute for hours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    pub memory_kib: u32,
    pub passes: u32,
    pub lanes: u32,
}

impl Default for Cost {
    /// The second recommended option of RFC 9106, 64 MiB, for environments with little memory.
    fn default() -> Cost {
        Cost { memory_kib: 64 << 10, passes: 3, lanes: 4 }
    }
}

impl Cost {
    /// Maximum memory in KiB: 4 GiB.
    const MEMORY_KIB_MAX: u32 = 4 << 20;
    const PASSES_MAX: u32 = 1 << 16;
    const LANES_MAX: u32 = 64;
    /// Maximum product of memory in KiB and passes: about a minute of processor time.
    const WORK_MAX: u64 = 64 << 20;

    pub fn check(self) -> Result<(), String> {
        let Cost { memory_kib, passes, lanes } = self;
        if lanes == 0 || lanes > Cost::LANES_MAX {
            return Err(format!("{lanes} lanes, 1 to {} are possible", Cost::LANES_MAX));
        }
        if memory_kib < 8 * lanes || memory_kib > Cost::MEMORY_KIB_MAX {
            let most = Cost::MEMORY_KIB_MAX;
            return Err(format!("{memory_kib} KiB of memory, {} to {most} are possible", 8 * lanes));
        }
        if passes == 0
            || passes > Cost::PASSES_MAX
            || u64::from(passes) * u64::from(memory_kib) > Cost::WORK_MAX
        {
            return Err(format!("{passes} passes over {memory_kib} KiB of memory are too many or none"));
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct Slot {
    pub cost: Cost,
    salt: [u8; SALT],
    nonce: [u8; NONCE],
    wrapped: [u8; KEY],
    tag: [u8; TAG],
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({:?})", self.cost)
    }
}

impl Slot {
    pub fn new(key: &[u8; KEY], secret: &Secret, cost: Cost, binding: &[u8]) -> Result<Slot> {
        cost.check().map_err(Error::invalid)?;
        let (salt, nonce) = (super::random()?, super::random()?);
        let mut slot = Slot { cost, salt, nonce, wrapped: *key, tag: [0; TAG] };
        let aead = slot.cipher(secret)?;
        let sealed = aead.encrypt_in_place_detached(&nonce.into(), &slot.bound(binding), &mut slot.wrapped);
        slot.tag = sealed.map_err(|_| Error::invalid("the key cannot be wrapped"))?.into();
        Ok(slot)
    }

    /// Returns the image's key, or `None` if the secret is not the secret of this slot.
    pub fn open(&self, secret: &Secret, binding: &[u8]) -> Result<Option<Zeroizing<[u8; KEY]>>> {
        let mut key = Zeroizing::new(self.wrapped);
        let (nonce, tag) = (self.nonce.into(), self.tag.into());
        let opened =
            self.cipher(secret)?.decrypt_in_place_detached(&nonce, &self.bound(binding), &mut key[..], &tag);
        Ok(opened.is_ok().then_some(key))
    }

    fn cipher(&self, secret: &Secret) -> Result<XChaCha20Poly1305> {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let failed = |e| Error::invalid(format!("key derivation: {e}"));
        let params = Params::new(memory_kib, passes, lanes, Some(32)).map_err(failed)?;
        // The memory is reserved here, so that a lack of memory is an error instead of an abort.
        let mut memory = Zeroizing::new(Vec::new());
        let blocks = params.block_count();
        memory.try_reserve_exact(blocks).map_err(|_| {
            Error::invalid(format!("opening a key slot needs {memory_kib} KiB of memory, which is not there"))
        })?;
        memory.resize(blocks, argon2::Block::default());
        let mut key = Zeroizing::new([0; 32]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into_with_memory(secret.bytes(), &self.salt, &mut key[..], &mut memory[..])
            .map_err(failed)?;
        Ok(XChaCha20Poly1305::new((&*key).into()))
    }

    fn bound(&self, binding: &[u8]) -> Vec<u8> {
        let Cost { memory_kib, passes, lanes } = self.cost;
        [binding, [memory_kib, passes, lanes].map(u32::to_le_bytes).as_flattened(), &self.salt].concat()
    }

    fn parts(&mut self) -> [&mut [u8]; 4] {
        [&mut self.salt, &mut self.nonce, &mut self.wrapped, &mut self.tag]
    }

    pub fn encode(&self, to: &mut [u8]) {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let numbers = [ARGON2ID, memory_kib, passes, lanes].map(u32::to_le_bytes);
        let bytes = [numbers.as_flattened(), &self.salt, &self.nonce, &self.wrapped, &self.tag].concat();
        to[..bytes.len()].copy_from_slice(&bytes);
    }

    /// Returns `None` if the slot is free.
    pub fn decode(bytes: &[u8]) -> Result<Option<Slot>, String> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        match word(0) {
            0 if bytes.iter().all(|byte| *byte == 0) => return Ok(None),
            0 => return Err("a free slot is not zero".into()),
            ARGON2ID => {}
            other => return Err(format!("nothing is known of kind {other}")),
        }
        let cost = Cost { memory_kib: word(4), passes: word(8), lanes: word(12) };
        cost.check()?;
        let mut slot = Slot { cost, salt: [0; SALT], nonce: [0; NONCE], wrapped: [0; KEY], tag: [0; TAG] };
        let mut rest = &bytes[16..];
        for part in slot.parts() {
            let (mine, behind) = rest.split_at(part.len());
            part.copy_from_slice(mine);
            rest = behind;
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err("bytes after its end".into());
        }
        Ok(Some(slot))
    }
}
