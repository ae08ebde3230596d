//! READDIR and READDIRPLUS.
//!
//! The cookies are those of the library: they stay valid while the directory changes and after a
//! restart of the server. So the cookie verifier is always zero.

use crate::access::{Caller, READ};
use crate::export::Export;
use crate::handle;
use crate::status::{OK, Outcome, Status, of_handle};
use crate::wire::ATTR_LEN;
use crate::xdr::{Decoded, Reader, Writer, padded};
use kedgefs::{Attr, Ino};

/// Limit for the bytes of one reply.
const REPLY_MAX: usize = 256 << 10;
/// Bytes of a reply without its entries: status, attributes of the directory, cookie verifier, end
/// of the list.
const AROUND: usize = 4 + (4 + ATTR_LEN) + 8 + 8;
/// Bytes of the attributes and the handle of an entry of READDIRPLUS.
const PLUS: usize = (4 + ATTR_LEN) + (4 + 4 + handle::LEN);
const NO_VERIFIER: u64 = 0;

struct Entry {
    ino: Ino,
    name: Vec<u8>,
    cookie: u64,
}

struct Page {
    dir: Attr,
    entries: Vec<Entry>,
    is_end: bool,
}

/// The arguments of a READDIR or READDIRPLUS.
struct Asked<'a> {
    handle: &'a [u8],
    cookie: u64,
    verifier: u64,
    /// Limit for the bytes of inode numbers, names and cookies.
    names_max: usize,
    /// Limit for the bytes of the whole result.
    reply_max: usize,
    /// Bytes of each entry besides its inode number, name and cookie.
    extra: usize,
}

/// Collects a page of entries. Their attributes are read later, because the callback of `readdir`
/// must not call the library.
fn collect(export: &Export, caller: &Caller, asked: &Asked<'_>) -> Outcome<Page> {
    let dir = export.resolve_dir(asked.handle)?;
    caller.check(&export.fs, &dir, READ)?;
    if asked.verifier != NO_VERIFIER {
        return Err(Status::BadCookie);
    }
    let (mut entries, mut names, mut total, mut is_end) = (Vec::new(), 0, AROUND, true);
    let listed = export.fs.readdir(dir.ino, asked.cookie, &mut |entry| {
        let len = 4 + 8 + 4 + padded(entry.name.len()) + 8;
        names += len;
        total += len + asked.extra;
        let fits = names <= asked.names_max && total <= asked.reply_max;
        if fits {
            let ino = if entry.name == b".." && export.is_top(dir.ino) { dir.ino } else { entry.ino };
            entries.push(Entry { ino, name: entry.name.to_vec(), cookie: entry.cookie });
        }
        is_end &= fits;
        fits
    });
    listed.map_err(of_handle)?;
    if entries.is_empty() && !is_end {
        return Err(Status::TooSmall);
    }
    // The attributes are read after the listing, which may change the access time.
    Ok(Page { dir: export.fs.getattr(dir.ino).map_err(of_handle)?, entries, is_end })
}

fn write_page(
    export: &Export,
    page: Outcome<Page>,
    handle: &[u8],
    w: &mut Writer,
    plus: impl Fn(&mut Writer, &Entry),
) {
    match page {
        Ok(page) => {
            w.u32(OK);
            export.identity.post_op(w, Some(&page.dir));
            w.u64(NO_VERIFIER);
            for entry in &page.entries {
                w.bool(true);
                w.u64(entry.ino.0);
                w.opaque(&entry.name);
                w.u64(entry.cookie);
                plus(w, entry);
            }
            w.bool(false);
            w.bool(page.is_end);
        }
        Err(status) => {
            w.u32(status as u32);
            export.identity.post_op(w, export.resolve(handle).ok().as_ref());
        }
    }
}

pub(crate) fn readdir(
    export: &Export,
    caller: &Caller,
    args: &mut Reader<'_>,
    w: &mut Writer,
) -> Decoded<()> {
    let (handle, cookie, verifier) = (handle::read(args)?, args.u64()?, args.u64()?);
    let reply_max = (args.u32()? as usize).min(REPLY_MAX);
    let asked = Asked { handle, cookie, verifier, names_max: reply_max, reply_max, extra: 0 };
    write_page(export, collect(export, caller, &asked), handle, w, |_, _| ());
    Ok(())
}

pub(crate) fn readdirplus(
    export: &Export,
    caller: &Caller,
    args: &mut Reader<'_>,
    w: &mut Writer,
) -> Decoded<()> {
    let (handle, cookie, verifier) = (handle::read(args)?, args.u64()?, args.u64()?);
    let names_max = (args.u32()? as usize).min(REPLY_MAX);
    let reply_max = (args.u32()? as usize).min(REPLY_MAX);
    let asked = Asked { handle, cookie, verifier, names_max, reply_max, extra: PLUS };
    write_page(export, collect(export, caller, &asked), handle, w, |w, entry| {
        // An entry that was removed since the listing gets neither attributes nor handle. The
        // client sends a LOOKUP if it needs them.
        let attr = export.fs.getattr(entry.ino).ok().filter(|attr| attr.nlink > 0);
        export.identity.post_op(w, attr.as_ref());
        export.post_op_handle(w, attr.as_ref());
    });
    Ok(())
}
