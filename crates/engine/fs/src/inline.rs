//! Data of small files in the tree ([`kedge_format::inline`]).
//!
//! An inline item contains the data of file block 0, as an extent names the blocks of others. It
//! changes only by records, each of which has all bytes of the block.
//! - *In*: an fsync or a writeback puts the block into the tree if the file is small enough and the
//!   block has no extent. The page must not be log-resident, since the log bytes promised for the
//!   end of a residency do not cover the bytes of the block.
//! - *Out*: the record that maps the block to an extent deletes the item. An operation that moves,
//!   shares or preallocates blocks takes the file out of the tree first
//!   ([`crate::data::Files::take_out`]); the file then stays out while its inode is in memory.
//! - A truncate cuts the item, so an item is never longer than the logged size of its file. When
//!   the file grows, the bytes after the end of the item read as zeros.
//!
//! A dirty page of such a block has a promise for a block of the device, like a page in a hole: so
//! it can always be written outside of the tree. The promise is returned when the bytes are in the
//! tree.
//!
//! # Crash argument
//! - *In*: the bytes, the size and the end of the block's residency in the log are in one record.
//! - *Out*: the record that names the block deletes the item, and a log write with that record
//!   flushes the device first. So after any crash the bytes are in the tree or in the block.
//! - Bytes of the block that the log has replace those of the item, as they replace those of a
//!   block in place. Recovery puts both into a block and deletes the item (`kedge_store`,
//!   recovery).

use crate::error::Result;
use kedge_base::Ino;
use kedge_format::inline::{decode, key};
use kedge_format::record::RecordBuilder;
use kedge_store::Store;

/// The largest size in bytes of a file whose data goes into the tree; 0 in an image without such
/// data.
pub(crate) fn max(store: &Store) -> usize {
    store.geometry().inline_max as usize
}

/// Returns the inline data of a file, if it has some. The caller reads between two records, as for
/// extents ([`crate::extents::find`]), and has found no extent at file block 0.
pub(crate) fn read(store: &Store, ino: Ino) -> Result<Option<Vec<u8>>> {
    let max = store.geometry().inline_max;
    if max == 0 {
        return Ok(None);
    }
    let Some(value) = store.get(key(ino))? else { return Ok(None) };
    decode(ino, &value, max)?;
    Ok(Some(value))
}

/// Whether a file has inline data.
pub(crate) fn is_there(store: &Store, ino: Ino) -> Result<bool> {
    Ok(store.geometry().inline_max > 0 && store.get_with(key(ino), |_| ())?.is_some())
}

/// Cuts the inline item of a file to `size` bytes, if the item is longer.
pub(crate) fn cut(store: &Store, record: &mut RecordBuilder, ino: Ino, size: u64) -> Result<()> {
    match read(store, ino)? {
        Some(_) if size == 0 => record.delete(key(ino)),
        Some(bytes) if bytes.len() as u64 > size => record.put(key(ino), &bytes[..size as usize]),
        _ => {}
    }
    Ok(())
}
