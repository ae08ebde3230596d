//! The data of small files in the tree ([`kedge_format::inline`]).
//!
//! An inline item is the place of file block 0, as an extent is the place of others. It is never
//! changed beside the log: each record with bytes for it has all bytes of the block.
//! - *In*: an fsync or a writeback puts the block into the tree if the file is small enough and the
//!   block has no place, or is there already. The page must not be log-resident, since the promise
//!   for the end of a residency does not include the bytes.
//! - *Out*: the record that maps the block to an extent deletes the item. An operation that moves,
//!   shares or preallocates blocks takes the file out of the tree first
//!   ([`crate::data::Files::take_out`]), and it stays out while it is in memory.
//! - A truncate cuts the item, so an item is never longer than its file is in the records. What
//!   follows its end reads as zeros when the file grows.
//!
//! A dirty page of such a block has a promise for a block of the device, like one in a hole: it can
//! always be written outside of the tree. The promise is returned when the bytes are in the tree.
//!
//! # Crash argument
//! - *In*: the bytes, the size and the end of their residency in the log are in one record.
//! - *Out*: the item is deleted by the record that names the block, and a log write with that
//!   record flushes the device first. So after any crash the bytes are in the tree or in the block.
//! - Bytes that the log holds for the block lie over the item, as over a block in place. Recovery
//!   puts both into a block and deletes the item (`kedge_store`, recovery).

use crate::error::Result;
use kedge_base::Ino;
use kedge_format::inline::{decode, key};
use kedge_format::record::RecordBuilder;
use kedge_store::Store;

/// The longest file whose data goes into the tree; 0 in an image without such data.
pub(crate) fn max(store: &Store) -> usize {
    store.geometry().inline_max as usize
}

/// The first bytes of a file, if they are in the tree. The caller looks between two records, as for
/// extents ([`crate::extents::find`]), and has found none over file block 0.
pub(crate) fn read(store: &Store, ino: Ino) -> Result<Option<Vec<u8>>> {
    let max = store.geometry().inline_max;
    if max == 0 {
        return Ok(None);
    }
    let Some(value) = store.get(key(ino))? else { return Ok(None) };
    decode(ino, &value, max)?;
    Ok(Some(value))
}

/// Whether the first bytes of a file are in the tree.
pub(crate) fn is_there(store: &Store, ino: Ino) -> Result<bool> {
    Ok(store.geometry().inline_max > 0 && store.get_with(key(ino), |_| ())?.is_some())
}

/// Cuts the item of a file to `size` bytes, if it is longer.
pub(crate) fn cut(store: &Store, record: &mut RecordBuilder, ino: Ino, size: u64) -> Result<()> {
    match read(store, ino)? {
        Some(_) if size == 0 => record.delete(key(ino)),
        Some(bytes) if bytes.len() as u64 > size => record.put(key(ino), &bytes[..size as usize]),
        _ => {}
    }
    Ok(())
}
