//! `kedge tune`: changes the label of an image that is not mounted, permits immutable files in it,
//! and sets up to which size the data of a file is kept in the tree. `kedge upgrade`
//! ([`crate::upgrade`]) changes an image in the same way.
//!
//! The uuid cannot change: every node, log write and block of the allocation index contains it, so
//! that no block of another image passes for one of this image. Mount options are not stored in the
//! image, because fstab(5) stores them.
//!
//! # Crash argument
//! Label and features are in both superblock slots, and a mount refuses two valid slots that
//! disagree. So:
//! 1. the older slot is blanked, durably;
//! 2. the newer one is written with the change, durably;
//! 3. the older one is written again, with the change;
//! 4. the copies of the superblock are written. Until then they have the old label, which does no
//!    harm: a mount does not read them.
//!
//! A slot is one sector, so each write is atomic. After step 1 and after step 2 there is one valid
//! slot, that of the newest checkpoint, without or with the change. A mount uses this slot, with a
//! warning about the other slot, and its first checkpoint writes the other slot. The image must
//! have been unmounted, so that nothing needs the older checkpoint. The features only permit more
//! in later operations, so they are valid for both checkpoints.

use crate::mkfs;
use anyhow::{Context, Result, bail};
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedge_device::Device;
use kedge_format::content::Content;
use kedge_format::superblock::{
    Geometry, INCOMPAT_INLINE, INCOMPAT_KNOWN, LABEL_MAX, RO_COMPAT_IMMUTABLE, RO_COMPAT_KNOWN, SLOTS,
    Superblock,
};
use kedge_host::{Usage, engine, key, mounts};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The new label, up to 64 bytes; an empty label removes it
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// Let files be made immutable or append-only (chattr +i, +a). Each open of a file then costs
    /// two requests. This cannot be undone
    #[arg(long)]
    immutable: bool,
    /// Keep the data of files of up to this many bytes in the tree from now on, at most 2048. It
    /// can become more, and neither less nor off. Older versions refuse the image then
    #[arg(long, value_name = "SIZE", value_parser = mkfs::parse_inline)]
    inline: Option<mkfs::InlineMax>,
    /// Refused: all metadata of an image is marked with its uuid
    #[arg(short = 'U', long, hide = true)]
    uuid: Option<String>,
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.uuid.is_some() {
        bail!(Usage("the uuid cannot be changed: all metadata of the image is marked with it".into()));
    }
    if args.label.is_none() && !args.immutable && args.inline.is_none() {
        let what = "-L names a label, --immutable permits chattr +i, --inline has data in the tree";
        bail!(Usage(format!("nothing to change: {what}")));
    }
    if let Some(label) = &args.label
        && (label.len() > LABEL_MAX || label.bytes().any(|b| b == 0))
    {
        bail!(Usage(format!("label of {} bytes: the longest is {LABEL_MAX}", label.len())));
    }
    let device = open(&args.image)?;
    let change = |geometry: &mut Geometry| {
        // In an image of a version without file flags, the bits of the flags may have any value.
        if args.immutable && !geometry.has_flags() {
            bail!("an older version made it, and its files have no flags");
        }
        if let Some(label) = &args.label {
            label.clone_into(&mut geometry.label);
        }
        if args.immutable {
            geometry.feature_ro_compat |= RO_COMPAT_IMMUTABLE;
        }
        if let Some(inline) = &args.inline {
            let (has, wanted) = (geometry.inline_max, inline.0);
            // The tree may already hold file data of `has` bytes.
            if wanted < has {
                bail!("it has data of files of up to {has} bytes in the tree; that cannot become less");
            }
            if wanted > 0 {
                geometry.feature_incompat |= INCOMPAT_INLINE;
                geometry.inline_max = wanted;
            }
        }
        Ok(())
    };
    set(&*device, &change).with_context(|| format!("change {}", args.image.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the device of an image. Fails if the image is mounted.
pub(crate) fn open(image: &Path) -> Result<Arc<dyn Device>> {
    if let Some(mount) = mounts::of_image(image)? {
        bail!("{} is mounted on {}: unmount it first", image.display(), mount.dir.display());
    }
    if let Content::Other(held) = key::image(image)?.content()? {
        bail!("{} holds {held}, no KedgeFS image", image.display());
    }
    engine::open_device(image, false)
}

/// Applies `change` to both superblock slots and to the copies that checkpoints keep up to date.
/// Returns the geometry before the change.
pub(crate) fn set(device: &dyn Device, change: &dyn Fn(&mut Geometry) -> Result<()>) -> Result<Geometry> {
    let blocks = device.geometry().size / BLOCK_SIZE as u64;
    if blocks <= SLOTS[1].0 {
        bail!("no room for two superblock slots");
    }
    let mut bytes = [IoBuf::zeroed(1), IoBuf::zeroed(1)];
    for (slot, bytes) in bytes.iter_mut().enumerate() {
        device.read(SLOTS[slot].byte_offset(), bytes)?;
    }
    let decode = |slot: usize| Superblock::decode(bytes[slot].as_bytes(), slot, blocks);
    let is_blank = |slot: usize| bytes[slot].as_bytes().iter().all(|&b| b == 0);
    let (newer, older) = match (decode(0), decode(1)) {
        (Ok(a), Ok(b)) if a.geometry != b.geometry => bail!("the two superblock slots disagree"),
        (Ok(a), Ok(b)) if a.checkpoint.generation > b.checkpoint.generation => (a, Some(b)),
        (Ok(a), Ok(b)) => (b, Some(a)),
        // The other slot is blank after step 1 or 2 of an interrupted run, and in a new image.
        (Ok(a), Err(_)) if is_blank(1) => (a, None),
        (Err(_), Ok(b)) if is_blank(0) => (b, None),
        (Err(e), _) | (_, Err(e)) => return Err(e).context("a superblock slot is damaged; see kedge fsck"),
    };
    let g = &newer.geometry;
    if g.feature_incompat & !INCOMPAT_KNOWN != 0 || g.feature_ro_compat & !RO_COMPAT_KNOWN != 0 {
        bail!("it has features that this version does not know");
    }
    if !newer.checkpoint.clean || kedge_store::count_log_writes(device, &newer)? > 0 {
        bail!("it was not unmounted: mount and unmount it first, or run kedge fsck -p");
    }
    let mut changed = g.clone();
    change(&mut changed)?;
    let before = g.clone();
    if changed == before {
        return Ok(before);
    }
    if let Some(older) = &older {
        device.write(older.block().byte_offset(), &IoBuf::zeroed(1), true)?;
    }
    let copied = Superblock { geometry: changed.clone(), ..newer.clone() };
    for mut slot in std::iter::once(newer).chain(older) {
        slot.geometry = changed.clone();
        let mut bytes = IoBuf::zeroed(1);
        slot.encode(bytes.as_mut_bytes());
        device.write(slot.block().byte_offset(), &bytes, true)?;
    }
    let mut bytes = IoBuf::zeroed(1);
    copied.encode_copy(bytes.as_mut_bytes());
    for place in copied.geometry.current_copies() {
        device.write(place.byte_offset(), &bytes, true)?;
    }
    Ok(before)
}

#[cfg(test)]
#[path = "tune_tests.rs"]
mod tests;
