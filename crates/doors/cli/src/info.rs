//! `kedge info`: describes an image from its superblock, or a live mount from its own report.

use crate::report;
use anyhow::{Context, Result};
use kedge_device::crypt::{CRYPT_SLOTS, Cost, CryptHeader};
use kedge_host::image::{Image, is_uri};
use kedge_host::text::show_size;
use kedge_host::{key, mounts, status};
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
    // Send no request to the mount, because all its workers may wait for a device that hangs.
    let is_dir = !is_uri(&args.target)?
        && kedge_fuse::is_dir(&args.target)
            .map_err(std::io::Error::from)
            .with_context(|| format!("find {}", args.target.display()))?;
    let mut value = match is_dir {
        true => status::of_mount(&args.target)?,
        false => of_image(&args.target)?,
    };
    // Skip this for a directory: the lookup would send a request to the mount.
    if !is_dir && let Some(mount) = mounts::of_image(&args.target)? {
        value["mounted_on"] = json!(mount.dir.to_string_lossy());
        value["state"] = json!("mounted");
    }
    print(&value, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes an image by its superblock. Without its key, an encrypted image shows only its header.
pub fn of_image(image: &Path) -> Result<Value> {
    let Some(header) = key::header_of(image)? else {
        return Ok(status::image_json(image, &Image::open(image)?.superblock()?));
    };
    let mut value = match key::is_given() {
        true => status::image_json(image, &key::image(image)?.superblock()?),
        false => json!({ "image": image.to_string_lossy(), "state": "encrypted" }),
    };
    value["encryption"] = header_json(&header);
    Ok(value)
}

/// The encryption header as JSON. Reading it needs no key.
pub fn header_json(header: &CryptHeader) -> Value {
    let slots: Vec<Value> = header
        .used()
        .map(|(slot, cost)| {
            let Cost { memory_kib, passes, lanes } = cost;
            json!({ "slot": slot, "memory_bytes": u64::from(memory_kib) << 10, "passes": passes, "lanes": lanes })
        })
        .collect();
    json!({
        "cipher": "AES-256-XTS",
        "uuid": uuid::Uuid::from_bytes(header.uuid),
        "slots_max": CRYPT_SLOTS,
        "slots": slots,
    })
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
