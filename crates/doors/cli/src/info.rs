//! `kedge info`: describes an image from its superblock, or a live mount from its own report.

use crate::image::{Image, is_remote};
use crate::options::show_size;
use crate::{mounts, report, waits};
use anyhow::{Context, Result};
use kedge_base::BLOCK_SIZE;
use kedge_format::superblock::{INCOMPAT_KNOWN, RO_COMPAT_KNOWN, Superblock};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A mount's device that answers nothing for so long is not asked for its superblock.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// An image, or the directory on which it is mounted
    #[arg(value_name = "IMAGE|DIR")]
    target: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    // Without asking the mount: all its workers may wait for a device that hangs.
    let is_dir = !is_remote(&args.target)?
        && kedge_fuse::is_dir(&args.target)
            .map_err(std::io::Error::from)
            .with_context(|| format!("look at {}", args.target.display()))?;
    let mut value = if is_dir {
        let text = mounts::attribute(&args.target, mounts::XATTR_INFO)?;
        mount_json(&text, image_behind(&args.target)?.as_deref())
            .with_context(|| format!("read what {} says of itself", args.target.display()))?
    } else {
        image_json(&args.target, &Image::open(&args.target)?.superblock()?)
    };
    if is_dir {
        flags_in_force(&mut value, &args.target)?;
    }
    // Of a directory nothing more is asked: see above.
    if !is_dir && let Some(mount) = mounts::of_image(&args.target)? {
        value["mounted_on"] = json!(mount.dir.to_string_lossy());
        value["state"] = json!("mounted");
    }
    print(&value, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The flags of the mount table: fusermount3 sets some, and a remount changes them, of which the
/// serving process knows nothing.
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

/// Kinds of features with the bits that this version knows.
const KNOWN_FEATURES: [(&str, u64); 3] =
    [("compat", u64::MAX), ("ro_compat", RO_COMPAT_KNOWN), ("incompat", INCOMPAT_KNOWN)];

/// What a mount says of itself, with the members that its image has, too. Those that only a
/// superblock has are of the last checkpoint.
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
        value["device_state"] = json!(waits::told(&value).unwrap_or_else(|| "answers".into()));
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

/// The members that the image of a mount has. `None`: it cannot be read in a moment, because its
/// device hangs, or because who may look at the mount is not allowed to read the image.
fn superblock_of(path: PathBuf) -> Option<Value> {
    let (found, look) = channel();
    let read = move || {
        let superblock = Image::open(&path).and_then(|image| image.superblock());
        // Nobody waits any more if it took too long.
        let _ = found.send(superblock.ok().map(|superblock| image_json(&path, &superblock)));
    };
    kedge_base::spawn_named("superblock", read).ok()?;
    look.recv_timeout(PATIENCE).ok()?
}

/// The image of the mount on `dir`, by the mount table. A mount that another user made could name
/// any file, and its word is not taken.
pub fn image_behind(dir: &Path) -> Result<Option<PathBuf>> {
    Ok(mounts::at(dir)?.filter(|mount| mount.is_kedgefs() && !mount.is_foreign()).map(|mount| mount.image()))
}

/// A moment in seconds since 1970 as `2026-11-22T06:26:47Z`.
pub fn date(sec: i64) -> String {
    let (days, rest) = (sec.div_euclid(86_400), sec.rem_euclid(86_400));
    // Years that begin in March, in eras of 400: leap days come last.
    let from_march = days + 719_468;
    let (era, day) = (from_march.div_euclid(146_097), from_march.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Bits as text; those that this version does not know are marked.
fn features(bits: u64, known: u64) -> String {
    match (bits, bits & !known) {
        (0, _) => "none".into(),
        (_, 0) => format!("{bits:#x}"),
        (_, unknown) => format!("{bits:#x} (unknown: {unknown:#x})"),
    }
}

/// Prints JSON, or a line for each value.
pub fn print(value: &Value, as_json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", kedge_crash::report::escape_json(&format!("{value:#}")))?;
        return Ok(());
    }
    let rows = report::rows(value);
    let width = report::name_width(&rows);
    for row in rows {
        let name = row.path.strip_suffix("_bytes");
        match (name, row.value.as_u64()) {
            (Some(name), Some(bytes)) => {
                writeln!(out, "{name:width$}  {} ({bytes} bytes)", show_size(bytes))?;
            }
            _ => {
                let text = kedge_base::printable(&report::text(row.value));
                writeln!(out, "{:width$}  {text}", kedge_base::printable(&row.path))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "info_tests.rs"]
mod tests;
