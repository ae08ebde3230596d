//! Access control lists on the real mount: setfacl, getfacl, and the checks that the kernel makes
//! with them.

use crate::common::{Place, kill, needs_fuse, output_of, tool};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const NEEDS_ROOT: &str = "only root can become the users that the lists name";
const NOBODY: &str = "65534";
const DAEMON: &str = "1";

/// A mount that every user can reach.
fn mounted(options: &str) -> Place {
    let place = Place::after(&format!("mount{options} --create 64M disk.kedge mnt"));
    for dir in ["", "mnt"] {
        fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    place
}

fn setfacl(place: &Place, args: &str) {
    let mut command = place.command("setfacl");
    command.args(args.split(' '));
    tool(command, "acl");
}

/// The entries of a file's access control list, in one line.
fn getfacl(place: &Place, path: &str) -> String {
    let mut command = place.command("getfacl");
    command.args(["-nc", "--no-effective", path]);
    tool(command, "acl").split_whitespace().collect::<Vec<_>>().join(",")
}

/// Whether a user may run the shell `script` without an error.
fn may(place: &Place, user: &str, script: &str) -> bool {
    let mut command = place.command("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "sh", "-c", script]);
    output_of(command).unwrap().status.success()
}

fn mode(place: &Place, path: &str) -> u32 {
    fs::metadata(place.path(path)).unwrap().mode() & 0o7777
}

#[test]
fn a_list_grants_and_denies_and_survives_a_crash() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted("");
    fs::write(place.path("mnt/f"), "secret").unwrap();
    fs::set_permissions(place.path("mnt/f"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(!may(&place, NOBODY, "cat mnt/f"));
    setfacl(&place, "-m u:65534:rw,g:1:r mnt/f");
    let list = "user::rw-,user:65534:rw-,group::r--,group:1:r--,mask::rw-,other::---";
    assert_eq!(getfacl(&place, "mnt/f"), list);
    assert_eq!(mode(&place, "mnt/f"), 0o660, "the group bits are the mask");
    assert!(may(&place, NOBODY, "cat mnt/f && echo more >> mnt/f"));
    assert!(may(&place, DAEMON, "cat mnt/f") && !may(&place, DAEMON, "echo more >> mnt/f"));
    assert!(!may(&place, "2", "cat mnt/f"));

    fs::File::open(place.path("mnt/f")).unwrap().sync_all().unwrap();
    kill(&place, "mnt");
    place.run("mount disk.kedge mnt").ok();
    assert_eq!((getfacl(&place, "mnt/f").as_str(), mode(&place, "mnt/f")), (list, 0o660));

    // chmod sets the mask, which limits the named users and groups. (The mask here is not empty,
    // because Linux does not evaluate a list whose mask is empty.)
    fs::set_permissions(place.path("mnt/f"), fs::Permissions::from_mode(0o614)).unwrap();
    assert_eq!(
        getfacl(&place, "mnt/f"),
        "user::rw-,user:65534:rw-,group::r--,group:1:r--,mask::--x,other::r--"
    );
    assert!(!may(&place, NOBODY, "cat mnt/f") && may(&place, "2", "cat mnt/f"));

    setfacl(&place, "-b mnt/f");
    setfacl(&place, "-b mnt/f");
    // When setfacl removes the list, the group keeps only the rights that the mask left it.
    assert_eq!(getfacl(&place, "mnt/f"), "user::rw-,group::---,other::r--");
    assert_eq!(mode(&place, "mnt/f"), 0o604);
    place.unmount_and_check("disk.kedge");
}

fn inherits(options: &str) {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted(options);
    fs::create_dir(place.path("mnt/d")).unwrap();
    setfacl(&place, "-d -m u::rwx,u:65534:rwx,g::rx,o::- mnt/d");
    let default =
        "default:user::rwx,default:user:65534:rwx,default:group::r-x,default:mask::rwx,default:other::---";
    assert_eq!(getfacl(&place, "mnt/d"), format!("user::rwx,group::r-x,other::r-x,{default}"));

    // The default list of a directory replaces the umask.
    let made =
        "umask 077; cd mnt/d; echo x > file; mkdir dir; mkfifo fifo; ln -s file link; echo y > dir/deep";
    assert!(may(&place, "0", made));
    let list = "user::rw-,user:65534:rwx,group::r-x,mask::rw-,other::---";
    for file in ["file", "fifo", "dir/deep"] {
        assert_eq!(getfacl(&place, &format!("mnt/d/{file}")), list, "{file}");
        assert_eq!(mode(&place, &format!("mnt/d/{file}")), 0o660, "{file}");
    }
    let dir = "user::rwx,user:65534:rwx,group::r-x,mask::rwx,other::---";
    assert_eq!(getfacl(&place, "mnt/d/dir"), format!("{dir},{default}"));
    assert!(may(&place, NOBODY, "cat mnt/d/file mnt/d/dir/deep && echo z > mnt/d/dir/own"));
    assert!(!may(&place, DAEMON, "cat mnt/d/file"));
    // In a directory without a default list the umask applies.
    assert!(may(&place, "0", "umask 027; cd mnt; echo x > plain; mkdir plaindir; mkfifo -m 666 plainfifo"));
    assert_eq!((mode(&place, "mnt/plain"), mode(&place, "mnt/plaindir")), (0o640, 0o750));
    assert_eq!(mode(&place, "mnt/plainfifo"), 0o666);

    setfacl(&place, "-k mnt/d");
    assert!(may(&place, "0", "umask 022; echo x > mnt/d/later"));
    assert_eq!(getfacl(&place, "mnt/d/later"), "user::rw-,group::r--,other::r--");
    place.remount("disk.kedge", options);
    assert_eq!(getfacl(&place, "mnt/d/file"), list);
    assert_eq!(getfacl(&place, "mnt/d/dir"), format!("{dir},{default}"));
    place.unmount_and_check("disk.kedge");
}

#[test]
fn new_files_inherit_the_default_list_of_their_directory() {
    inherits("");
}

#[test]
fn new_files_inherit_with_the_kernels_writeback_cache() {
    inherits(" -o writeback_cache");
}

#[test]
fn who_is_not_in_the_group_loses_its_bit_with_a_new_list() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted("");
    fs::write(place.path("mnt/f"), "").unwrap();
    std::os::unix::fs::chown(place.path("mnt/f"), Some(65534), Some(1)).unwrap();
    fs::set_permissions(place.path("mnt/f"), fs::Permissions::from_mode(0o2755)).unwrap();
    assert!(may(&place, NOBODY, "setfacl -m u:1:r mnt/f"));
    assert_eq!(mode(&place, "mnt/f"), 0o755);
    fs::set_permissions(place.path("mnt/f"), fs::Permissions::from_mode(0o2755)).unwrap();
    setfacl(&place, "-m u:2:r mnt/f");
    assert_eq!(mode(&place, "mnt/f"), 0o2755, "root may keep it");
    assert!(!may(&place, DAEMON, "setfacl -m u:1:rwx mnt/f"), "it is not his file");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn lists_are_copied_with_their_files() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted("");
    fs::write(place.path("mnt/a"), "a").unwrap();
    setfacl(&place, "-m u:65534:rw mnt/a");
    for (program, args) in [("cp", "-a mnt/a mnt/b"), ("rsync", "-aA mnt/a mnt/c")] {
        let mut command = place.command(program);
        command.args(args.split(' '));
        tool(command, program);
    }
    let list = getfacl(&place, "mnt/a");
    assert!(list.contains("user:65534:rw-"), "{list}");
    assert_eq!((getfacl(&place, "mnt/b"), getfacl(&place, "mnt/c")), (list.clone(), list));
    place.unmount_and_check("disk.kedge");
}
