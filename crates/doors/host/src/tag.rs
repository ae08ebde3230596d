//! Resolves `LABEL=` and `UUID=`, given instead of an image, to the block device with that label or
//! UUID.
//!
//! mount(8) finds labels by the links that udev makes in `/dev/disk` from libblkid's results.
//! libblkid does not recognise KedgeFS, so all block devices are read here. Image files are not
//! searched for, because they may be in any directory.

use crate::image::Image;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// The most devices that are read, more than any machine has, so that the search is bounded.
const DEVICES_MAX: usize = 16_384;

enum Tag<'a> {
    Label(&'a str),
    Uuid(&'a str),
}

impl Tag<'_> {
    fn of(text: &str) -> Option<Tag<'_>> {
        let label = text.strip_prefix("LABEL=").map(Tag::Label);
        label.or_else(|| text.strip_prefix("UUID=").map(Tag::Uuid))
    }

    /// Whether the device has the tag. Fails if the device cannot be read or holds no KedgeFS
    /// image.
    fn is_of(&self, device: &Path) -> Result<bool> {
        let superblock = Image::open(device)?.superblock()?;
        Ok(match self {
            Tag::Label(label) => superblock.geometry.label == *label,
            Tag::Uuid(uuid) => superblock.geometry.uuid.to_string().eq_ignore_ascii_case(uuid),
        })
    }
}

/// Returns the device for `LABEL=…` or `UUID=…`, and any other name unchanged. A file whose name
/// begins so can be given as `./LABEL=…`.
pub fn resolve(image: &Path) -> Result<PathBuf> {
    let Some(tag) = image.to_str().and_then(Tag::of) else { return Ok(image.to_owned()) };
    if let Tag::Label("") | Tag::Uuid("") = tag {
        bail!("{} names no image", image.display());
    }
    let mut found = Vec::new();
    for device in devices()? {
        match tag.is_of(&device) {
            Ok(true) => found.push(device),
            Ok(false) => {}
            Err(e) => tracing::debug!("{} is skipped: {e:#}", device.display()),
        }
    }
    found.sort();
    match found.as_slice() {
        [device] => Ok(device.clone()),
        [] => bail!(
            "no block device that can be read has {}; an image in a file is named by its path",
            image.display()
        ),
        several => {
            let names: Vec<_> = several.iter().map(|device| device.display().to_string()).collect();
            bail!("{} of {} devices: {}; name one", image.display(), several.len(), names.join(", "))
        }
    }
}

/// All block devices that have a size.
fn devices() -> Result<Vec<PathBuf>> {
    const ALL: &str = "/sys/class/block";
    let mut devices = Vec::new();
    for entry in std::fs::read_dir(ALL).context(ALL)?.take(DEVICES_MAX) {
        let entry = entry.context(ALL)?;
        let sectors = std::fs::read_to_string(entry.path().join("size")).unwrap_or_default();
        // A loop device without a file and a drive without a disk have no sectors. Opening such a
        // drive would wait for it.
        if !matches!(sectors.trim(), "" | "0") {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(devices)
}
