//! The effect of the flags of chattr(1) in the library, their inheritance, and their state after a
//! crash.

use kedge_device::MemDevice;
use kedgefs::*;
use std::sync::Arc;

const OWNER: Owner = Owner { uid: 0, gid: 0 };
const NONE: FileFlags = FileFlags::from_bits(0).unwrap();

fn fresh() -> (Arc<MemDevice>, Arc<ManualClock>, FileSystem) {
    let device = Arc::new(MemDevice::new(32 << 20));
    let clock = Arc::new(ManualClock::default());
    let options = FormatOptions { immutable: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &options).unwrap();
    let fs = FileSystem::open(device.clone(), clock.clone(), MountOptions::default()).unwrap();
    (device, clock, fs)
}

fn file(fs: &FileSystem, dir: Ino, name: &[u8]) -> Ino {
    let ino = fs.create(dir, name, 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, b"some bytes").unwrap();
    ino
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T>) {
    assert!(matches!(answer, Err(Error::NotPermitted(_))), "{answer:?}");
}

fn bytes(fs: &FileSystem, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let n = fs.read(ino, 0, &mut bytes).unwrap();
    bytes.truncate(n);
    bytes
}

/// Tries to change a file, its attributes and its names in every way.
fn change_in_every_way(fs: &FileSystem, ino: Ino) -> Vec<Result<()>> {
    let set = |set: SetAttr| fs.setattr(ino, &set).map(drop);
    let at = Some(SetTime::At(Timespec { sec: 5, nsec: 5 }));
    vec![
        fs.write(ino, 3, b"changed").map(drop),
        fs.write_with(ino, 0, b"changed", WriteMode::from_cache()).map(drop),
        set(SetAttr { size: Some(3), ..SetAttr::default() }),
        set(SetAttr { size: Some(1 << 20), ..SetAttr::default() }),
        set(SetAttr { mode: Some(0o600), ..SetAttr::default() }),
        set(SetAttr { uid: Some(7), gid: Some(7), ..SetAttr::default() }),
        set(SetAttr { atime: at, ..SetAttr::default() }),
        set(SetAttr { mtime: at, ..SetAttr::default() }),
        fs.fallocate(ino, FallocateMode::PunchHole, 0, 4),
        fs.fallocate(ino, FallocateMode::ZeroRange { keep_size: true }, 0, 4),
        fs.setxattr(ino, b"user.new", b"value", XattrMode::Any),
        fs.removexattr(ino, b"user.old"),
        fs.link(ino, Ino::ROOT, b"second").map(drop),
        fs.unlink(Ino::ROOT, b"f"),
        fs.rename(Ino::ROOT, b"f", Ino::ROOT, b"moved", RenameMode::Replace),
        fs.rename(Ino::ROOT, b"other", Ino::ROOT, b"f", RenameMode::Replace),
        fs.rename(Ino::ROOT, b"other", Ino::ROOT, b"f", RenameMode::Exchange),
        fs.rename(Ino::ROOT, b"f", Ino::ROOT, b"other", RenameMode::Exchange),
        fs.rename(
            Ino::ROOT,
            b"f",
            Ino::ROOT,
            b"moved",
            RenameMode::Whiteout { owner: OWNER, replace: false },
        ),
    ]
}

#[test]
fn an_immutable_file_stays_as_it_is() {
    let (device, clock, fs) = fresh();
    let ino = file(&fs, Ino::ROOT, b"f");
    file(&fs, Ino::ROOT, b"other");
    fs.setxattr(ino, b"user.old", b"value", XattrMode::Any).unwrap();
    fs.set_flags(ino, FileFlags::IMMUTABLE | FileFlags::NODUMP).unwrap();
    let before = fs.getattr(ino).unwrap();
    assert_eq!(before.flags.bits(), 0x50);
    clock.advance(std::time::Duration::from_secs(5));
    for (i, answer) in change_in_every_way(&fs, ino).into_iter().enumerate() {
        assert!(matches!(answer, Err(Error::NotPermitted(_))), "way {i}: {answer:?}");
    }
    refused(fs.setattr(ino, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }));
    refused(fs.write(ino, 10, b"behind the end"));
    refused(fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, 0, 1 << 20));
    assert_eq!(fs.getattr(ino).unwrap(), before);
    assert_eq!(bytes(&fs, ino), b"some bytes");
    fs.fsync(ino, false).unwrap();
    drop(fs);

    // The flag is in force after a crash, until it is cleared.
    let fs = FileSystem::open(device.clone(), clock, MountOptions::default()).unwrap();
    refused(fs.write(ino, 3, b"changed"));
    assert_eq!(bytes(&fs, ino), b"some bytes");
    fs.set_flags(ino, NONE).unwrap();
    for (i, answer) in change_in_every_way(&fs, ino).into_iter().take(12).enumerate() {
        assert!(answer.is_ok(), "way {i}: {answer:?}");
    }
    fs.close().unwrap();
    let report = kedge_fsck::check(device, &kedge_fsck::CheckOptions::default());
    assert!(report.is_clean(), "{report}");
}

#[test]
fn an_append_only_file_grows_at_its_end() {
    let (_, _, fs) = fresh();
    let ino = file(&fs, Ino::ROOT, b"f");
    file(&fs, Ino::ROOT, b"other");
    fs.setxattr(ino, b"user.old", b"value", XattrMode::Any).unwrap();
    fs.set_flags(ino, FileFlags::APPEND).unwrap();
    for (i, answer) in change_in_every_way(&fs, ino).into_iter().enumerate() {
        assert!(matches!(answer, Err(Error::NotPermitted(_))), "way {i}: {answer:?}");
    }
    fs.setattr(ino, &SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).unwrap();
    fs.fallocate(ino, FallocateMode::Allocate { keep_size: true }, 0, 1 << 20).unwrap();
    assert_eq!(fs.write(ino, 10, b", and more").unwrap(), 10);
    // The kernel writes its cached page from the start: the old bytes, then the new ones.
    let page = |text: &[u8]| fs.write_with(ino, 0, text, WriteMode::from_cache());
    assert_eq!(page(b"some bytes, and more, and more").unwrap(), 30);
    refused(page(b"some BYTES, and more, and more, and more"));
    assert_eq!(page(b"some").unwrap(), 4);
    refused(fs.write(ino, 0, b"some"));
    assert_eq!(bytes(&fs, ino), b"some bytes, and more, and more");
    // With both flags not even an append is allowed, for any writer.
    fs.set_flags(ino, FileFlags::APPEND | FileFlags::IMMUTABLE).unwrap();
    refused(page(b"some bytes, and more, and more"));
    refused(fs.write_with(ino, 30, b"!", WriteMode::from_cache()));
    refused(fs.write_with(ino, 30, b"!", WriteMode::default().with_whole(true)));
    assert_eq!(bytes(&fs, ino), b"some bytes, and more, and more");
}

/// A caller clears these bits before an append by another user.
#[test]
fn an_append_only_file_may_lose_its_set_id_bits() {
    let (_, _, fs) = fresh();
    let ino = fs.create(Ino::ROOT, b"f", 0o6711, OWNER).unwrap().ino;
    fs.set_flags(ino, FileFlags::APPEND).unwrap();
    let drop = SetAttr { mode: Some(0o666), before_append: true, ..SetAttr::default() };
    refused(fs.setattr(ino, &SetAttr { before_append: false, ..drop }));
    refused(fs.setattr(ino, &SetAttr { uid: Some(1), ..drop }));
    refused(fs.setattr(ino, &SetAttr { mtime: Some(SetTime::At(Timespec::default())), ..drop }));
    assert_eq!(fs.setattr(ino, &drop).unwrap().mode & 0o7777, 0o711);
    fs.set_flags(ino, FileFlags::IMMUTABLE).unwrap();
    refused(fs.setattr(ino, &drop));
}

#[test]
fn names_of_a_fixed_directory_stay() {
    let (_, _, fs) = fresh();
    let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).unwrap().ino;
    let ino = file(&fs, dir, b"f");
    file(&fs, Ino::ROOT, b"f");
    fs.mkdir(dir, b"sub", 0o755, OWNER).unwrap();
    let taking = || {
        vec![
            fs.unlink(dir, b"f"),
            fs.rmdir(dir, b"sub"),
            fs.rename(dir, b"f", Ino::ROOT, b"out", RenameMode::Replace),
            fs.rename(dir, b"f", dir, b"g", RenameMode::Replace),
            fs.rename(Ino::ROOT, b"f", dir, b"f", RenameMode::Replace),
            fs.rename(Ino::ROOT, b"f", dir, b"f", RenameMode::Exchange),
            fs.rmdir(Ino::ROOT, b"d"),
            fs.rename(Ino::ROOT, b"d", Ino::ROOT, b"e", RenameMode::Replace),
        ]
    };
    let adding = || {
        vec![
            fs.create(dir, b"new", 0o644, OWNER).map(drop),
            fs.mkdir(dir, b"newdir", 0o755, OWNER).map(drop),
            fs.symlink(dir, b"newlink", b"f", OWNER).map(drop),
            fs.mknod(dir, b"fifo", FileKind::Fifo.mode_bits() | 0o600, 0, OWNER).map(drop),
            fs.tmpfile(dir, 0o600, OWNER).map(drop),
            fs.link(ino, dir, b"hard").map(drop),
            fs.rename(Ino::ROOT, b"f", dir, b"in", RenameMode::Replace),
        ]
    };
    fs.set_flags(dir, FileFlags::IMMUTABLE).unwrap();
    taking().into_iter().chain(adding()).for_each(refused);
    // The contents of files in the directory may change.
    fs.write(ino, 0, b"SOME").unwrap();
    fs.set_flags(dir, FileFlags::APPEND).unwrap();
    taking().into_iter().for_each(refused);
    for (i, answer) in adding().into_iter().enumerate() {
        assert!(answer.is_ok(), "way {i}: {answer:?}");
    }
}

/// The names of trees are in the directory too, though it has no entry for them.
#[test]
fn names_of_trees_in_a_fixed_directory_stay() {
    let (_, _, fs) = fresh();
    let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).unwrap().ino;
    fs.fork(Ino::ROOT, dir, b"fork", false).unwrap();
    let other = fs.fork(Ino::ROOT, Ino::ROOT, b"other", false).unwrap().ino;
    let taking = || {
        vec![
            fs.delete_tree(dir, b"fork"),
            fs.rename(dir, b"fork", Ino::ROOT, b"out", RenameMode::Replace),
            fs.rename_tree(dir, b"fork", dir, b"moved"),
            fs.roll_back(other, dir, b"fork").map(drop),
            fs.commit_tree(other, dir, b"fork", true),
        ]
    };
    for flags in [FileFlags::IMMUTABLE, FileFlags::APPEND] {
        fs.set_flags(dir, flags).unwrap();
        taking().into_iter().for_each(refused);
        assert!(fs.lookup(dir, b"fork").is_ok());
    }
    fs.set_flags(dir, NONE).unwrap();
    fs.rename_tree(dir, b"fork", dir, b"moved").unwrap();
    fs.delete_tree(dir, b"moved").unwrap();
}

#[test]
fn a_directory_hands_on_what_forbids_nothing() {
    let (_, _, fs) = fresh();
    let dir = fs.mkdir(Ino::ROOT, b"d", 0o755, OWNER).unwrap().ino;
    let own = FileFlags::NODUMP | FileFlags::NOATIME;
    fs.set_flags(dir, own | FileFlags::APPEND).unwrap();
    assert_eq!(fs.create(dir, b"f", 0o644, OWNER).unwrap().flags, own);
    assert_eq!(fs.mkdir(dir, b"sub", 0o755, OWNER).unwrap().flags, own);
    assert_eq!(fs.tmpfile(dir, 0o644, OWNER).unwrap().flags, own);
    assert_eq!(fs.create(Ino::ROOT, b"g", 0o644, OWNER).unwrap().flags, NONE);
}

#[test]
fn reading_what_has_no_access_time_moves_none() {
    let (_, clock, fs) = fresh();
    let (with, without) = (file(&fs, Ino::ROOT, b"with"), file(&fs, Ino::ROOT, b"without"));
    fs.set_flags(without, FileFlags::NOATIME).unwrap();
    let atime = |ino| fs.getattr(ino).unwrap().atime;
    let before = (atime(with), atime(without));
    clock.advance(std::time::Duration::from_secs(3));
    assert_eq!((bytes(&fs, with), bytes(&fs, without)), (b"some bytes".to_vec(), b"some bytes".to_vec()));
    assert!(atime(with) > before.0);
    assert_eq!(atime(without), before.1);
}

#[test]
fn what_has_no_flags_is_refused() {
    let (_, _, fs) = fresh();
    let link = fs.symlink(Ino::ROOT, b"l", b"f", OWNER).unwrap().ino;
    assert!(matches!(fs.set_flags(link, FileFlags::NODUMP), Err(Error::NotSupported(_))));
    assert_eq!(FileFlags::from_bits(0x8), None);
    assert_eq!(FileFlags::from_bits(0x8000_0010), None);
}
