//! `kedge tune`: changes what can be changed of an image that is not mounted, which is its label.
//!
//! The uuid stays: every node, log write and block of the allocation index has it, so that nothing
//! of another image passes for this one's. Mount options have no place in the format: fstab(5) has
//! one.
//!
//! # Crash argument
//! The label is in both superblock slots, and a mount refuses slots that disagree. So:
//! 1. the older slot is blanked, durably;
//! 2. the newer one is written with the new label, durably;
//! 3. the older one is written again, with the new label.
//!
//! A slot is one sector, so each write is there or not. After 1 and after 2 there is one valid
//! slot, that of the newest checkpoint, with the old label or the new one. A mount takes it, with a
//! warning about the other, and its first checkpoint writes the other. The image must have been
//! unmounted, so that nothing needs the older checkpoint.

use crate::image::Image;
use crate::{Usage, engine, mounts};
use anyhow::{Context, Result, bail};
use kedge_base::{BLOCK_SIZE, IoBuf};
use kedge_device::Device;
use kedge_format::content::Content;
use kedge_format::superblock::{INCOMPAT_KNOWN, LABEL_MAX, RO_COMPAT_KNOWN, SLOTS, Superblock};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The new label, up to 64 bytes; an empty one takes it away
    #[arg(short = 'L', long)]
    label: Option<String>,
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
    let Some(label) = args.label else {
        bail!(Usage("nothing to change: -L names a label".into()));
    };
    if label.len() > LABEL_MAX || label.bytes().any(|b| b == 0) {
        bail!(Usage(format!("label of {} bytes: the longest is {LABEL_MAX}", label.len())));
    }
    if let Some(mount) = mounts::of_image(&args.image)? {
        bail!("{} is mounted on {}: unmount it first", args.image.display(), mount.dir.display());
    }
    if let Content::Other(held) = Image::open(&args.image)?.content()? {
        bail!("{} holds {held}, no KedgeFS image", args.image.display());
    }
    let device = engine::open_device(&args.image, false)?;
    set_label(&*device, &label).with_context(|| format!("change the label of {}", args.image.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Gives both slots the label.
fn set_label(device: &dyn Device, label: &str) -> Result<()> {
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
        // As after step 1 or 2, or of a new image.
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
    if g.label == label {
        return Ok(());
    }
    if let Some(older) = &older {
        device.write(older.block().byte_offset(), &IoBuf::zeroed(1), true)?;
    }
    for mut slot in std::iter::once(newer).chain(older) {
        label.clone_into(&mut slot.geometry.label);
        let mut bytes = IoBuf::zeroed(1);
        slot.encode(bytes.as_mut_bytes());
        device.write(slot.block().byte_offset(), &bytes, true)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "tune_tests.rs"]
mod tests;
