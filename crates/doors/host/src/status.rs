//! Reads the state of an image and of a live mount as JSON.

use crate::image::Image;
use crate::text::date;
use crate::{mounts, waits};
use anyhow::{Context, Result};
use kedge_base::BLOCK_SIZE;
use kedge_format::superblock::{INCOMPAT_KNOWN, RO_COMPAT_KNOWN, Superblock};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The time limit for reading the superblock of a mount's image.
const PATIENCE: Duration = Duration::from_secs(2);

/// Identity, geometry, options and state of the mount on `dir`.
pub fn of_mount(dir: &Path) -> Result<Value> {
    let text = mounts::attribute(dir, mounts::XATTR_INFO)?;
    let mut value = mount_json(&text, image_behind(dir)?.as_deref())
        .with_context(|| format!("read the state of {}", dir.display()))?;
    flags_in_force(&mut value, dir)?;
    Ok(value)
}

/// Takes the flags from the mount table: fusermount3 sets some and a remount changes some, and the
/// serving process knows of neither.
fn flags_in_force(value: &mut Value, dir: &Path) -> Result<()> {
    let Some(mount) = mounts::at(dir)? else { return Ok(()) };
    for flag in ["nosuid", "nodev", "noexec"] {
        value["mount"][flag] = json!(mount.has_option(flag));
    }
    Ok(())
}

/// The contents of a superblock. Counts of blocks are those of the last checkpoint.
pub fn image_json(path: &Path, superblock: &Superblock) -> Value {
    let (g, c) = (&superblock.geometry, &superblock.checkpoint);
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE as u64);
    json!({
        "image": path.to_string_lossy(),
        "state": if c.clean { "clean" } else { "needs replay" },
        "created": date(g.created.sec),
        "uuid": g.uuid,
        "label": g.label,
        "size_bytes": bytes(g.total_blocks),
        "block_size_bytes": BLOCK_SIZE,
        "log_size_bytes": g.log_bytes(),
        "free_bytes": bytes(c.free_blocks),
        "used_bytes": bytes(g.total_blocks.saturating_sub(c.free_blocks)),
        "inodes": c.inodes,
        "tree_nodes": c.nodes,
        "clean": c.clean,
        "lost_files": c.losses.map_or(0, |losses| losses.files),
        "lost_since": c.losses.map(|losses| date(losses.since)),
        "generation": c.generation.0,
        "epoch": c.epoch.0,
        "checkpoint_lsn": c.checkpoint_lsn.0,
        "tail_lsn": c.tail_lsn.0,
        "allocation_groups": g.groups(),
        "features": {
            "compat": features(g.feature_compat, KNOWN_FEATURES[0].1),
            "ro_compat": features(g.feature_ro_compat, KNOWN_FEATURES[1].1),
            "incompat": features(g.feature_incompat, KNOWN_FEATURES[2].1),
        },
    })
}

/// The kinds of features with the bits that this version supports.
const KNOWN_FEATURES: [(&str, u64); 3] =
    [("compat", u64::MAX), ("ro_compat", RO_COMPAT_KNOWN), ("incompat", INCOMPAT_KNOWN)];

/// The information that a mount reports, with additional members from the superblock of its image.
/// The latter describe the last checkpoint.
fn mount_json(text: &str, image: Option<&Path>) -> Result<Value> {
    let mut value: Value = serde_json::from_str(text)?;
    for name in ["created", "lost_since", "shut_down_since", "frozen_since"] {
        if let Some(sec) = value[name].as_i64() {
            value[name] = json!(date(sec));
        }
    }
    for (kind, known) in KNOWN_FEATURES {
        if let Some(bits) = value["features"][kind].as_u64() {
            value["features"][kind] = json!(features(bits, known));
        }
    }
    waits::write_date(&mut value);
    if !value[waits::MEMBER].is_null() {
        value["device_state"] = json!(waits::text(&value).unwrap_or_else(|| "answers".into()));
    }
    let answers = value[waits::MEMBER]["oldest_ns"].as_u64().is_none_or(|ns| ns < PATIENCE.as_nanos() as u64);
    let of_image = image.filter(|_| answers).and_then(|path| superblock_of(path.to_owned()));
    if let (Some(value), Some(Value::Object(of_image))) = (value.as_object_mut(), of_image) {
        for (name, member) in of_image {
            value.entry(name).or_insert(member);
        }
    }
    Ok(value)
}

/// The members read from the image of a mount. `None` if the image cannot be read within
/// [`PATIENCE`], because its device hangs or because the user may read the mount but not the image.
fn superblock_of(path: PathBuf) -> Option<Value> {
    let (found, look) = channel();
    let read = move || {
        let superblock = Image::open(&path).and_then(|image| image.superblock());
        // The receiver is gone if the read took too long.
        let _ = found.send(superblock.ok().map(|superblock| image_json(&path, &superblock)));
    };
    kedge_base::spawn_named("superblock", read).ok()?;
    look.recv_timeout(PATIENCE).ok()?
}

/// The image of the mount on `dir`, by the mount table. A mount that another user made is not
/// trusted, because it could name any file.
pub fn image_behind(dir: &Path) -> Result<Option<PathBuf>> {
    Ok(mounts::at(dir)?.filter(|mount| mount.is_kedgefs() && !mount.is_foreign()).map(|mount| mount.image()))
}

/// Feature bits as text; unsupported bits are marked.
fn features(bits: u64, known: u64) -> String {
    match (bits, bits & !known) {
        (0, _) => "none".into(),
        (_, 0) => format!("{bits:#x}"),
        (_, unknown) => format!("{bits:#x} (unknown: {unknown:#x})"),
    }
}

/// Reads all counters of a mount, and its state.
pub fn counters(dir: &Path) -> Result<Value> {
    let text = mounts::attribute(dir, mounts::XATTR_STATS)?;
    let mut stats: Value =
        serde_json::from_str(&text).with_context(|| format!("read the counters of {}", dir.display()))?;
    waits::write_date(&mut stats);
    stats["state"] = state(dir, waits::text(&stats))?;
    Ok(stats)
}

/// Whether the file system still accepts changes, and if not, since when and why. `device` is the
/// headline about a device that does not complete requests.
fn state(dir: &Path, device: Option<String>) -> Result<Value> {
    let info: Value = serde_json::from_str(&mounts::attribute(dir, mounts::XATTR_INFO)?)
        .with_context(|| format!("read the state of {}", dir.display()))?;
    Ok(json!({
        "shut_down": !info["shut_down"].is_null(),
        "reason": info["shut_down"],
        "since": info["shut_down_since"].as_i64().map(date),
        "device_late": device.is_some(),
        "device": device,
        "frozen": !info["frozen_since"].is_null(),
        "frozen_since": info["frozen_since"].as_i64().map(date),
    }))
}
