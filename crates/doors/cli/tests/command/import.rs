//! `kedge mkfs --from`: the image equals the source, as compared by rsync(1) and GNU tar; the same
//! source gives the same bytes; a file that cannot be imported is named, and no image is left.

use crate::common::source::{assert_like_source, make_source, set_mtime};
use crate::common::{Place, needs_fuse, output_of, tool, until};
use rustix::fs::XattrFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use tar::{EntryType, Header};

const EPOCH: &str = "1700000000";

/// Mounts the image and compares it with the source by rsync, contents included.
#[track_caller]
fn assert_same(place: &Place, image: &str, with_xattrs: bool, with_holes: bool) {
    let judged = place.run(&format!("fsck -f {image}"));
    assert_eq!(judged.code, 0, "{}{}", judged.out, judged.err);
    fs::create_dir_all(place.path("mnt")).unwrap();
    place.run(&format!("mount -o ro {image} mnt")).ok();
    let mut command = place.command("rsync");
    command.args([if with_xattrs { "-aHX" } else { "-aH" }, "--numeric-ids", "--dry-run", "--checksum"]);
    command.args(["--itemize-changes", "--delete", "source/", "mnt/"]);
    let differences = tool(command, "rsync");
    assert_eq!(differences, "", "{image} is another");
    for name in ["sparse", "hole"].into_iter().filter(|_| with_holes) {
        let (here, there) = (place.path("source").join(name), place.path("mnt").join(name));
        let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
        assert!(blocks(&there) <= blocks(&here).max(64), "{name} has its holes: {}", blocks(&there));
    }
    // Compare the times to the nanosecond, because rsync compares only seconds.
    let time =
        |dir: &str| fs::metadata(place.path(dir).join("small")).map(|m| (m.mtime(), m.mtime_nsec())).unwrap();
    if with_xattrs {
        assert_eq!(time("mnt"), time("source"));
    }
    place.unmount();
}

#[test]
fn a_directory_comes_out_as_it_went_in() {
    needs_fuse!();
    let place = Place::new();
    make_source(&place);
    place.run("mkfs --from source disk.kedge").ok();
    assert_same(&place, "disk.kedge", true, true);
    // Import into an existing file, and with a given size.
    place.run("mkfs -f --size 96M --from source disk.kedge").ok();
    assert_same(&place, "disk.kedge", true, true);
}

#[test]
fn archives_of_gnu_tar_come_out_as_they_went_in() {
    needs_fuse!();
    let place = Place::new();
    make_source(&place);
    let xattrs = ["--xattrs", "--xattrs-include=*", "--format=posix"];
    let formats: [(&str, &[&str], bool); 4] = [
        ("posix.tar", &xattrs, true),
        ("posix-sparse.tar", &[xattrs[0], xattrs[1], xattrs[2], "--sparse"], true),
        ("gnu.tar", &["--format=gnu"], false),
        ("gnu-sparse.tar", &["--format=gnu", "--sparse"], false),
    ];
    for (name, options, with_xattrs) in formats {
        let mut command = place.command("tar");
        command.args(options).args(["--numeric-owner", "-cf", name, "-C", "source", "."]);
        tool(command, "tar");
        place.run(&format!("mkfs -f --from {name} disk.kedge")).ok();
        // Without --sparse the archive stores holes as data.
        assert_same(&place, "disk.kedge", with_xattrs, options.contains(&"--sparse"));
    }
    // Import the same archive from standard input.
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mkfs", "--from", "-", "piped.kedge"]);
    command.stdin(Stdio::from(File::open(place.path("posix-sparse.tar")).unwrap()));
    let out = output_of(command).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_same(&place, "piped.kedge", true, true);
}

#[test]
fn what_is_exported_is_what_was_imported() {
    needs_fuse!();
    let place = Place::new();
    make_source(&place);
    place.run("mkfs --from source disk.kedge").ok();
    place.run("tar -c -f out.tar disk.kedge:/").ok();
    // GNU tar extracts the archive on another file system.
    fs::create_dir(place.path("back")).unwrap();
    let mut command = place.command("tar");
    command.args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", "out.tar", "-C", "back"]);
    tool(command, "tar");
    let mut command = place.command("rsync");
    command.args(["-aHX", "--numeric-ids", "--dry-run", "--checksum", "--itemize-changes", "--delete"]);
    command.args(["source/", "back/"]);
    assert_eq!(tool(command, "rsync"), "", "out.tar is another");
    let blocks = |name: &str| fs::metadata(place.path(name)).unwrap().blocks();
    assert!(blocks("back/hole") <= blocks("source/hole").max(64), "the archive has the holes");
    // `kedge tar` extracts the archive from standard input into an existing image.
    place.run("mkfs --size 64M second.kedge").ok();
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["tar", "-x", "second.kedge:/"]);
    command.stdin(Stdio::from(File::open(place.path("out.tar")).unwrap()));
    let out = output_of(command).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_same(&place, "second.kedge", true, true);
    // Extract again over the existing files.
    place.run("tar -x -f out.tar second.kedge:/").ok();
    assert_same(&place, "second.kedge", true, true);
    place.run("tar -x -f out.tar second.kedge:/small").refused(2, &["not a directory"]);
    place.run("tar -x -f gone.tar second.kedge:/").refused(1, &["gone.tar"]);
    place.run("tar second.kedge:/").refused(2, &["-c"]);
}

/// Makes an image with the date [`EPOCH`] and returns its bytes.
fn make_again(place: &Place, args: &[&str]) -> Vec<u8> {
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mkfs", "-f"]).args(args).arg("again.kedge").env("SOURCE_DATE_EPOCH", EPOCH);
    let out = output_of(command).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let bytes = fs::read(place.path("again.kedge")).unwrap();
    fs::remove_file(place.path("again.kedge")).unwrap();
    bytes
}

#[test]
fn the_same_source_gives_the_same_bytes() {
    let place = Place::new();
    make_source(&place);
    let first = make_again(&place, &["--from", "source"]);
    // The new mtime must change the image. The access time that the read changes, and the time that
    // a run takes, must not.
    set_mtime(&place.path("source/deep/large"), 1_400_000_000, 0);
    let _ = fs::read(place.path("source/small")).unwrap();
    let changed = make_again(&place, &["--from", "source"]);
    assert!(first != changed, "a time of the source is in the image");
    assert!(changed == make_again(&place, &["--from", "source"]), "the same bytes");
    assert!(changed != make_again(&place, &["--from", "source", "-L", "other"]), "a label is in the image");
    let tar = |name: &str| {
        let mut command = place.command("tar");
        command.args(["--format=posix", "--sparse", "-cf", name, "-C", "source", "."]);
        tool(command, "tar");
        make_again(&place, &["--from", name])
    };
    assert!(tar("a.tar") == tar("b.tar"), "the same archive");
    let plain = ["--size", "32M"];
    assert!(make_again(&place, &plain) == make_again(&place, &plain), "empty images, too");
}

/// The file exceeds the flusher's dirty limit, but the flusher must not choose the time of any
/// write.
#[test]
fn a_large_file_gives_the_same_bytes() {
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(place.path(&format!("source/{name}")), vec![b'x'; 40 << 20]).unwrap();
        (0..200).for_each(|i| fs::write(place.path(&format!("source/{name}{i}")), name).unwrap());
    }
    let first = make_again(&place, &["--from", "source"]);
    for _ in 0..2 {
        assert!(first == make_again(&place, &["--from", "source"]), "the same bytes");
    }
}

#[test]
fn times_are_not_later_than_the_source_date() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    fs::write(place.path("source/new"), "").unwrap();
    set_mtime(&place.path("source/new"), 1_800_000_000, 0);
    fs::write(place.path("disk.kedge"), make_again(&place, &["--from", "source"])).unwrap();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount -o ro disk.kedge mnt").ok();
    let meta = fs::metadata(place.path("mnt/new")).unwrap();
    assert_eq!((meta.mtime(), meta.ctime()), (1_700_000_000, 1_700_000_000));
    place.unmount();
}

/// An entry as a hostile program writes it.
fn raw(path: &str, kind: EntryType, link: &str, size: u64, data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_size(size);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

const ACL: &[u8] = b"32 SCHILY.acl.access=user::rwx,\n";

fn extension(record: &[u8]) -> Vec<u8> {
    assert_eq!(record.len(), 32, "the record names its length");
    raw("pax", EntryType::XHeader, "", record.len() as u64, record)
}

#[test]
fn archives_that_lie_are_refused_and_leave_nothing() {
    let place = Place::new();
    fs::write(place.path("victim"), "untouched").unwrap();
    let file = |path: &str| raw(path, EntryType::Regular, "", 1, b"x");
    let link = |path: &str, target: &str| raw(path, EntryType::Symlink, target, 0, b"");
    let hard = |path: &str, target: &str| raw(path, EntryType::Link, target, 0, b"");
    let dir = |path: &str| raw(path, EntryType::Directory, "", 0, b"");
    let cases: &[(Vec<Vec<u8>>, &[&str])] = &[
        (vec![file("../victim")], &["../victim", "'..'"]),
        (vec![file("a/../../victim")], &["a/../../victim", "'..'"]),
        (vec![file("/victim")], &["/victim", "absolute"]),
        (vec![link("out", ".."), file("out/victim")], &["out/victim", "symbolic link out"]),
        (vec![hard("h", "../victim")], &["h: link to ../victim", "'..'"]),
        (vec![hard("h", "/victim")], &["h: link to /victim", "absolute"]),
        (vec![hard("h", "gone")], &["h: link to gone", "not there"]),
        (vec![link("s", "."), hard("h", "s/victim")], &["h: link to s/victim", "not there"]),
        (vec![dir("d"), hard("h", "d")], &["h: link to d", "a directory"]),
        (vec![file("f"), file("f/g")], &["f/g", "no directory"]),
        (vec![dir("d"), file("d")], &["d: is there already"]),
        (vec![file("f"), dir("f")], &["f: is there already"]),
        (vec![raw("big", EntryType::Regular, "", 1 << 20, b"short")], &["big", "ends after"]),
        (vec![raw("d", EntryType::Directory, "", 5, b"data?")], &["d: an entry of this type has no data"]),
        (vec![raw("m", EntryType::new(b'M'), "", 0, b"")], &["m:", "type 'M'"]),
        (vec![raw("e", EntryType::Symlink, "", 0, b"")], &["e:"]),
        (vec![extension(ACL), file("f")], &["f: SCHILY.acl.access is not taken over"]),
        (vec![vec![7; 512]], &["not a tar header"]),
        (vec![file("ok"), vec![1; 100]], &["in the middle of a header"]),
    ];
    for (entries, words) in cases {
        fs::write(place.path("bad.tar"), entries.concat()).unwrap();
        place.run("mkfs --size 32M --from bad.tar new.kedge").refused(1, words);
        let left: Vec<_> = fs::read_dir(place.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{words:?}: {left:?}");
    }
    assert_eq!(fs::read(place.path("victim")).unwrap(), b"untouched");
    fs::write(place.path("bad.tar"), "").unwrap();
    place.run("mkfs --from bad.tar new.kedge").refused(1, &["empty"]);
}

#[test]
fn a_size_that_no_data_follows_makes_no_image_of_that_size() {
    let place = Place::new();
    fs::write(place.path("bad.tar"), raw("big", EntryType::Regular, "", 1 << 30, b"short")).unwrap();
    // Sizes in an archive determine the size of a sparse file on the host, but not the memory used.
    place.run("mkfs --size auto --from bad.tar new.kedge").refused(1, &["big", "ends after"]);
    assert!(!place.path("new.kedge").exists());
}

#[test]
fn an_image_that_fills_up_names_the_file() {
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    for i in 0..40 {
        fs::write(place.path(&format!("source/f{i:02}")), vec![1; 1 << 20]).unwrap();
    }
    place.run("mkfs --size 32M --from source new.kedge").refused(1, &["the image is full", "--size", ": f"]);
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 1, "nothing is left");
    // An existing file is left as a consistent image with only complete files.
    File::create(place.path("disk.kedge")).unwrap().set_len(32 << 20).unwrap();
    place.run("mkfs -f --from source disk.kedge").refused(1, &["filled only in part", "full"]);
    let judged = place.run("fsck -f disk.kedge");
    assert_eq!(judged.code, 0, "{}{}", judged.out, judged.err);
    place.run("mkfs --from source new.kedge").ok();
}

#[test]
fn a_source_that_makes_no_sense_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    place.run("mkfs --from gone new.kedge").refused(1, &["gone"]);
    place.run("mkfs --size auto new.kedge").refused(2, &["--from"]);
    place.run("mkfs --from source source/new.kedge").refused(2, &["lies inside its source source"]);
    place.run("mkfs --from /dev/null new.kedge").refused(2, &["/dev/null", "neither"]);
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mkfs", "--size", "16M", "new.kedge"]).env("SOURCE_DATE_EPOCH", "yesterday");
    let out = output_of(command).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(!place.path("new.kedge").exists());
}

#[test]
fn a_source_that_changes_while_it_is_read_is_noticed() {
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    let file = File::create(place.path("source/log")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&vec![1; 16 << 20], 0).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.write_all_at(b"!", 12_345).unwrap();
            }
        });
        let run = place.run("mkfs --size 64M --from source new.kedge");
        done.store(true, Ordering::Relaxed);
        run.refused(1, &["log: changed while it was read"]);
    });
    assert!(!place.path("new.kedge").exists());
}

/// After an interrupted run the name of the image refers to a complete image or does not exist.
#[test]
fn an_interrupted_run_leaves_no_image() {
    let place = Place::new();
    fs::create_dir(place.path("source")).unwrap();
    for i in 0..2000 {
        fs::write(place.path(&format!("source/{i}")), vec![i as u8; 20_000]).unwrap();
    }
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(["mkfs", "--from", "source", "new.kedge"]).stdout(Stdio::null());
    let mut running = command.spawn().unwrap();
    // The image is made under a temporary name.
    let begun = || fs::read_dir(place.path("")).unwrap().count() > 1;
    until("the image is begun", begun);
    running.kill().unwrap();
    let ended = running.wait().unwrap();
    let there = place.path("new.kedge").exists();
    assert_eq!(there, ended.success(), "an image that was not finished has no name");
    if there {
        let judged = place.run("fsck -f new.kedge");
        assert_eq!(judged.code, 0, "{}{}", judged.out, judged.err);
    }
    // A file left over by an earlier run is no obstacle.
    place.run(if there { "mkfs -f --from source new.kedge" } else { "mkfs --from source new.kedge" }).ok();
}

/// The estimate of `--size auto` suffices for the worst case: many small files with long names.
#[test]
fn auto_is_large_enough_for_many_small_files() {
    let place = Place::new();
    for dir in 0..20 {
        let dir = place.path(&format!("source/{dir}"));
        fs::create_dir_all(&dir).unwrap();
        for i in 0..250 {
            let path = dir.join(format!("{i:03}-{}", "name".repeat(30)));
            fs::write(&path, vec![i as u8; i * 7]).unwrap();
            rustix::fs::setxattr(&path, "user.x", &[b'v'; 200], XattrFlags::empty()).unwrap();
        }
    }
    place.run("mkfs --from source new.kedge").ok();
    let judged = place.run("fsck -f new.kedge");
    assert_eq!(judged.code, 0, "{}{}", judged.out, judged.err);
    assert_eq!(place.info("new.kedge")["inodes"], 20 * 251 + 1);
}

#[test]
fn copies_within_an_image_share_blocks_if_asked_to() {
    let place = Place::new();
    fs::write(place.path("large"), vec![7; 8 << 20]).unwrap();
    place.run("mkfs --size 64M a.kedge").ok();
    place.run("mkdir a.kedge:/dir").ok();
    place.run("cp large a.kedge:/dir/large").ok();
    let free = || place.info("a.kedge")["free_bytes"].as_u64().unwrap() / 4096;
    let before = free();
    place.run("cp --reflink=always a.kedge:/dir/large a.kedge:/copy").ok();
    place.run("cp -r --reflink=auto a.kedge:/dir a.kedge:/dir2").ok();
    assert!(before - free() < 100, "{before} {}", free());
    assert!(place.run("cat a.kedge:/dir2/large").ok().bytes().all(|byte| byte == 7));
    place.run("cp a.kedge:/copy a.kedge:/copy2").ok();
    assert!(before - free() > 2000, "{before} {}", free());
    place.run("fsck -f a.kedge").ok();
    // Blocks cannot be shared between images, nor with files of this machine.
    place.run("mkfs --size 64M b.kedge").ok();
    let words = &["cannot share blocks"];
    place.run("cp --reflink=always a.kedge:/copy b.kedge:/").refused(2, words);
    place.run("cp --reflink large a.kedge:/large").refused(2, words);
    place.run("cp --reflink=always a.kedge:/copy out").refused(2, &["within an image"]);
    place.run("cp --reflink=auto a.kedge:/copy b.kedge:/").ok();
    place.run("cp --reflink=auto a.kedge:/copy out").ok();
    assert!(fs::read(place.path("out")).unwrap() == [7; 8 << 20]);
    // Blocks cannot be shared between the trees of an image.
    place.run("fork a.kedge:/ a.kedge:/fork").ok();
    place.run("cp --reflink=always a.kedge:/copy a.kedge:/fork/x").refused(1, &["different trees"]);
    place.run("cp --reflink=auto a.kedge:/copy a.kedge:/fork/x").ok();
    place.run("fsck -f a.kedge").ok();
}

#[test]
fn copies_are_what_they_are_copies_of() {
    let place = Place::new();
    make_source(&place);
    for image in ["a.kedge", "b.kedge"] {
        place.run(&format!("mkfs --size 64M {image}")).ok();
    }
    // Copy into an image, from one image to another, within one image, and out again.
    place.run("cp -r source a.kedge:/in").ok();
    place.run("cp -r a.kedge:/in b.kedge:/").ok();
    place.run("mkdir b.kedge:/deeper").ok();
    place.run("cp -r b.kedge:/in b.kedge:/deeper/").ok();
    // By default a copy out of an image leaves out set-id bits, devices and attributes of root.
    place.run("cp -r --privileged b.kedge:/deeper/in out").ok();
    assert_like_source(&place, "out");
    for image in ["a.kedge", "b.kedge"] {
        let judged = place.run(&format!("fsck -f {image}"));
        assert_eq!(judged.code, 0, "{}{}", judged.out, judged.err);
        assert_eq!(place.info(image)["clean"], true, "closed, and so durable");
    }
    // Copy again over the existing files.
    place.run("cp -r source/. a.kedge:/in").ok();
    place.run("cp -r --privileged a.kedge:/in/ out/").ok();
    assert_like_source(&place, "out/in");
    // Single files, under their own names and new names; a link is copied as a link.
    place.run("cp source/small source/absolute a.kedge:/").ok();
    assert_eq!(place.run("cat a.kedge:/small").ok(), "a few bytes");
    assert!(place.run("ls -l a.kedge:/absolute").ok().contains("-> /etc/passwd"));
    place.run("cp a.kedge:/small renamed").ok();
    place.run("cp a.kedge:/absolute renamed-link").ok();
    assert_eq!(fs::read_to_string(place.path("renamed")).unwrap(), "a few bytes");
    assert_eq!(fs::read_link(place.path("renamed-link")).unwrap(), Path::new("/etc/passwd"));
    let mtime = |path: &str| fs::metadata(place.path(path)).map(|m| (m.mtime(), m.mtime_nsec())).unwrap();
    assert_eq!(mtime("renamed"), mtime("source/small"), "to the nanosecond");
}

#[test]
fn what_cannot_be_copied_is_named() {
    let place = Place::after("mkfs --size 16M a.kedge");
    fs::create_dir_all(place.path("dir/sub")).unwrap();
    fs::write(place.path("file"), "text").unwrap();
    place.run("cp file other").refused(2, &["cp(1)", "other"]);
    place.run("cp file").refused(2, &["2 values"]);
    place.run("cp gone a.kedge:/").refused(1, &["gone"]);
    place.run("cp a.kedge:/gone .").refused(1, &["a.kedge:/gone", "no such file"]);
    place.run("cp dir a.kedge:/").refused(1, &["dir", "-r"]);
    place.run("cp file a.kedge:/x/y").refused(1, &["a.kedge:/x/y", "no such file"]);
    place.run("cp file dir a.kedge:/x").refused(1, &["a.kedge:/x"]);
    place.run("cp file a.kedge:/../x").refused(2, &["'..'"]);
    place.run("cp -r dir a.kedge:/").ok();
    place.run("cp a.kedge:/dir back").refused(1, &["is a directory", "-r"]);
    place.run("cp file a.kedge:/").ok();
    place.run("cp file a.kedge:/file/").refused(1, &["no directory"]);
    place.run("cp -r dir a.kedge:/file").refused(1, &["no directory"]);
    place.run("cp a.kedge:/file a.kedge:/file").refused(1, &["same file"]);
    place.run("cp -r a.kedge:/dir a.kedge:/dir/sub").refused(1, &["lies in it"]);
    // A full image is left with only complete files, and the error says that it is full.
    fs::write(place.path("large"), vec![7; 20 << 20]).unwrap();
    place.run("cp large a.kedge:/").refused(1, &["large", "full"]);
    assert_eq!(place.run("ls a.kedge:/").ok(), "dir\nfile\n");
    assert_eq!(place.run("fsck -f a.kedge").code, 0);
    // A link in the target does not lead a copy out of it.
    place.run("cp -r a.kedge:/dir back").ok();
    fs::remove_dir(place.path("back/sub")).unwrap();
    symlink(place.path("dir"), place.path("back/sub")).unwrap();
    place.run("mkdir a.kedge:/dir/sub/inner").ok();
    place.run("cp -r a.kedge:/dir/. back").refused(1, &["sub"]);
    assert!(!place.path("dir/inner").exists(), "followed a link");
    needs_fuse!();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount a.kedge mnt").ok();
    place.run("cp file a.kedge:/again").refused(1, &["mounted on"]);
    place.run("cp a.kedge:/file again").refused(1, &["mounted on"]);
    place.unmount();
}
