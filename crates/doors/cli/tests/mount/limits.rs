//! `kedge limit`: limits of directories, mounted and not.

use crate::common::{Place, kill, needs_fuse, not_root, until, until_dead, write_and_fsync};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// The size and the available space in bytes, as df(1) shows them; the inodes, and the free ones.
fn df(dir: &Path) -> (u64, u64, u64, u64) {
    let stat = rustix::fs::statvfs(dir).unwrap();
    (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize, stat.f_files, stat.f_ffree)
}

fn limit(place: &Place, target: &str) -> serde_json::Value {
    serde_json::from_str(&place.run(&format!("limit --json {target}")).ok()).unwrap()
}

#[track_caller]
fn over<T>(result: io::Result<T>) {
    assert_eq!(result.map(drop).unwrap_err().raw_os_error(), Some(libc::EDQUOT));
}

#[test]
fn a_directory_of_a_mount_is_limited() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 128M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir_all(mnt.join("box/sub")).unwrap();
    fs::write(mnt.join("box/before"), vec![1; MIB]).unwrap();
    assert!(limit(&place, "mnt/box").is_null());
    assert_eq!(place.run("limit mnt/box").ok(), "no limit\n");
    place.run("limit --size 4M --files 10 mnt/box").ok();
    let shown = limit(&place, "mnt/box/sub");
    assert_eq!((&shown["bytes"], &shown["files"]), (&MIB.into(), &3.into()), "{shown}");
    assert!(shown["path"].as_str().unwrap().ends_with("mnt/box"), "{shown}");
    let text = place.run("limit mnt/box").ok();
    assert!(text.contains("bytes  1 MiB of 4 MiB\nfiles  3 of 10\n"), "{text}");
    let (size, free) = (4 * MIB as u64, 3 * MIB as u64);
    assert_eq!(df(&mnt.join("box/sub")), (size, free, 10, 7));
    assert!(df(&mnt).0 > 100 << 20);

    // write(2) writes as much as the limit permits and then fails. What was accepted is never
    // refused later.
    let mut file = File::create(mnt.join("box/sub/large")).unwrap();
    let data = vec![2; MIB];
    let written: usize = (0..5).map_while(|_| file.write(&data).ok()).sum();
    assert_eq!(written, 3 * MIB);
    over(file.write(&data));
    file.sync_all().unwrap();
    over(fs::write(mnt.join("box/small"), b"x"));
    assert_eq!(df(&mnt.join("box")).1, 0);
    fs::write(mnt.join("outside"), &data).unwrap();
    fs::remove_file(mnt.join("box/before")).unwrap();
    // The space of a removed file is free at once, although the kernel forgets the file later.
    fs::write(mnt.join("box/small"), &data).unwrap();
    for _ in 0..100 {
        fs::remove_file(mnt.join("box/small")).unwrap();
        fs::write(mnt.join("box/small"), &data).unwrap();
    }
    // A removed file keeps its space while it is open.
    let open = File::open(mnt.join("box/small")).unwrap();
    fs::remove_file(mnt.join("box/small")).unwrap();
    over(fs::write(mnt.join("box/second"), &data));
    over(fs::write(mnt.join("box/second"), &data));
    drop(open);
    fs::write(mnt.join("box/small"), &data).unwrap();
    fs::remove_file(mnt.join("box/second")).unwrap();
    // The limit of files holds for every kind of inode.
    for i in 0..6 {
        File::create(mnt.join(format!("box/{i}"))).unwrap();
    }
    over(File::create(mnt.join("box/one more")));
    over(fs::create_dir(mnt.join("box/one more")));
    over(std::os::unix::fs::symlink("x", mnt.join("box/one more")));
    let moved = fs::rename(mnt.join("box/0"), mnt.join("0")).unwrap_err();
    assert_eq!(moved.raw_os_error(), Some(libc::EXDEV));

    // After the death of the server the limit and the usage are still there.
    place.run("limit --files 11 mnt/box").ok();
    write_and_fsync(&mnt.join("box/last"), b"");
    kill(&place, "mnt");
    until_dead(&place, "mnt");
    place.run("umount mnt").refused(1, &["the serving process had died"]);
    place.run("fsck -f disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    let shown = limit(&place, "mnt/box");
    assert_eq!(
        (&shown["files"], &shown["files_max"], &shown["bytes_max"]),
        (&11.into(), &11.into(), &size.into())
    );
    over(File::create(mnt.join("box/one more")));
    let list = place.run("limit list mnt").ok();
    assert!(list.contains("4 MiB of 4 MiB") && list.contains("11 of 11 files  /box"), "{list}");
    assert_eq!(place.run("limit list disk.kedge").ok(), list);
    place.run("limit --size none --files none mnt/box").ok();
    assert!(limit(&place, "mnt/box").is_null());
    File::create(mnt.join("box/one more")).unwrap();
    place.unmount_and_check("disk.kedge");
}

/// A clone with more extents than one record holds, of which only the first record is within the
/// limit. A program sees the size that the file has.
#[test]
fn a_copy_that_a_limit_stops_is_short() {
    needs_fuse!();
    const BLOCK: usize = 4096;
    let place = Place::new();
    place.run("mount --create 128M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("box")).unwrap();
    place.run("limit --size 700K mnt/box").ok();
    let source = File::create_new(mnt.join("source")).unwrap();
    for block in (0..512).step_by(2) {
        source.write_all_at(&[block as u8 + 1; BLOCK], (block * BLOCK) as u64).unwrap();
    }
    source.set_len(512 * BLOCK as u64).unwrap();
    source.sync_all().unwrap();
    drop(source);
    let source = File::open(mnt.join("source")).unwrap();
    let target =
        File::options().read(true).write(true).create_new(true).open(mnt.join("box/target")).unwrap();
    assert_eq!(target.metadata().unwrap().len(), 0);
    let copied = rustix::fs::copy_file_range(&source, None, &target, None, 512 * BLOCK);
    let shown = target.metadata().unwrap().len();
    let mut bytes = Vec::new();
    File::open(mnt.join("box/target")).unwrap().read_to_end(&mut bytes).unwrap();
    drop((source, target));
    place.run("umount mnt").ok();
    place.run("mount disk.kedge mnt").ok();
    assert_eq!(shown, fs::metadata(mnt.join("box/target")).unwrap().len());
    let copied = copied.expect("a part of it");
    assert!((1..512 * BLOCK).contains(&copied), "{copied} bytes");
    assert_eq!((copied as u64, copied), (shown, bytes.len()));
    assert!(bytes == fs::read(mnt.join("source")).unwrap()[..copied], "the part is the source's");
    assert!(bytes == fs::read(mnt.join("box/target")).unwrap());
    place.unmount_and_check("disk.kedge");
}

#[test]
fn wrong_calls_say_why() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("box")).unwrap();
    fs::write(mnt.join("box/file"), b"x").unwrap();
    fs::hard_link(mnt.join("box/file"), mnt.join("link")).unwrap();
    place.run("limit --size 1M mnt/box").refused(1, &["limit mnt/box", "another name outside"]);
    place.run("limit --size 1M mnt/link").refused(1, &["mnt/link is not a directory"]);
    place.run("limit --size 1M mnt/none").refused(1, &["mnt/none", "No such file"]);
    place.run("limit --size 1M .").refused(1, &["not in a mount of KedgeFS"]);
    place.run("limit --size 1K mnt/box").refused(1, &["at least a block"]);
    for bad in ["--size 0", "--files 0"] {
        place.run(&format!("limit {bad} mnt/box")).refused(2, &["at least a block"]);
    }
    place.run("limit --files many mnt/box").refused(2, &["--files"]);
    place.run("limit --size -1 mnt/box").refused(2, &["--size"]);
    place.run("limit").refused(2, &["DIR"]);
    place.run("freeze mnt").ok();
    fs::read_dir(&mnt).unwrap();
    place.run("limit --size 1M mnt").refused(1, &["limit mnt: the mount is frozen"]);
    place.run("thaw mnt").ok();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn other_users_see_a_limit_and_cannot_lift_it() {
    needs_fuse!();
    if not_root("it acts as another user") {
        return;
    }
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("box")).unwrap();
    place.run("limit --size 1M mnt/box").ok();
    for dir in [place.path("."), mnt.clone(), mnt.join("box")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let program = place.path("kedge");
    crate::common::copy_program(&program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = |args: &[&str]| {
        let mut command = place.command(program.to_str().unwrap());
        command.args(args).uid(65534).gid(65534);
        let out = crate::common::output_of(command).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    for lift in [["--size", "none"], ["--size", "1G"], ["--files", "5"]] {
        let (code, _, said) = nobody(&["limit", lift[0], lift[1], "mnt/box"]);
        assert!(code == Some(1) && said.contains("only root and the owner of the mount"), "{said}");
    }
    let (code, shown, said) = nobody(&["limit", "mnt/box"]);
    assert!(code == Some(0) && shown.contains("bytes  0 bytes of 1 MiB"), "{shown}{said}");
    let (code, ..) = nobody(&["limit", "list", "mnt"]);
    assert_eq!(code, Some(1), "the list shows names of directories that a user may not list");
    assert_eq!(limit(&place, "mnt/box")["bytes_max"], MIB);
    until("the program is closed", || fs::remove_file(&program).is_ok());
    place.unmount_and_check("disk.kedge");
}

#[test]
fn images_that_are_not_mounted_are_limited() {
    let place = Place::new();
    place.run("mkfs --size 32M disk.kedge").ok();
    fs::write(place.path("file"), vec![1; MIB]).unwrap();
    place.run("mkdir disk.kedge:/box").ok();
    place.run("cp file disk.kedge:/box/a").ok();
    assert_eq!(place.run("limit disk.kedge:/box").ok(), "no limit\n");
    place.run("limit --size 2M --files 100k disk.kedge:/box").ok();
    assert_eq!(
        place.run("limit disk.kedge:/box/a").ok(),
        "limit of /box\nbytes  1 MiB of 2 MiB\nfiles  2 of 100000\n"
    );
    place.run("cp file disk.kedge:/box/b").ok();
    place.run("cp file disk.kedge:/box/c").refused(1, &["limit of a directory is reached"]);
    place.run("limit --size 1M disk.kedge:/box/a").refused(1, &["disk.kedge:/box/a", "not a directory"]);
    place.run("limit --size 1K disk.kedge:/box").refused(1, &["at least a block"]);
    let list = place.run("limit list --json disk.kedge").ok();
    let row: serde_json::Value = serde_json::from_str(list.trim()).unwrap();
    assert_eq!((&row["path"], &row["files_max"]), (&"/box".into(), &100_000.into()));
    place.run("fork disk.kedge:/ disk.kedge:/fork").ok();
    assert_eq!(place.run("limit list disk.kedge").ok().lines().count(), 2);
    place.run("fsck -f disk.kedge").ok();
}
