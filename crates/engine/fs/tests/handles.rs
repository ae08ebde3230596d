//! Paths and open files on an image behave like those of std::fs.

use kedgefs::device::{FileDevice, OpenOptions as DeviceOptions};
use kedgefs::*;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

fn root() -> Dir {
    FileSystem::in_memory(32 << 20).unwrap().root()
}

#[track_caller]
fn refused<T>(result: std::io::Result<T>, kind: ErrorKind) {
    assert_eq!(result.err().map(|e| e.kind()), Some(kind));
}

fn names(dir: &Dir, path: &str) -> Vec<String> {
    let mut names: Vec<_> =
        dir.read_dir(path).unwrap().map(|e| e.unwrap().name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_read_written_and_sought() {
    let root = root();
    let mut file = root.open_with("f", &OpenOptions::new().read(true).write(true).create_new(true)).unwrap();
    file.write_all(b"hello, world").unwrap();
    assert_eq!(file.seek(SeekFrom::Start(7)).unwrap(), 7);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "world");
    assert_eq!(file.seek(SeekFrom::Current(-5)).unwrap(), 7);
    file.write_all(b"W").unwrap();
    assert_eq!(file.seek(SeekFrom::End(2)).unwrap(), 14);
    file.write_all(b"!").unwrap();
    assert_eq!(root.read("f").unwrap(), b"hello, World\0\0!");
    refused(file.seek(SeekFrom::End(-16)), ErrorKind::InvalidInput);
    refused(file.seek(SeekFrom::Start(u64::MAX)), ErrorKind::InvalidInput);
    assert_eq!(file.stream_position().unwrap(), 15, "a seek that is refused moves nothing");
    file.set_len(5).unwrap();
    assert_eq!(file.read(&mut [0; 8]).unwrap(), 0, "behind the end");
    file.write_all_at(1, b"E").unwrap();
    let mut byte = [0; 1];
    assert_eq!((file.read_at(1, &mut byte).unwrap(), byte), (1, *b"E"));
    assert_eq!(root.read("f").unwrap(), b"hEllo");
    file.sync_all().unwrap();
    file.sync_data().unwrap();
}

#[test]
fn how_a_file_is_opened() {
    let root = root();
    root.write("f", "long text").unwrap();
    root.create_dir("d").unwrap();
    refused(root.open("gone"), ErrorKind::NotFound);
    refused(root.open("f/x"), ErrorKind::NotADirectory);
    refused(root.open("f/"), ErrorKind::NotADirectory);
    refused(root.open(""), ErrorKind::NotFound);
    refused(root.open("d"), ErrorKind::IsADirectory);
    refused(root.create("d"), ErrorKind::IsADirectory);
    refused(root.create("/"), ErrorKind::IsADirectory);
    refused(root.open_with("f", &OpenOptions::new()), ErrorKind::InvalidInput);
    refused(root.open_with("f", &OpenOptions::new().read(true).truncate(true)), ErrorKind::InvalidInput);
    refused(root.open_with("f", &OpenOptions::new().write(true).create_new(true)), ErrorKind::AlreadyExists);
    refused(root.open("f").unwrap().write(b"x"), ErrorKind::PermissionDenied);
    refused(root.open("f").unwrap().set_len(0), ErrorKind::PermissionDenied);
    let writes = root.open_with("f", &OpenOptions::new().write(true)).unwrap();
    refused((&writes).read(&mut [0]), ErrorKind::PermissionDenied);
    (&writes).write_all(b"L").unwrap();
    assert_eq!(root.read_to_string("f").unwrap(), "Long text");
    root.write("f", "short").unwrap();
    assert_eq!(root.read_to_string("f").unwrap(), "short", "truncated first");
    let made = OpenOptions::new().write(true).create(true).mode(0o600);
    let file = root.clone().with_owner(Owner { uid: 7, gid: 8 }).open_with("mine", &made).unwrap();
    let attr = file.metadata().unwrap();
    assert_eq!((attr.mode & 0o7777, attr.uid, attr.gid), (0o600, 7, 8));
}

#[test]
fn an_open_file_stays_until_it_is_closed() {
    let root = root();
    root.write("f", "kept").unwrap();
    let mut file = root.open("f").unwrap();
    root.remove_file("f").unwrap();
    assert!(!root.try_exists("f").unwrap());
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "kept");
    let ino = file.ino();
    drop(file);
    assert!(root.file_system().getattr(ino).is_err(), "the last one that had it open is gone");
}

/// Another thread keeps removing the name. An open finds the file or does not; a file that it finds
/// can be used.
#[test]
fn opening_beside_removing() {
    let root = root();
    std::thread::scope(|scope| {
        let maker = root.clone();
        let made = scope.spawn(move || {
            for _ in 0..2000 {
                maker.write("f", "x").unwrap();
                maker.remove_file("f").unwrap();
            }
        });
        while !made.is_finished() {
            match root.open("f") {
                Ok(file) => {
                    file.metadata().unwrap();
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
            }
        }
    });
}

#[test]
fn paths_are_walked_as_the_kernel_does() {
    let root = root();
    root.create_dir_all("a/b/c").unwrap();
    root.create_dir_all("a/b/c/").unwrap();
    root.write("/a/b/f", "found").unwrap();
    root.symlink("../b", "a/b/self").unwrap();
    root.symlink("/a/b/f", "a/absolute").unwrap();
    root.symlink("turn", "turn").unwrap();
    root.symlink("nowhere", "a/dangling").unwrap();
    let b = root.dir("a/b").unwrap();
    for path in ["f", "./f", "../b/f", "self/self/f", "../../../a/b/f", "/a/absolute", "c/..//f"] {
        assert_eq!(b.read_to_string(path).unwrap(), "found", "{path}");
    }
    refused(root.open("turn"), ErrorKind::Other);
    let looped = root.open("turn").unwrap_err();
    let inside = looped.get_ref().and_then(|e| e.downcast_ref::<Error>());
    assert_eq!(inside.map(Error::errno), Some(40), "ELOOP");
    assert_eq!(root.symlink_metadata("turn").unwrap().kind, FileKind::Symlink);
    assert_eq!(root.read_link("a/absolute").unwrap().to_str(), Some("/a/b/f"));
    refused(root.read_link("a/b/f"), ErrorKind::InvalidInput);
    refused(root.open("a/dangling"), ErrorKind::NotFound);
    refused(root.create_dir("a/dangling"), ErrorKind::AlreadyExists);
    refused(root.create_dir_all("a/dangling/x"), ErrorKind::NotFound);
    root.write("a/dangling", "made where the link points").unwrap();
    assert_eq!(root.read_to_string("a/nowhere").unwrap(), "made where the link points");
    refused(
        root.open_with("a/absolute", &OpenOptions::new().write(true).create_new(true)),
        ErrorKind::AlreadyExists,
    );
    refused(root.create_dir_all("a/b/f"), ErrorKind::NotADirectory);
    refused(root.create_dir_all("a/b/f/x"), ErrorKind::NotADirectory);
    refused(root.dir("a/b/f"), ErrorKind::NotADirectory);
    refused(root.write("a/b/f/", ""), ErrorKind::NotADirectory);
    refused(root.open("x".repeat(256)), ErrorKind::InvalidFilename);
}

#[test]
fn names_are_made_moved_and_removed() {
    let root = root();
    root.create_dir("d/").unwrap();
    refused(root.create_dir("d"), ErrorKind::AlreadyExists);
    refused(root.create_dir("/"), ErrorKind::AlreadyExists);
    refused(root.create_dir("x/y"), ErrorKind::NotFound);
    root.write("d/f", "1").unwrap();
    root.hard_link("d/f", "d/g").unwrap();
    assert_eq!(root.metadata("d/g").unwrap().nlink, 2);
    refused(root.hard_link("d/f", "d/g"), ErrorKind::AlreadyExists);
    refused(root.hard_link("d", "e"), ErrorKind::PermissionDenied);
    root.rename("d/f", "h").unwrap();
    assert_eq!(root.resolve("h").unwrap(), root.resolve("d/g").unwrap());
    refused(root.rename("gone", "x"), ErrorKind::NotFound);
    refused(root.rename("/", "x"), ErrorKind::InvalidInput);
    root.write("k", "2").unwrap();
    refused(root.rename_with("k", "h", RenameMode::NoReplace), ErrorKind::AlreadyExists);
    root.rename_with("k", "h", RenameMode::Exchange).unwrap();
    assert_eq!(
        (root.read_to_string("h").unwrap(), root.read_to_string("k").unwrap()),
        ("2".into(), "1".into())
    );
    root.rename_with("k", "h", RenameMode::Replace).unwrap();
    root.create_dir_with("private", 0o700).unwrap();
    assert_eq!(root.metadata("private").unwrap().mode & 0o7777, 0o700);
    root.remove_dir("private").unwrap();
    refused(root.remove_file("d"), ErrorKind::IsADirectory);
    refused(root.remove_dir("d"), ErrorKind::DirectoryNotEmpty);
    refused(root.remove_dir("h"), ErrorKind::NotADirectory);
    refused(root.remove_dir("/"), ErrorKind::InvalidInput);
    refused(root.remove_dir_all("h"), ErrorKind::NotADirectory);
    refused(root.remove_dir_all("gone"), ErrorKind::NotFound);
    root.remove_file("d/g").unwrap();
    root.remove_dir("d/").unwrap();
    let attr = root.set_attr("h", &SetAttr { mode: Some(0o400), ..SetAttr::default() }).unwrap();
    assert_eq!(attr.mode & 0o7777, 0o400);
    assert_eq!(names(&root, "."), ["h"]);
    root.sync_all().unwrap();
}

/// A directory with more entries than one batch, a tree too deep for recursion, and a link that
/// must not be followed.
#[test]
fn large_and_deep_directories() {
    let root = root();
    root.create_dir_all("top/many").unwrap();
    let many = root.dir("top/many").unwrap();
    for i in 0..1000 {
        many.write(format!("f{i:04}"), "").unwrap();
    }
    let expected: Vec<String> = (0..1000).map(|i| format!("f{i:04}")).collect();
    assert!(names(&root, "top/many") == expected);
    let mut here = root.dir("top").unwrap();
    for _ in 0..3000 {
        here.create_dir("d").unwrap();
        here = here.dir("d").unwrap();
    }
    root.write("outside", "stays").unwrap();
    root.symlink("/", "top/link").unwrap();
    root.remove_dir_all("top").unwrap();
    assert_eq!(names(&root, "/"), ["outside"]);
}

#[test]
fn image_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    refused(FileSystem::open_image(&path), ErrorKind::InvalidInput);
    assert!(FileSystem::create_image(&path, 4096).is_err(), "too small");
    assert!(!path.exists(), "nothing is left of it");
    let fs = FileSystem::create_image(&path, 32 << 20).unwrap();
    // The owner of the image file also owns the root directory, and so can write to a mount.
    let (file, root) = (std::fs::metadata(&path).unwrap(), fs.getattr(Ino::ROOT).unwrap());
    assert_eq!((root.uid, root.gid), (file.uid(), file.gid()));
    refused(FileSystem::create_image(&path, 32 << 20), ErrorKind::AlreadyExists);
    fs.root().write("f", "kept").unwrap();
    refused(FileSystem::open_image(&path), ErrorKind::ResourceBusy);
    fs.close().unwrap();
    drop(fs);
    let fs = FileSystem::open_image(&path).unwrap();
    assert_eq!(fs.root().read_to_string("f").unwrap(), "kept");
    drop(fs);
    // A read-only file system refuses changes, with the reason.
    let device = FileDevice::open(&path, DeviceOptions::default()).unwrap();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::open(device, std::sync::Arc::new(SystemClock::default()), options).unwrap();
    refused(fs.root().write("f", ""), ErrorKind::ReadOnlyFilesystem);
}
