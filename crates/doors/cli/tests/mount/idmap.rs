//! Idmapped mounts of a mounted image, as container runtimes make them: users and groups of the
//! file system are shown with other ids.

use crate::common::{Place, needs_fuse, output_of, tool, until};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;

const NEEDS_ROOT: &str = "only root makes idmapped mounts";
/// The uid that the mapped mount shows for root of the file system.
const FIRST: u32 = 100_000;

/// A user namespace whose users 0 to 65535 are the host's users from [`FIRST`] on.
fn namespace(place: &Place) -> File {
    let mut command = place.command("unshare");
    let mut child = command.args(["-U", "sleep", "1000"]).stdout(Stdio::null()).spawn().unwrap();
    let at = |name: &str| format!("/proc/{}/{name}", child.id());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    until("the namespace is there", || fs::read_link(at("ns/user")).is_ok_and(|its| its != own));
    for map in ["uid_map", "gid_map"] {
        fs::write(at(map), format!("0 {FIRST} 65536")).unwrap();
    }
    let namespace = File::open(at("ns/user")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    namespace
}

/// Gives a mount that is not yet attached the id mapping of `namespace`.
fn set_idmap(tree: &OwnedFd, namespace: &File) -> io::Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    // The fields of `struct mount_attr`: flags to set, flags to clear, propagation, namespace.
    let attr = [MOUNT_ATTR_IDMAP, 0, 0, namespace.as_raw_fd() as u64];
    // SAFETY: the call reads an empty string and `attr`, whose size is passed; both outlive the
    // call, and the descriptors are open.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Mounts the file system of `from` also on `to`, with mapped ids. Returns `false`, after a report,
/// if the kernel or this process's confinement permits no idmapped FUSE mounts.
fn idmap(place: &Place, from: &str, to: &str) -> bool {
    fs::create_dir(place.path(to)).unwrap();
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, place.path(from), flags).unwrap();
    if let Err(e) = set_idmap(&tree, &namespace(place)) {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        assert!(version < (6, 13), "Linux {release}: {e}");
        kedge_base::skip::note("no idmapped mounts of FUSE before Linux 6.13");
        return false;
    }
    move_mount(&tree, "", CWD, place.path(to), MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
    true
}

/// Runs a shell script with this uid and gid. Returns whether it succeeds.
fn as_user(place: &Place, user: u32, script: &str) -> bool {
    let mut command = place.command("setpriv");
    let user = user.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-ec", script]);
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("LC_ALL", "C");
    let out = output_of(command).unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    // A failure for any other reason is an error of the test.
    let refused = ["Permission denied", "Operation not permitted"];
    assert!(out.status.success() || refused.iter().any(|why| errors.contains(why)), "{script}: {errors}");
    out.status.success()
}

fn owner(path: impl AsRef<Path>) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

fn getfacl(place: &Place, path: &str) -> String {
    let mut command = place.command("getfacl");
    command.args(["-nc", "--no-effective", path]);
    tool(command, "acl").split_whitespace().collect::<Vec<_>>().join(",")
}

fn run(place: &Place, program: &str, args: &str, package: &str) {
    let mut command = place.command(program);
    command.args(args.split(' '));
    tool(command, package);
}

/// Tests the owners of new files and of files whose owner changes.
fn owners(place: &Place) {
    let (plain, mapped) = (|name| place.path("mnt").join(name), |name| place.path("mapped").join(name));
    fs::write(plain("old"), "text").unwrap();
    chown(plain("old"), Some(7), Some(8)).unwrap();
    assert_eq!(owner(mapped("old")), (FIRST + 7, FIRST + 8));
    let script = "cd mapped; echo x > file; mkdir dir; ln -s file link; mkfifo pipe; ln file second";
    assert!(as_user(place, FIRST, script));
    assert!(!as_user(place, FIRST + 1, "echo x > mapped/no"), "the directory is root's");
    assert!(as_user(place, FIRST, "chmod 777 mapped/dir"));
    assert!(as_user(place, FIRST + 3, "mkdir mapped/dir/its"));
    for (name, id) in [("file", 0), ("dir", 0), ("link", 0), ("pipe", 0), ("dir/its", 3)] {
        assert_eq!(owner(plain(name)), (id, id), "{name}");
        assert_eq!(owner(mapped(name)), (FIRST + id, FIRST + id), "{name}");
    }
    chown(mapped("file"), Some(FIRST + 3), Some(FIRST + 4)).unwrap();
    assert_eq!(owner(plain("file")), (3, 4));
    // A user without a mapping, such as root, cannot own a file through the mapped mount.
    let refused = |result: io::Result<()>| {
        let errno = result.unwrap_err().raw_os_error().unwrap();
        assert_eq!(Errno::from_raw_os_error(errno), Errno::OVERFLOW);
    };
    refused(chown(mapped("file"), Some(5), None));
    refused(fs::write(mapped("roots"), "x"));
    assert_eq!(owner(plain("file")), (3, 4));
    assert!(!plain("roots").exists());
    // The owner of the file has one id on each mount, and no rights with the other id.
    fs::set_permissions(plain("file"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(as_user(place, 3, "cat mnt/file") && !as_user(place, 3, "cat mapped/file"));
    assert!(as_user(place, FIRST + 3, "cat mapped/file") && !as_user(place, FIRST + 3, "cat mnt/file"));
}

fn lists(place: &Place) {
    run(place, "setfacl", &format!("-m u:{}:r mapped/old", FIRST + 9), "acl");
    assert!(getfacl(place, "mnt/old").contains("user:9:r--"), "{}", getfacl(place, "mnt/old"));
    let shown = format!("user:{}:r--", FIRST + 9);
    assert!(getfacl(place, "mapped/old").contains(&shown), "{}", getfacl(place, "mapped/old"));
    fs::set_permissions(place.path("mnt/old"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(as_user(place, FIRST + 9, "cat mapped/old"));
    assert!(!as_user(place, FIRST + 10, "cat mapped/old") && !as_user(place, 9, "cat mapped/old"));
    // Default lists are inherited.
    run(place, "setfacl", "-d -m u:9:rw mnt/dir", "acl");
    assert!(as_user(place, FIRST + 3, "echo x > mapped/dir/heir"));
    assert!(getfacl(place, "mnt/dir/heir").contains("user:9:rw-"), "{}", getfacl(place, "mnt/dir/heir"));
    assert_eq!(owner(place.path("mnt/dir/heir")), (3, 3));
}

/// Root of the file system has no rights of the machine's root.
fn rights(place: &Place) {
    let set = "setfattr -n system.kedgefs.options -v commit=7";
    for (user, dir) in [(FIRST, "mapped"), (FIRST, "mnt"), (65534, "mnt")] {
        assert!(!as_user(place, user, &format!("{set} {dir}")), "{user} on {dir}");
        assert!(!as_user(place, user, &format!("fstrim {dir}")), "{user} on {dir}");
    }
    assert_ne!(place.info("mnt")["options"]["commit"], 7.0);
    for dir in ["mapped", "mnt"] {
        run(place, "fstrim", dir, "util-linux");
        run(place, "setfattr", &format!("-n system.kedgefs.options -v commit=9 {dir}"), "attr");
    }
    assert_eq!(place.info("mnt")["options"]["commit"], 9.0);
    // The copy is refused, because the ids of an archive would be stored unmapped.
    fs::write(place.path("file"), "text").unwrap();
    place.run("cp file mapped").refused(1, &["maps user and group ids", "cp(1)"]);
    place.run("cp file mnt").ok();
    assert_eq!(owner(place.path("mapped/file")), (FIRST, FIRST));

    // A fallocate by root keeps the set-id bits, a fallocate by another user clears them.
    let program = place.path("mnt/program");
    fs::write(&program, "x").unwrap();
    let bits = || fs::metadata(&program).unwrap().mode() & 0o7777;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
    run(place, "fallocate", "-l 8192 mnt/program", "util-linux");
    assert_eq!(bits(), 0o6777);
    assert!(as_user(place, FIRST, "fallocate -l 16384 mapped/program"));
    assert_eq!(bits(), 0o777);
}

#[test]
fn ids_are_mapped_in_both_directions() {
    needs_fuse!(root: NEEDS_ROOT);
    for options in ["", " -o writeback_cache", " -o fuse"] {
        let place = Place::after(&format!("mount{options} --create 64M disk.kedge mnt"));
        for dir in ["", "mnt"] {
            fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
        }
        if !idmap(&place, "mnt", "mapped") {
            return;
        }
        owners(&place);
        lists(&place);
        rights(&place);
        // A child that another test has just started may still have files of the mount open.
        until("no process uses the mount", || {
            unmount(place.path("mapped"), UnmountFlags::NOFOLLOW) != Err(Errno::BUSY)
        });
        place.remount("disk.kedge", options);
        assert_eq!(owner(place.path("mnt/dir/its")), (3, 3));
        place.unmount_and_check("disk.kedge");
    }
}
