//! Clones, and writes that become durable together.

use crate::open::Opened;
use kedge_host::embed::{Fault, Outcome};
use kedgefs::OpenOptions;
use std::path::Path;

fn offset(n: i64, what: &str) -> Outcome<u64> {
    u64::try_from(n).map_err(|_| Fault::invalid(format!("{what} {n} is negative")))
}

/// Makes the contents of the file `to` those of `from`. Creates `to` if it does not exist.
pub(crate) fn clone_file(opened: &Opened, from: &Path, to: &Path) -> Outcome<()> {
    let source = opened.root().open(from)?;
    let target = opened.root().open_with(to, &OpenOptions::new().write(true).create(true))?;
    Ok(opened.fs().clone_file(source.ino(), target.ino())?)
}

/// A range to clone: its offset in the source, its offset in the target, and its length, in bytes.
pub(crate) struct Range {
    pub(crate) offset: i64,
    pub(crate) target: i64,
    pub(crate) length: i64,
}

pub(crate) fn clone_range(opened: &Opened, from: &Path, to: &Path, range: &Range) -> Outcome<()> {
    let (at, there) = (offset(range.offset, "offset")?, offset(range.target, "offset")?);
    let length = offset(range.length, "length")?;
    let source = opened.root().open(from)?;
    let target = opened.root().open_with(to, &OpenOptions::new().write(true))?;
    Ok(opened.fs().clone_range(source.ino(), at, target.ino(), there, length)?)
}

/// Writes the pieces so that a crash leaves all or none of them. They are durable when it returns.
pub(crate) fn write_atomic(opened: &Opened, path: &Path, pieces: &[(i64, Vec<u8>)]) -> Outcome<()> {
    let file = opened.root().open_with(path, &OpenOptions::new().write(true))?;
    let mut write = file.atomic()?;
    for (at, bytes) in pieces {
        write.write_at(offset(*at, "offset")?, bytes)?;
    }
    Ok(write.commit()?)
}
