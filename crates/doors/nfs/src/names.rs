//! The procedures on names in directories. Each change is durable before its reply. The change is
//! made under the lock of its directories; the force of the log follows without the lock, so that
//! concurrent changes share one.

use crate::access::{Caller, EXECUTE, WRITE};
use crate::export::{Changed, Export};
use crate::files::change_attributes;
use crate::handle;
use crate::status::{OK, Outcome, Status, of_handle};
use crate::wire::{Around, PERMISSIONS, Wanted, device};
use crate::xdr::{Decoded, Malformed, Reader, Writer};
use kedgefs::{Attr, Error, FileKind, Ino, RenameMode, SetAttr, SetTime, Timespec};

/// Limit for the bytes of a name that the server decodes. A name between [`NAME_MAX`] and this
/// limit fails with NFS3ERR_NAMETOOLONG.
const NAME_READ_MAX: usize = 4096;
/// Limit for the bytes of an entry's name.
const NAME_MAX: usize = 255;
const TARGET_READ_MAX: usize = 16 << 10;
const CHANGE: u32 = WRITE | EXECUTE;

/// A directory and a name in it.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: &'a [u8],
    name: &'a [u8],
}

impl<'a> Place<'a> {
    fn read(args: &mut Reader<'a>) -> Decoded<Place<'a>> {
        Ok(Place { dir: handle::read(args)?, name: args.opaque(NAME_READ_MAX)? })
    }

    /// Refuses names that no entry can have. `.` and `..` fail with the error `dots`.
    fn check(&self, dots: Status) -> Outcome<()> {
        match self.name {
            b"" => Err(Status::Inval),
            b"." | b".." => Err(dots),
            name if name.iter().any(|b| matches!(b, b'/' | 0)) => Err(Status::Inval),
            name if name.len() > NAME_MAX => Err(Status::NameTooLong),
            _ => Ok(()),
        }
    }
}

pub(crate) fn lookup(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let place = Place::read(args)?;
    let dir = export.resolve_dir(place.dir);
    let found = dir.and_then(|dir| {
        caller.check(&export.fs, &dir, EXECUTE)?;
        match place.name {
            b".." if export.is_top(dir.ino) => return Ok((export.handle(&dir)?, dir)),
            b"." | b".." => {}
            _ => place.check(Status::Inval)?,
        }
        let attr = export.fs.lookup(dir.ino, place.name)?;
        Ok((export.handle(&attr)?, attr))
    });
    match &found {
        Ok((handle, attr)) => {
            w.u32(OK);
            w.opaque(handle);
            export.identity.post_op(w, Some(attr));
        }
        Err(status) => w.u32(*status as u32),
    }
    export.identity.post_op(w, dir.ok().as_ref());
    Ok(())
}

/// Makes a new entry, and writes the results that all procedures of this kind share.
///
/// `run` runs under the lock of the directory, `then` without it.
fn make(
    export: &Export,
    caller: &Caller,
    place: &Place<'_>,
    w: &mut Writer,
    run: impl FnOnce(&Attr) -> Outcome<Attr>,
    then: impl FnOnce(Attr) -> Outcome<Attr>,
) {
    let mut around = Around::default();
    let made = make_durable(export, caller, place, &mut around, run, then);
    match &made {
        Ok(attr) => {
            w.u32(OK);
            export.post_op_handle(w, Some(attr));
            export.identity.post_op(w, Some(attr));
        }
        Err(status) => w.u32(*status as u32),
    }
    export.identity.around(w, &around);
}

fn make_durable(
    export: &Export,
    caller: &Caller,
    place: &Place<'_>,
    around: &mut Around,
    run: impl FnOnce(&Attr) -> Outcome<Attr>,
    then: impl FnOnce(Attr) -> Outcome<Attr>,
) -> Outcome<Attr> {
    place.check(Status::Exist)?;
    let made = then(change_dir(export, caller, place.dir, around, run)?)?;
    // Forcing the new inode's record also forces all earlier ones: its name and its directory.
    export.force_change(made.ino)?;
    Ok(made)
}

/// Runs a change of a directory, under its lock. Fails if the caller may not search the directory.
/// `run` checks the right to write, which some errors precede.
fn change_dir<T>(
    export: &Export,
    caller: &Caller,
    dir: &[u8],
    around: &mut Around,
    run: impl FnOnce(&Attr) -> Outcome<T>,
) -> Outcome<T> {
    export.change(dir, around, |dir| {
        if dir.kind != FileKind::Directory {
            return Err(Status::NotDir);
        }
        caller.check(&export.fs, dir, EXECUTE)?;
        run(dir)
    })
}

/// Fails with EXIST if the name exists, and only then checks the right to write: the order of
/// Linux.
fn check_new(export: &Export, caller: &Caller, dir: &Attr, name: &[u8]) -> Outcome<()> {
    match export.fs.lookup(dir.ino, name) {
        Ok(_) => Err(Status::Exist),
        Err(Error::NotFound) => caller.check(&export.fs, dir, CHANGE),
        Err(e) => Err(e.into()),
    }
}

const UNCHECKED: u32 = 0;
const GUARDED: u32 = 1;
const EXCLUSIVE: u32 = 2;

enum How {
    Unchecked(Wanted),
    Guarded(Wanted),
    Exclusive([u8; 8]),
}

pub(crate) fn create(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let place = Place::read(args)?;
    let how = match args.u32()? {
        UNCHECKED => How::Unchecked(Wanted::read(args)?),
        GUARDED => How::Guarded(Wanted::read(args)?),
        EXCLUSIVE => How::Exclusive(args.fixed()?),
        _ => return Err(Malformed),
    };
    let run = |dir: &Attr| match &how {
        How::Unchecked(wanted) => open_or_make(export, caller, dir, place.name, wanted),
        How::Guarded(wanted) => new_file(export, caller, dir, place.name, wanted),
        How::Exclusive(verifier) => exclusive(export, caller, dir, place.name, *verifier),
    };
    // CREATE with UNCHECKED changes an existing file at most by its size.
    let then = |file: Attr| match &how {
        How::Unchecked(Wanted { size: Some(size), .. }) if *size != file.size => {
            truncate(export, caller, &file, *size)
        }
        _ => Ok(file),
    };
    make(export, caller, &place, w, run, then);
    Ok(())
}

/// Returns the file of that name, or makes one. Another door to the file system may make the name
/// after it was not found; then it is looked up again.
fn open_or_make(export: &Export, caller: &Caller, dir: &Attr, name: &[u8], wanted: &Wanted) -> Outcome<Attr> {
    let find = || match export.fs.lookup(dir.ino, name) {
        Ok(found) if found.kind == FileKind::Regular => Some(Ok(found)),
        Ok(_) => Some(Err(Status::Exist)),
        Err(_) => None,
    };
    if let Some(found) = find() {
        return found;
    }
    match new_file(export, caller, dir, name, wanted) {
        Err(Status::Exist) => find().unwrap_or(Err(Status::Exist)),
        made => made,
    }
}

/// Sets the file's size under the file's own lock. The caller must not hold the directory's lock:
/// the two may be one stripe.
fn truncate(export: &Export, caller: &Caller, file: &Attr, size: u64) -> Outcome<Attr> {
    let handle = export.handle(file)?;
    let set = export.change(&handle, &mut Around::default(), |attr| {
        let wanted = Wanted { size: Some(size), ..Wanted::default() };
        change_attributes(export, caller, attr, &wanted)
    })?;
    export.changed(Changed::Data(set.ino));
    Ok(set)
}

fn new_file(export: &Export, caller: &Caller, dir: &Attr, name: &[u8], wanted: &Wanted) -> Outcome<Attr> {
    check_new(export, caller, dir, name)?;
    check_wanted(caller, wanted)?;
    let mode = caller.new_mode(dir, wanted.mode.unwrap_or(0o644));
    let made = export.fs.create(dir.ino, name, mode, caller.owner())?;
    finish(export, &made, wanted)
}

/// Refuses owners that the caller may not set, before anything is created.
fn check_wanted(caller: &Caller, wanted: &Wanted) -> Outcome<()> {
    wanted.check()?;
    let allowed = caller.is_root()
        || wanted.uid.is_none_or(|uid| uid == caller.uid)
            && wanted.gid.is_none_or(|gid| caller.is_member(gid));
    if allowed { Ok(()) } else { Err(Status::Perm) }
}

/// Sets the attributes of a new inode that its creation did not set.
fn finish(export: &Export, made: &Attr, wanted: &Wanted) -> Outcome<Attr> {
    let set = SetAttr {
        uid: wanted.uid.filter(|uid| *uid != made.uid),
        gid: wanted.gid.filter(|gid| *gid != made.gid),
        size: wanted.size.filter(|size| *size > 0 && made.kind == FileKind::Regular),
        atime: wanted.atime,
        mtime: wanted.mtime,
        ..SetAttr::default()
    };
    if set == SetAttr::default() {
        return Ok(*made);
    }
    export.fs.setattr(made.ino, &set).map_err(of_handle)
}

/// Makes a file with CREATE EXCLUSIVE. The client's verifier is stored in the time stamps, which
/// the client sets afterwards. So a repeated call is recognised even after a restart of the server.
/// One record makes the name and the time stamps: no crash leaves the name without the verifier.
fn exclusive(export: &Export, caller: &Caller, dir: &Attr, name: &[u8], verifier: [u8; 8]) -> Outcome<Attr> {
    let half = |bytes: &[u8]| {
        let n = bytes.iter().fold(0u32, |n, b| n << 8 | u32::from(*b));
        // The highest bit is dropped, so that every client accepts the number as a date.
        Timespec { sec: i64::from(n & 0x7fff_ffff), nsec: 0 }
    };
    let (atime, mtime) = (half(&verifier[..4]), half(&verifier[4..]));
    match export.fs.lookup(dir.ino, name) {
        Ok(found) if found.kind == FileKind::Regular && found.size == 0 => {
            return match found.atime == atime && found.mtime == mtime {
                true => Ok(found),
                false => Err(Status::Exist),
            };
        }
        Ok(_) => return Err(Status::Exist),
        Err(Error::NotFound) => {}
        Err(e) => return Err(e.into()),
    }
    caller.check(&export.fs, dir, CHANGE)?;
    let made = export.fs.tmpfile(dir.ino, 0, caller.owner())?;
    let times =
        SetAttr { atime: Some(SetTime::At(atime)), mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
    let set = export.fs.setattr(made.ino, &times);
    let named = set.and_then(|_| export.fs.link(made.ino, dir.ino, name));
    export.fs.unpin(made.ino, 1);
    Ok(named?)
}

pub(crate) fn mkdir(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (place, wanted) = (Place::read(args)?, Wanted::read(args)?);
    make(
        export,
        caller,
        &place,
        w,
        |dir| {
            check_new(export, caller, dir, place.name)?;
            check_wanted(caller, &wanted)?;
            let mode = wanted.mode.unwrap_or(0o755);
            let made = export.fs.mkdir(dir.ino, place.name, mode, caller.owner())?;
            finish(export, &made, &wanted)
        },
        Ok,
    );
    Ok(())
}

pub(crate) fn symlink(
    export: &Export,
    caller: &Caller,
    args: &mut Reader<'_>,
    w: &mut Writer,
) -> Decoded<()> {
    let (place, wanted) = (Place::read(args)?, Wanted::read(args)?);
    let target = args.opaque(TARGET_READ_MAX)?;
    make(
        export,
        caller,
        &place,
        w,
        |dir| {
            check_new(export, caller, dir, place.name)?;
            check_wanted(caller, &wanted)?;
            if target.contains(&0) {
                return Err(Status::Inval);
            }
            let made = export.fs.symlink(dir.ino, place.name, target, caller.owner())?;
            finish(export, &made, &wanted)
        },
        Ok,
    );
    Ok(())
}

pub(crate) fn mknod(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    const BLOCK: u32 = 3;
    const CHARACTER: u32 = 4;
    const SOCKET: u32 = 6;
    const FIFO: u32 = 7;
    let (place, type_of) = (Place::read(args)?, args.u32()?);
    let kind = match type_of {
        BLOCK => FileKind::BlockDevice,
        CHARACTER => FileKind::CharDevice,
        SOCKET => FileKind::Socket,
        FIFO => FileKind::Fifo,
        1 | 2 | 5 => {
            w.u32(Status::BadType as u32);
            export.identity.around(w, &Around::default());
            return Ok(());
        }
        _ => return Err(Malformed),
    };
    let wanted = Wanted::read(args)?;
    let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
    let numbers = if is_device { (args.u32()?, args.u32()?) } else { (0, 0) };
    make(
        export,
        caller,
        &place,
        w,
        |dir| {
            check_new(export, caller, dir, place.name)?;
            check_wanted(caller, &wanted)?;
            if is_device && !caller.is_root() {
                return Err(Status::Perm);
            }
            let rdev = device(numbers.0, numbers.1).ok_or(Status::Inval)?;
            let mode = kind.mode_bits() | caller.new_mode(dir, wanted.mode.unwrap_or(0o644)) & PERMISSIONS;
            let made = export.fs.mknod(dir.ino, place.name, mode, rdev, caller.owner())?;
            finish(export, &made, &wanted)
        },
        Ok,
    );
    Ok(())
}

pub(crate) fn remove(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let place = Place::read(args)?;
    take_away(export, caller, &place, w, |dir| Ok(export.fs.unlink(dir, place.name)?));
    Ok(())
}

pub(crate) fn rmdir(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let place = Place::read(args)?;
    take_away(export, caller, &place, w, |dir| Ok(export.fs.rmdir(dir, place.name)?));
    Ok(())
}

/// Reports that a name refers no longer to an inode.
fn name_gone(export: &Export, dir: Ino, name: &[u8], inode: &Attr) {
    if inode.kind != FileKind::Directory {
        export.changed(Changed::Name(dir, name));
    }
}

fn take_away(
    export: &Export,
    caller: &Caller,
    place: &Place<'_>,
    w: &mut Writer,
    run: impl FnOnce(Ino) -> Outcome<()>,
) {
    let mut around = Around::default();
    let outcome = place.check(Status::Inval).and_then(|()| {
        let (dir, victim) = change_dir(export, caller, place.dir, &mut around, |dir| {
            let victim = export.fs.lookup(dir.ino, place.name)?;
            caller.check(&export.fs, dir, CHANGE)?;
            caller.check_sticky(dir, &victim)?;
            run(dir.ino)?;
            Ok((dir.ino, victim))
        })?;
        name_gone(export, dir, place.name, &victim);
        export.force_change(dir)
    });
    w.u32(outcome.map_or_else(|status| status as u32, |()| OK));
    export.identity.around(w, &around);
}

pub(crate) fn rename(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (from, to) = (Place::read(args)?, Place::read(args)?);
    let (mut around_from, mut around_to) = (Around::default(), Around::default());
    let outcome = rename_durably(export, caller, (&from, &to), (&mut around_from, &mut around_to));
    w.u32(outcome.map_or_else(|status| status as u32, |()| OK));
    export.identity.around(w, &around_from);
    export.identity.around(w, &around_to);
    Ok(())
}

fn rename_durably(
    export: &Export,
    caller: &Caller,
    (from, to): (&Place<'_>, &Place<'_>),
    (around_from, around_to): (&mut Around, &mut Around),
) -> Outcome<()> {
    from.check(Status::Inval)?;
    to.check(Status::Inval)?;
    let (source, target) = (export.resolve_dir(from.dir)?.ino, export.resolve_dir(to.dir)?.ino);
    let (moved, replaced) = {
        let _locked = export.lock_both(source, target);
        let (source, target) = (export.resolve_dir(from.dir)?, export.resolve_dir(to.dir)?);
        (around_from.before, around_to.before) = (export.before(source), export.before(target));
        let outcome = rename_locked(export, caller, (&source, from.name), (&target, to.name));
        around_from.after = export.fs.getattr(source.ino).ok();
        around_to.after = export.fs.getattr(target.ino).ok();
        outcome?
    };
    name_gone(export, source, from.name, &moved);
    if let Some(replaced) = replaced {
        name_gone(export, target, to.name, &replaced);
    }
    // One record changes both directories, so forcing the target's is enough.
    export.force_change(target)
}

/// Returns the inode that has another name now, and the one that has lost a name to it.
fn rename_locked(
    export: &Export,
    caller: &Caller,
    (source, old): (&Attr, &[u8]),
    (target, new): (&Attr, &[u8]),
) -> Outcome<(Attr, Option<Attr>)> {
    caller.check(&export.fs, source, EXECUTE)?;
    caller.check(&export.fs, target, EXECUTE)?;
    let moved = export.fs.lookup(source.ino, old)?;
    caller.check(&export.fs, source, CHANGE)?;
    caller.check(&export.fs, target, CHANGE)?;
    caller.check_sticky(source, &moved)?;
    let replaced = match export.fs.lookup(target.ino, new) {
        Ok(replaced) => Some(replaced),
        Err(Error::NotFound) => None,
        Err(e) => return Err(e.into()),
    };
    if let Some(replaced) = &replaced {
        caller.check_sticky(target, replaced)?;
    }
    // A new parent changes the entry `..` of a moved directory, so the caller must have write
    // access to it.
    if moved.kind == FileKind::Directory && source.ino != target.ino {
        caller.check(&export.fs, &moved, WRITE)?;
    }
    export.fs.rename(source.ino, old, target.ino, new, RenameMode::Replace)?;
    Ok((moved, replaced))
}

pub(crate) fn link(export: &Export, caller: &Caller, args: &mut Reader<'_>, w: &mut Writer) -> Decoded<()> {
    let (file, place) = (handle::read(args)?, Place::read(args)?);
    let mut around = Around::default();
    let outcome = link_durably(export, caller, file, &place, &mut around);
    w.u32(outcome.map_or_else(|status| status as u32, |()| OK));
    export.identity.post_op(w, export.resolve(file).ok().as_ref());
    export.identity.around(w, &around);
    Ok(())
}

fn link_durably(
    export: &Export,
    caller: &Caller,
    file: &[u8],
    place: &Place<'_>,
    around: &mut Around,
) -> Outcome<()> {
    place.check(Status::Exist)?;
    let dir = change_dir(export, caller, place.dir, around, |dir| {
        let file = export.resolve(file)?;
        if file.kind == FileKind::Directory {
            return Err(Status::Perm);
        }
        check_new(export, caller, dir, place.name)?;
        export.fs.link(file.ino, dir.ino, place.name)?;
        Ok(dir.ino)
    })?;
    export.force_change(dir)
}
