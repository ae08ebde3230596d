//! `kedge info`: describes an image from its superblock, or a live mount from its own report.

use crate::image::Image;
use crate::options::show_size;
use crate::{mounts, report};
use anyhow::{Context, Result};
use kedge_base::BLOCK_SIZE;
use kedge_format::superblock::{INCOMPAT_KNOWN, RO_COMPAT_KNOWN, Superblock};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
    let meta =
        std::fs::metadata(&args.target).with_context(|| format!("look at {}", args.target.display()))?;
    let mut value = if meta.is_dir() {
        let text = mounts::attribute(&args.target, mounts::XATTR_INFO)?;
        serde_json::from_str(&text)
            .with_context(|| format!("read what {} says of itself", args.target.display()))?
    } else {
        image_json(&args.target, &Image::open(&args.target)?.superblock()?)
    };
    if let (false, Some(mount)) = (meta.is_dir(), mounts::of_image(&args.target)?) {
        value["mounted_on"] = json!(mount.dir.to_string_lossy());
    }
    print(&value, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The contents of a superblock. Counts of blocks are those of the last checkpoint.
pub fn image_json(path: &Path, superblock: &Superblock) -> Value {
    let (g, c) = (&superblock.geometry, &superblock.checkpoint);
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE as u64);
    json!({
        "image": path.to_string_lossy(),
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
        "lost_since": c.losses.map(|losses| losses.since),
        "generation": c.generation.0,
        "epoch": c.epoch.0,
        "checkpoint_lsn": c.checkpoint_lsn.0,
        "tail_lsn": c.tail_lsn.0,
        "allocation_groups": g.groups(),
        "features": {
            "compat": features(g.feature_compat, u64::MAX),
            "ro_compat": features(g.feature_ro_compat, RO_COMPAT_KNOWN),
            "incompat": features(g.feature_incompat, INCOMPAT_KNOWN),
        },
    })
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
        writeln!(out, "{value:#}")?;
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
            _ => writeln!(out, "{:width$}  {}", row.path, report::text(row.value))?,
        }
    }
    Ok(())
}
