//! The procedures on one inode: they read and change attributes and data, and make them durable.

use crate::access::{Caller, EXECUTE, READ, S_ISGID, WRITE};
use crate::export::{Changed, Export};
use crate::figures::IO_MAX;
use crate::handle;
use crate::status::{OK, Outcome, Status, of_handle};
use crate::wire::{Around, Wanted, passes, read_guard};
use crate::xdr::{Decoded, Malformed, Reader, Writer};
use kedge_base::errno;
use kedgefs::{Attr, Error, FileKind, Ino, SetAttr, SetTime, Timespec};

pub(crate) fn getattr(export: &Export, _: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    match export.resolve(handle::read(args)?) {
        Ok(attr) => {
            w.u32(OK);
            export.identity.attr(w, &attr);
        }
        Err(status) => w.u32(status as u32),
    }
    Ok(())
}

pub(crate) fn setattr(
    export: &Export,
    caller: &Caller,
    args: &mut Reader<'_>,
    w: &mut Writer,
) -> Decoded<()> {
    let (handle, wanted, guard) = (handle::read(args)?, Wanted::read(args)?, read_guard(args)?);
    let mut around = Around::default();
    let outcome = set(export, caller, handle, &wanted, guard, &mut around);
    w.u32(outcome.map_or_else(|status| status as u32, |()| OK));
    export.identity.around(w, &around);
    Ok(())
}

fn set(
    export: &Export,
    caller: &Caller,
    handle: &[u8],
    wanted: &Wanted,
    guard: Option<Timespec>,
    around: &mut Around,
) -> Outcome<()> {
    wanted.check()?;
    let ino = export.change(handle, around, |attr| {
        if !passes(guard, attr) {
            return Err(Status::NotSync);
        }
        Ok(change_attributes(export, caller, attr, wanted)?.ino)
    })?;
    if wanted.size.is_some() {
        export.changed(Changed::Data(ino));
    }
    export.force_change(ino)
}

/// Makes the change that `wanted` describes. Fails if the caller may not make it. Rights that a
/// change of the size takes from a program go first, so that no crash leaves them with the new
/// contents.
pub(crate) fn change_attributes(
    export: &Export,
    caller: &Caller,
    attr: &Attr,
    wanted: &Wanted,
) -> Outcome<Attr> {
    let mut set = checked(export, caller, attr, wanted)?;
    let new_owner = wanted.uid.is_some() || wanted.gid.is_some();
    if attr.kind == FileKind::Regular && (new_owner || wanted.size.is_some()) {
        drop_capabilities(export, attr.ino)?;
    }
    if set.size.is_some() && wanted.mode.is_none() && set.mode.is_some() {
        let mode = SetAttr { mode: set.mode.take(), ..SetAttr::default() };
        export.fs.setattr(attr.ino, &mode).map_err(of_handle)?;
    }
    export.fs.setattr(attr.ino, &set).map_err(|e| match e.errno() {
        // A program writes the file without pause.
        errno::EBUSY => Status::Jukebox,
        _ => of_handle(e),
    })
}

/// Removes the capabilities of a program file before its contents or its owner change, whatever the
/// caller, as Linux does. Fails with NFS3ERR_PERM if an append-only file has any, because such a
/// file cannot lose its attributes.
fn drop_capabilities(export: &Export, file: Ino) -> Outcome<()> {
    const CAPABILITIES: &[u8] = b"security.capability";
    // A removal would reserve log space even for a file that has none.
    let removed = match export.fs.getxattr(file, CAPABILITIES) {
        Ok(_) => export.fs.removexattr(file, CAPABILITIES),
        Err(e) => Err(e),
    };
    match removed {
        Ok(()) | Err(Error::NoXattr) => Ok(()),
        Err(e) => Err(of_handle(e)),
    }
}

/// Converts `wanted` into the change that the library makes. Fails if the caller may not make it.
fn checked(export: &Export, caller: &Caller, attr: &Attr, wanted: &Wanted) -> Outcome<SetAttr> {
    let &Wanted { mut mode, uid, gid, size, atime, mtime } = wanted;
    if size.is_some() {
        match attr.kind {
            FileKind::Regular => caller.check_data(&export.fs, attr, WRITE)?,
            FileKind::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Inval),
        }
    }
    if mode.is_some() && !caller.owns(attr) {
        return Err(Status::Perm);
    }
    // An owner may set the uid only to the present one, and the gid only to a group of the owner.
    let keeps_user = uid.is_none_or(|uid| uid == attr.uid);
    let may_group = gid.is_none_or(|gid| gid == attr.gid || caller.is_member(gid));
    let gives_away = uid.is_some() || gid.is_some();
    if gives_away && !(caller.is_root() || caller.owns(attr) && keeps_user && may_group) {
        return Err(Status::Perm);
    }
    let times = [atime, mtime];
    if times.iter().any(Option::is_some) && !caller.owns(attr) {
        if times.iter().any(|time| matches!(time, Some(SetTime::At(_)))) {
            return Err(Status::Perm);
        }
        caller.check(&export.fs, attr, WRITE)?;
    }
    match mode {
        Some(mode) if !caller.is_root() && !caller.is_member(gid.unwrap_or(attr.gid)) => {
            return Ok(SetAttr {
                mode: Some(mode & !S_ISGID),
                uid,
                gid,
                size,
                atime,
                mtime,
                ..SetAttr::default()
            });
        }
        Some(_) => {}
        None if gives_away || size.is_some() && !caller.is_root() => mode = Caller::without_privilege(attr),
        None => {}
    }
    Ok(SetAttr { mode, uid, gid, size, atime, mtime, ..SetAttr::default() })
}

const ACCESS_READ: u32 = 0x01;
const ACCESS_LOOKUP: u32 = 0x02;
const ACCESS_MODIFY: u32 = 0x04;
const ACCESS_EXTEND: u32 = 0x08;
const ACCESS_DELETE: u32 = 0x10;
const ACCESS_EXECUTE: u32 = 0x20;

pub(crate) fn access(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (handle, asked) = (handle::read(args)?, args.u32()?);
    let outcome = export.resolve(handle).and_then(|attr| Ok((granted(export, caller, &attr)? & asked, attr)));
    w.u32(outcome.as_ref().map_or_else(|status| *status as u32, |_| OK));
    export.identity.post_op(w, outcome.as_ref().ok().map(|(_, attr)| attr));
    if let Ok((granted, _)) = outcome {
        w.u32(granted);
    }
    Ok(())
}

fn granted(export: &Export, caller: &Caller, attr: &Attr) -> Outcome<u32> {
    let is_dir = attr.kind == FileKind::Directory;
    let may = |wanted| caller.may(&export.fs, attr, wanted);
    let mut granted = 0;
    if may(READ)? {
        granted |= ACCESS_READ;
    }
    if may(EXECUTE)? {
        granted |= if is_dir { ACCESS_LOOKUP } else { ACCESS_EXECUTE };
    }
    // The client's kernel implements device files and pipes, so they can be written on a read-only
    // export.
    let is_here = matches!(attr.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    if !(is_here && export.is_read_only(attr.ino)?) && may(WRITE)? {
        granted |= ACCESS_MODIFY | ACCESS_EXTEND;
        if is_dir {
            granted |= ACCESS_DELETE;
        }
    }
    Ok(granted)
}

pub(crate) fn readlink(export: &Export, _: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let found = export.resolve(handle::read(args)?);
    let target = found.and_then(|attr| match attr.kind {
        FileKind::Symlink => export.fs.readlink(attr.ino).map_err(of_handle),
        _ => Err(Status::Inval),
    });
    w.u32(target.as_ref().map_or_else(|status| *status as u32, |_| OK));
    export.identity.post_op(w, found.as_ref().ok());
    if let Ok(target) = target {
        w.opaque(&target);
    }
    Ok(())
}

pub(crate) fn read(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (handle, offset, count) = (handle::read(args)?, args.u64()?, args.u32()?);
    match read_bytes(export, caller, handle, offset, count) {
        Ok((attr, bytes)) => {
            w.u32(OK);
            export.identity.post_op(w, Some(&attr));
            w.u32(bytes.len() as u32);
            w.bool(offset.saturating_add(bytes.len() as u64) >= attr.size);
            w.opaque(&bytes);
        }
        Err(status) => {
            w.u32(status as u32);
            export.identity.post_op(w, export.resolve(handle).ok().as_ref());
        }
    }
    Ok(())
}

fn read_bytes(
    export: &Export,
    caller: &Caller,
    handle: &[u8],
    offset: u64,
    count: u32,
) -> Outcome<(Attr, Vec<u8>)> {
    let ino = {
        let attr = export.resolve(handle)?;
        check_regular(&attr)?;
        caller.check_data(&export.fs, &attr, READ)?;
        attr.ino
    };
    let mut bytes = vec![0; count.min(IO_MAX) as usize];
    let len = export.fs.read(ino, offset, &mut bytes).map_err(of_handle)?;
    bytes.truncate(len);
    // The attributes are read after the data: the size decides whether the read reached the end.
    Ok((export.resolve(handle)?, bytes))
}

fn check_regular(attr: &Attr) -> Outcome<()> {
    match attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Status::IsDir),
        _ => Err(Status::Inval),
    }
}

/// `stable_how`.
const UNSTABLE: u32 = 0;
const DATA_SYNC: u32 = 1;
const FILE_SYNC: u32 = 2;

pub(crate) fn write(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (handle, offset, count, stable) = (handle::read(args)?, args.u64()?, args.u32()?, args.u32()?);
    let data = args.opaque(IO_MAX as usize)?;
    if stable > FILE_SYNC {
        return Err(Malformed);
    }
    let data = data.get(..count as usize).ok_or(Malformed)?;
    let mut around = Around::default();
    // Taken before the write: if data is lost between the write and the reply, the verifier
    // changes, and the client notices at its COMMIT.
    let verifier = export.verifier();
    let outcome = write_bytes(export, caller, handle, (offset, data), &mut around).and_then(|(ino, len)| {
        export.changed(Changed::Data(ino));
        match stable {
            UNSTABLE => {}
            _ => export.force_data(ino, stable == DATA_SYNC)?,
        }
        Ok(len)
    });
    w.u32(outcome.map_or_else(|status| status as u32, |_| OK));
    export.identity.around(w, &around);
    if let Ok(len) = outcome {
        w.u32(len as u32);
        w.u32(stable);
        w.u64(verifier);
    }
    Ok(())
}

fn write_bytes(
    export: &Export,
    caller: &Caller,
    handle: &[u8],
    (offset, data): (u64, &[u8]),
    around: &mut Around,
) -> Outcome<(Ino, usize)> {
    export.change(handle, around, |attr| {
        check_regular(attr)?;
        caller.check_data(&export.fs, attr, WRITE)?;
        if offset.checked_add(data.len() as u64).is_none() {
            return Err(Status::FBig);
        }
        if data.is_empty() {
            return Ok((attr.ino, 0));
        }
        drop_capabilities(export, attr.ino)?;
        if !caller.is_root()
            && let Some(mode) = Caller::without_privilege(attr)
        {
            let set = SetAttr { mode: Some(mode), before_append: true, ..SetAttr::default() };
            export.fs.setattr(attr.ino, &set).map_err(of_handle)?;
        }
        Ok((attr.ino, export.fs.write(attr.ino, offset, data).map_err(of_handle)?))
    })
}

pub(crate) fn commit(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (handle, _offset, _count) = (handle::read(args)?, args.u64()?, args.u32()?);
    let mut around = Around::default();
    let outcome = commit_file(export, caller, handle, &mut around);
    w.u32(outcome.map_or_else(|status| status as u32, |_| OK));
    export.identity.around(w, &around);
    if let Ok(verifier) = outcome {
        w.u64(verifier);
    }
    Ok(())
}

/// Makes the whole file durable, whatever range the call names. Returns the verifier as it is
/// afterwards: a loss that another call detects in the meantime may concern this file as well.
fn commit_file(export: &Export, caller: &Caller, handle: &[u8], around: &mut Around) -> Outcome<u64> {
    let ino = export.change(handle, around, |attr| {
        check_regular(attr)?;
        caller.check_data(&export.fs, attr, WRITE)?;
        Ok(attr.ino)
    })?;
    export.force_data(ino, false)?;
    Ok(export.verifier())
}
