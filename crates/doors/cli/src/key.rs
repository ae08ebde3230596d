//! `kedge key`: the key slots of an encrypted image.
//!
//! The key of the image never changes: each slot holds it under another secret. So a change of
//! secrets takes no time, and a user who once had the image's key keeps it (docs/SEMANTICS.md).

use crate::info;
use anyhow::{Result, bail};
use kedge_device::crypt::{Cost, CryptHeader};
use kedge_host::{engine, key, mounts};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Show which slots are used; needs no key
    List {
        /// A file or block device, or a URI, as for kedge info
        image: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a key to a free slot
    Add {
        #[command(flatten)]
        new: New,
        image: PathBuf,
    },
    /// Replace the key that is given (--key-file, --key-fd or a passphrase) by a new one
    Change {
        #[command(flatten)]
        new: New,
        image: PathBuf,
    },
    /// Empty a slot: by default that of the key that is given. The last slot stays
    Remove {
        /// The number of the slot, as kedge key list shows it
        #[arg(long)]
        slot: Option<usize>,
        image: PathBuf,
    },
}

#[derive(clap::Args, Debug)]
struct New {
    /// The file that holds the new key, to its last byte; without it a passphrase is asked for
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.action {
        Action::List { image, json } => match key::header_of(&image)? {
            Some(header) => info::print(&info::header_json(&header), json)?,
            None => bail!("{} is not encrypted", image.display()),
        },
        Action::Add { new, image } => change(&image, |header| {
            let (_, key) = header.unlock(&*key::secret(&image)?)?;
            let secret = key::new_secret(&image, new.new_key_file.as_deref())?;
            Ok(format!("key slot {} is new", header.add(&key, &secret, Cost::default())?))
        })?,
        Action::Change { new, image } => change(&image, |header| {
            let (slot, key) = header.unlock(&*key::secret(&image)?)?;
            let secret = key::new_secret(&image, new.new_key_file.as_deref())?;
            header.change(slot, &key, &secret, Cost::default())?;
            Ok(format!("key slot {slot} has the new key"))
        })?,
        Action::Remove { slot, image } => change(&image, |header| {
            let (own, _) = header.unlock(&*key::secret(&image)?)?;
            let slot = slot.unwrap_or(own);
            header.remove(slot)?;
            Ok(format!("key slot {slot} is empty"))
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes the header of an image, which is locked until the change is written.
fn change(image: &Path, change: impl FnOnce(&mut CryptHeader) -> Result<String>) -> Result<()> {
    if let Some(mount) = mounts::of_image(image)? {
        bail!("{} is mounted on {}: unmount it first", image.display(), mount.dir.display());
    }
    let device = engine::open_raw(image, false)?;
    if !key::is_encrypted(&*device)? {
        bail!("{} is not encrypted", image.display());
    }
    // Before the arguments are judged: after an interrupted change a repetition may be refused,
    // because the slot is empty already, while the older copy of the header still has it.
    let (mut header, differed) = CryptHeader::settle(&*device)?;
    if differed {
        let what = "an earlier change of its keys was interrupted; both copies of the header have it now";
        println!("{}: {what}", image.display());
    }
    let done = change(&mut header)?;
    header.replace(&*device)?;
    println!("{}: {done}", image.display());
    Ok(())
}
