//! FSSTAT, FSINFO and PATHCONF.

use crate::access::Caller;
use crate::export::Export;
use crate::handle;
use crate::status::OK;
use crate::xdr::{Decoded, Reader, Writer};
use kedgefs::Attr;

/// The most bytes of one READ or WRITE.
pub(crate) const IO_MAX: u32 = 256 << 10;
const DIRECTORY_PREFERRED: u32 = 64 << 10;
const BLOCK: u32 = 4096;
/// The largest file that the format allows.
const FILE_SIZE_MAX: u64 = (1 << 55) - 4096;
const LINK_MAX: u32 = 65_000;
/// FSF_LINK, FSF_SYMLINK, FSF_HOMOGENEOUS (same PATHCONF for all files) and FSF_CANSETTIME.
const PROPERTIES: u32 = 0x1 | 0x2 | 0x8 | 0x10;

/// Resolves the handle of the call, and writes status and attributes. Returns the attributes if the
/// caller must write the figures.
fn begin(export: &Export, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<Option<Attr>> {
    let found = export.resolve(handle::read(args)?);
    w.u32(found.as_ref().map_or_else(|status| *status as u32, |_: &Attr| OK));
    export.identity.post_op(w, found.as_ref().ok());
    Ok(found.ok())
}

pub(crate) fn fsstat(export: &Export, _: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    if let Some(at) = begin(export, args, w)? {
        // If a limit applies to the inode, the figures are those of the limit.
        let stat = export.fs.statfs_at(at.ino).unwrap_or_else(|_| export.fs.statfs());
        let bytes = |blocks: u64| blocks.saturating_mul(stat.block_size.into());
        for figure in [bytes(stat.blocks), bytes(stat.blocks_free), bytes(stat.blocks_available)] {
            w.u64(figure);
        }
        for figure in [stat.inodes, stat.inodes_free, stat.inodes_free] {
            w.u64(figure);
        }
        w.u32(0); // invarsec: the figures may change at any time
    }
    Ok(())
}

pub(crate) fn fsinfo(export: &Export, _: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    if begin(export, args, w)?.is_some() {
        for figure in [IO_MAX, IO_MAX, BLOCK, IO_MAX, IO_MAX, BLOCK, DIRECTORY_PREFERRED] {
            w.u32(figure);
        }
        w.u64(FILE_SIZE_MAX);
        w.u32(0); // time_delta, with the next: times have a resolution of 1 ns
        w.u32(1);
        w.u32(PROPERTIES);
    }
    Ok(())
}

pub(crate) fn pathconf(export: &Export, _: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    if begin(export, args, w)?.is_some() {
        w.u32(LINK_MAX);
        w.u32(export.fs.statfs().name_max);
        w.bool(true); // no_trunc: a longer name is an error
        w.bool(true); // chown_restricted: only root may give files away
        w.bool(false); // case_insensitive
        w.bool(true); // case_preserving
    }
    Ok(())
}
