//! Limits of directories in an image that is not mounted: see `kedgefs::FileSystem::set_limit`.

use crate::change::change;
use crate::offline::ImagePath;
use anyhow::{Context, Result, bail};
use kedge_host::engine;
use kedgefs::{Error, Limit, SetLimit};
use std::path::Path;

/// A limit, and the path of its directory in the image.
pub struct Listed {
    pub limit: Limit,
    /// `None` if no path leads to the directory.
    pub path: Option<Vec<u8>>,
}

pub fn set(place: &ImagePath, new: SetLimit) -> Result<()> {
    change(place, |fs| {
        let dir = place.find(fs)?.ino;
        match fs.set_limit(dir, new) {
            Ok(_) => Ok(()),
            Err(Error::Invalid(why)) => bail!("{}: {why}", place.show()),
            Err(e) => Err(e).with_context(|| place.show()),
        }
    })
}

/// The limit of the directory, or of its nearest ancestor that has one.
pub fn nearest(place: &ImagePath) -> Result<Option<Listed>> {
    let fs = place.open()?;
    let limit = fs.limit_of(place.find(&fs)?.ino).with_context(|| place.show())?;
    Ok(limit.map(|limit| Listed { path: fs.path_of(limit.dir).ok(), limit }))
}

/// All limits of an image.
pub fn list(image: &Path) -> Result<Vec<Listed>> {
    let fs = engine::open_to_read(image)?;
    Ok(fs.limits().into_iter().map(|limit| Listed { path: fs.path_of(limit.dir).ok(), limit }).collect())
}
