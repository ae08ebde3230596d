//! `kedge upgrade`: adds to an image of an older version the features of new images that only
//! permit more in later operations, and lists the features that it cannot add.
//!
//! The change is that of [`crate::tune`], whose crash argument holds: an image that has neither
//! access control lists nor large attribute values is valid with or without these features. The
//! other features that mkfs gives a new image need blocks that files may use, or fields that older
//! versions did not clear (`docs/rfcs/0046-a-format-that-stays.md`).

use crate::tune;
use anyhow::{Context, Result};
use kedge_format::superblock::{Geometry, INCOMPAT_ACL, INCOMPAT_LARGE_XATTRS};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A file or block device, or rbd:POOL/IMAGE, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH
    image: PathBuf,
}

/// The features that can be added in place, because they only permit more.
const ADDED: [(u64, &str); 2] =
    [(INCOMPAT_ACL, "access control lists"), (INCOMPAT_LARGE_XATTRS, "attribute values of up to 64 KiB")];

pub fn run(args: Args) -> Result<ExitCode> {
    let device = tune::open(&args.image)?;
    let add = |geometry: &mut Geometry| {
        ADDED.iter().for_each(|(bit, _)| geometry.feature_incompat |= bit);
        Ok(())
    };
    let name = args.image.display();
    let before = tune::set(&*device, &add).with_context(|| format!("change {name}"))?;
    let added: Vec<&str> =
        ADDED.iter().filter(|(bit, _)| before.feature_incompat & bit == 0).map(|(_, what)| *what).collect();
    match added.as_slice() {
        [] => println!("{name}: nothing to add in place"),
        added => println!("{name}: can now hold {}", added.join(" and ")),
    }
    let left: Vec<&str> =
        [(before.has_flags(), "file flags"), (before.has_copies(), "copies of the superblock")]
            .into_iter()
            .filter(|(has, _)| !has)
            .map(|(_, what)| what)
            .collect();
    if !left.is_empty() {
        let what = left.join(" and ");
        println!("{name}: only a copy has {what}: kedge tar -c {name}:/ | kedge mkfs --from - NEW");
    }
    Ok(ExitCode::SUCCESS)
}
