//! `kedge cp` and `kedge tar -x` into a mounted image: the files equal their sources and are
//! durable, the kernel shows them immediately, and no user gets more rights than through the mount.

use crate::common::source::{assert_like_source, make_source};
use crate::common::{Place, copy_program, kill, needs_fuse, output_of, until};
use kedge_base::HANG;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::{self, File};
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use tar::{EntryType, Header};

const NEEDS_ROOT: &str = "only root can become another user, and mount over a directory";

fn mounted(options: &str) -> Place {
    Place::after(&format!("mount{options} --create 64M disk.kedge mnt"))
}

fn names(place: &Place, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(place.path(dir)).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// With `--volatile` the end of the serving process acts as a power failure.
#[test]
fn what_was_copied_is_there_and_durable() {
    needs_fuse!();
    let place = mounted(" --volatile");
    make_source(&place);
    assert_eq!(place.run("cp -r source mnt").ok(), "");
    assert_like_source(&place, "mnt/source");
    kill(&place, "mnt");
    place.run("mount disk.kedge mnt").ok();
    assert_like_source(&place, "mnt/source");
    // Copy again: over the existing files, under another name, and from an archive.
    place.run("cp -r source/. mnt/source").ok();
    place.run("cp -r source mnt/other").ok();
    place.unmount_and_check("disk.kedge");
    place.run("tar -c -f all.tar disk.kedge:/source").ok();
    place.run("mount disk.kedge mnt").ok();
    fs::create_dir(place.path("mnt/third")).unwrap();
    place.run("tar -x -f all.tar mnt/third").ok();
    for dir in ["mnt/source", "mnt/other", "mnt/third"] {
        assert_like_source(&place, dir);
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn the_kernel_shows_at_once_what_was_copied() {
    needs_fuse!();
    let place = mounted("");
    let at = |name: &str| place.path("mnt").join(name);
    fs::create_dir_all(at("dir/sub")).unwrap();
    fs::write(at("dir/file"), vec![b'o'; 100_000]).unwrap();
    fs::hard_link(at("dir/file"), at("second")).unwrap();
    // Fill the kernel's caches: names, names that do not exist, contents, attributes.
    let mut open = File::open(at("dir/file")).unwrap();
    let mut before = Vec::new();
    open.read_to_end(&mut before).unwrap();
    assert_eq!(names(&place, "mnt/dir"), ["file", "sub"]);
    assert!(!at("dir/new").exists() && !at("dir/sub/deeper").exists());
    assert_eq!(fs::metadata(at("second")).unwrap().nlink(), 2);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("dir/sub"), 0o755);

    fs::create_dir_all(place.path("source/sub/deeper")).unwrap();
    fs::write(place.path("source/file"), "new and short").unwrap();
    fs::write(place.path("source/new"), "new").unwrap();
    fs::set_permissions(place.path("source/sub"), fs::Permissions::from_mode(0o700)).unwrap();
    place.run("cp -r source/. mnt/dir").ok();

    assert_eq!(fs::read_to_string(at("dir/file")).unwrap(), "new and short");
    assert_eq!(fs::read_to_string(at("dir/new")).unwrap(), "new");
    assert_eq!(names(&place, "mnt/dir"), ["file", "new", "sub"]);
    assert!(at("dir/sub/deeper").is_dir());
    assert_eq!(mode("dir/sub"), 0o700);
    // The replaced file still exists under its other name and for the program that has it open.
    assert_eq!(fs::metadata(at("second")).unwrap().nlink(), 1);
    let mut after = Vec::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_end(&mut after).unwrap();
    assert_eq!(after, before);
    // Copy one file, under a new name and over the existing file.
    fs::write(place.path("single"), "single").unwrap();
    place.run("cp single mnt/dir/new").ok();
    assert_eq!(fs::read_to_string(at("dir/new")).unwrap(), "single");
    place.run("cp single source/new mnt/dir").ok();
    assert_eq!(fs::read_to_string(at("dir/single")).unwrap(), "single");
    assert_eq!(fs::read_to_string(at("dir/new")).unwrap(), "new");
    drop(open);
    place.unmount_and_check("disk.kedge");
}

/// If a copy dropped the name of the directory, the kernel would detach the mount on it.
#[test]
fn a_mount_below_a_directory_that_is_copied_over_stays() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted("");
    fs::create_dir_all(place.path("source/sub")).unwrap();
    fs::write(place.path("source/sub/file"), "text").unwrap();
    place.run("cp -r source mnt").ok();
    let over = place.path("mnt/source/sub");
    rustix::mount::mount("none", &over, "tmpfs", MountFlags::empty(), None).unwrap();
    let device = fs::metadata(&over).unwrap().dev();
    place.run("cp -r source mnt").ok();
    assert_eq!(fs::metadata(&over).unwrap().dev(), device, "it is mounted still");
    rustix::mount::unmount(&over, UnmountFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(over.join("file")).unwrap(), "text");
    // Copy also through a bind mount of a directory of the file system.
    fs::create_dir(place.path("part")).unwrap();
    rustix::mount::mount_bind(place.path("mnt/source"), place.path("part")).unwrap();
    let copied = place.run("cp source/sub/file part/bound");
    let there = fs::read_to_string(place.path("part/bound"));
    rustix::mount::unmount(place.path("part"), UnmountFlags::empty()).unwrap();
    copied.ok();
    assert_eq!(there.unwrap(), "text");
    place.unmount_and_check("disk.kedge");
}

/// Runs `kedge` as a user without privilege. Returns exit code and errors.
fn as_nobody(place: &Place, args: &str) -> (i32, String) {
    let mut command = place.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(place.path("kedge")).args(args.split(' '));
    let output = output_of(command).unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn open_to_all(place: &Place, dir: &str) {
    fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn only_root_and_the_serving_user_copy_this_way() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted(" -o allow_other");
    copy_program(&place.path("kedge"));
    fs::write(place.path("file"), "text").unwrap();
    open_to_all(&place, "");
    open_to_all(&place, "mnt");
    let (code, errors) = as_nobody(&place, "cp file mnt");
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("only root and the user who serves the mount"), "{errors}");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn what_a_user_copies_is_his_own() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::new();
    copy_program(&place.path("kedge"));
    open_to_all(&place, "");
    make_source(&place);
    // Remove the device and open the unreadable file to all, since only root can copy them.
    fs::remove_file(place.path("source/device")).unwrap();
    let readable = fs::Permissions::from_mode(0o4755);
    fs::set_permissions(place.path("source/deep/large"), readable).unwrap();
    let (code, errors) = as_nobody(&place, "mount --create 64M disk.kedge mnt");
    assert_eq!(code, 0, "{errors}");
    let (code, errors) = as_nobody(&place, "cp -r source mnt");
    assert_eq!(code, 0, "{errors}");
    let script =
        "stat -c '%u %g %a' mnt/source/deep/large mnt/source/deep/er; cmp source/small mnt/source/small";
    let mut command = place.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script]);
    let said = output_of(command).unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(text, "65534 65534 4755\n65534 65534 755\n");
    // The serving process refuses files that only root may make, whatever the client sends.
    for (name, lie) in [("device", device()), ("attribute", with_attribute())] {
        fs::write(place.path("lie.tar"), lie).unwrap();
        let (code, errors) = as_nobody(&place, "tar -x -f lie.tar mnt");
        assert_eq!(code, 1, "{name}: {errors}");
        assert!(errors.contains("only root can"), "{name}: {errors}");
    }
    let (code, errors) = as_nobody(&place, "umount mnt");
    assert_eq!(code, 0, "{errors}");
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

fn header(path: &str, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn block(mut header: Header, data: &[u8]) -> Vec<u8> {
    header.set_cksum();
    let mut bytes = [&header.as_bytes()[..], data].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn device() -> Vec<u8> {
    let mut header = header("null", EntryType::Char, 0);
    header.set_device_major(1).unwrap();
    header.set_device_minor(3).unwrap();
    [block(header, b""), vec![0; 1024]].concat()
}

fn with_attribute() -> Vec<u8> {
    let record = b"32 SCHILY.xattr.trusted.t=forged\n";
    assert_eq!(record.len(), 33);
    let record = b"33 SCHILY.xattr.trusted.t=forged\n";
    let extension = block(header("x", EntryType::XHeader, record.len() as u64), record);
    [extension, block(header("file", EntryType::Regular, 0), b""), vec![0; 1024]].concat()
}

#[test]
fn archives_that_lead_out_are_refused() {
    needs_fuse!();
    let place = mounted("");
    fs::create_dir(place.path("mnt/in")).unwrap();
    std::os::unix::fs::symlink("..", place.path("mnt/in/link")).unwrap();
    for path in ["../out", "/out", "link/out"] {
        fs::write(place.path("lie.tar"), block(header(path, EntryType::Regular, 3), b"out")).unwrap();
        place.run("tar -x -f lie.tar mnt/in").refused(1, &[path]);
        assert_eq!(names(&place, "mnt"), ["in"]);
    }
    place.unmount_and_check("disk.kedge");
}

fn half_a_file() -> Vec<u8> {
    block(header("half", EntryType::Regular, 4 << 20), &vec![7; 2 << 20])
}

const HALF_BLOCKS: u64 = (2 << 20) / 4096;

/// The free blocks. They show how much of a file has arrived, because the file has no name before
/// it is complete.
fn free_blocks(place: &Place) -> u64 {
    rustix::fs::statvfs(place.path("mnt")).unwrap().f_bfree
}

/// Starts a client that has sent one file and half of another, and waits for its own input.
fn client_in_the_middle(place: &Place) -> (Child, ChildStdin) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command.args(["tar", "-x"]).arg(place.path("mnt")).stdin(Stdio::piped()).stderr(Stdio::piped());
    let free = free_blocks(place);
    let mut client = command.spawn().unwrap();
    let mut input = client.stdin.take().unwrap();
    input.write_all(&block(header("whole", EntryType::Regular, 5), b"bytes")).unwrap();
    input.write_all(&half_a_file()).unwrap();
    until("the first half arrives", || free_blocks(place) + HALF_BLOCKS / 2 < free);
    (client, input)
}

#[test]
fn an_interrupted_copy_leaves_whole_files() {
    needs_fuse!();
    let place = mounted("");
    let (mut client, input) = client_in_the_middle(&place);
    // The unmount is refused because the client has the directory open.
    place.run("umount mnt").refused(1, &["is in use"]);
    client.kill().unwrap();
    client.wait().unwrap();
    drop(input);
    until("the whole one has its name", || place.path("mnt/whole").exists());
    assert_eq!(names(&place, "mnt"), ["whole"]);
    assert_eq!(fs::read(place.path("mnt/whole")).unwrap(), b"bytes");
    place.unmount_and_check("disk.kedge");
}

/// Returns a connection that is admitted to copy into `dir` and does not keep `dir` open.
fn admitted(dir: &Path) -> UnixStream {
    let mount = kedge_fuse::mount_at(&dir.canonicalize().unwrap()).unwrap();
    // Send a request first: the socket exists when its reply arrives.
    let dir = File::open(dir).unwrap();
    dir.metadata().unwrap();
    let mut client = kedge_fuse::visit(&mount, HANG).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [dir.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let hello = IoSlice::new(b"kedge-beside 2\n");
    sendmsg(&client, &[hello], &mut control, SendFlags::empty()).unwrap();
    let mut answer = [0; 15];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"{\"error\":null}\n");
    client
}

/// The client does not hold the mount open and sends nothing more.
#[test]
fn the_end_of_the_mount_ends_a_copy() {
    needs_fuse!();
    let place = mounted("");
    let mut client = admitted(&place.path("mnt"));
    let free = free_blocks(&place);
    client.write_all(&half_a_file()).unwrap();
    until("the first half arrives", || free_blocks(&place) + HALF_BLOCKS / 2 < free);
    place.unmount_and_check("disk.kedge");
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("half"), "{answer}");
    place.run("mount disk.kedge mnt").ok();
    assert_eq!(names(&place, "mnt"), Vec::<String>::new(), "no half of a file");
    place.unmount();
}

#[test]
fn a_mount_that_dies_or_cannot_take_it_is_named() {
    needs_fuse!();
    let place = mounted("");
    fs::create_dir_all(place.path("source/sub")).unwrap();
    fs::write(place.path("source/file"), vec![1; 70 << 20]).unwrap();
    place.run("cp source/file mnt").refused(1, &["source/file", "full"]);
    assert_eq!(names(&place, "mnt"), Vec::<String>::new());
    place.run("cp -r source mnt/gone/further").refused(1, &["mnt/gone"]);
    place.run("cp source mnt").refused(1, &["is a directory", "-r"]);
    place.run("cp gone mnt").refused(1, &["gone"]);
    place.run("tar -c mnt").refused(2, &["tar(1)"]);
    place.run("tar -x -f source/file source").refused(2, &["tar(1)"]);
    fs::write(place.path("mnt/small"), "text").unwrap();
    place.run("cp mnt/small mnt").refused(1, &["same file"]);
    assert_eq!(fs::read_to_string(place.path("mnt/small")).unwrap(), "text");
    fs::create_dir_all(place.path("mnt/a/b")).unwrap();
    place.run("cp -r mnt/a mnt/a/b").refused(1, &["lies in it"]);

    let (client, input) = client_in_the_middle(&place);
    kill(&place, "mnt");
    drop(input);
    let output = client.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("ended during the copy"), "{errors}");
    place.run("mount -o ro disk.kedge mnt").ok();
    place.run("cp source/file mnt").refused(1, &["mounted read-only"]);
    place.unmount();
}
