//! Makes an image, and identifies the previous contents of a device.

use crate::claim::Claim;
use crate::error::Result;
use crate::policy::options::FormatOptions;
use crate::types::FormatSummary;
use kedge_base::{BLOCK_SIZE, Clock, CorruptKind, Error as Engine, IoBuf};
use kedge_device::Device;
use kedge_format::content::{Content, HEAD_BYTES};
use kedge_format::logwrite::LogSecret;
use kedge_format::superblock::Geometry;
use kedge_store::FormatParams;
use siphasher::sip::SipHasher24;
use std::sync::Arc;

/// The source of an image's identity and secrets: the seed, or the system's random numbers.
struct Draw {
    seed: Option<u64>,
    drawn: u64,
}

impl Draw {
    fn uuid(&mut self) -> uuid::Uuid {
        match self.seed {
            #[allow(clippy::disallowed_methods)]
            None => uuid::Uuid::new_v4(),
            Some(seed) => {
                self.drawn += 1;
                let half = |key| SipHasher24::new_with_keys(seed, key).hash(&self.drawn.to_le_bytes());
                uuid::Builder::from_random_bytes(((half(0) as u128) << 64 | half(1) as u128).to_le_bytes())
                    .into_uuid()
            }
        }
    }

    /// Draws a secret from two uuids. Six bits of a random uuid are fixed; the second uuid is
    /// rotated by half, so that its fixed bits fall on random bits of the first.
    fn secret(&mut self) -> LogSecret {
        let [a, b] = [(); 2].map(|()| self.uuid().as_u128());
        LogSecret((a ^ b.rotate_left(64)).to_le_bytes())
    }
}

/// Identifies the present contents of the device.
fn content(device: &dyn Device) -> Result<Content> {
    let bytes = device.geometry().size.min(HEAD_BYTES as u64) as usize;
    let mut head = IoBuf::zeroed(bytes / BLOCK_SIZE);
    if bytes >= BLOCK_SIZE {
        device.read(0, &mut head)?;
    }
    Ok(Content::of(head.as_bytes()))
}

/// Adds the present contents of the device to an error about a superblock.
pub(crate) fn name_other(device: &dyn Device, e: Engine) -> Engine {
    match (&e, content(device)) {
        (Engine::Corrupt { kind: kind @ CorruptKind::Superblock, block, what }, Ok(Content::Other(held))) => {
            let name = device.name();
            Engine::corrupt(*kind, *block, format!("{what}; {name} holds {held}, no KedgeFS image"))
        }
        _ => e,
    }
}

/// [`crate::FileSystem::format`].
pub(crate) fn format(
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    options: &FormatOptions,
) -> Result<FormatSummary> {
    let _claim = Claim::new(&device, &*clock, false)?;
    if !options.overwrite
        && let Some(held) = content(&*device)?.name()
    {
        let name = device.name();
        return Err(Engine::invalid(format!("{name} holds {held}, which would be lost")).into());
    }
    let size = options.size.unwrap_or(device.geometry().size).min(device.geometry().size);
    let mut draw = Draw { seed: options.seed, drawn: 0 };
    let params = FormatParams {
        size,
        log_size: options.log_size.unwrap_or_else(|| Geometry::default_log_bytes(size)),
        label: options.label.clone(),
        uuid: options.uuid.unwrap_or_else(|| draw.uuid()),
        hash_seed: *draw.uuid().as_bytes(),
        log_secret: draw.secret(),
        uid: options.owner.uid,
        gid: options.owner.gid,
        immutable: options.immutable,
        data_checksums: options.data_checksums,
        inline_max: options.inline_max,
    };
    let g = kedge_store::format(device, clock, &params)?;
    Ok(FormatSummary {
        uuid: g.uuid,
        size: g.total_blocks * BLOCK_SIZE as u64,
        log_size: g.log_bytes(),
        block_size: BLOCK_SIZE as u32,
        groups: g.groups(),
        data_blocks: g.total_blocks - g.data_start.0,
    })
}
