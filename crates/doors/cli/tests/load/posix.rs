//! Test programs of other projects on the real mount: the whole of pjdfstest, for the POSIX rules
//! on names, permissions and times, and stress-ng.
//!
//! `cargo xtask test` builds pjdfstest if possible. If it is missing, its tests count as skipped.

use crate::common::keeper::{Killer, keeper};
use crate::common::pjdfstest::{self, Said};
use crate::common::rings::rings_are_on;
use crate::common::{Place, needs_fuse, output_of};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// The test that the suite skips by itself. pathconf(3) returns the largest link count only for
/// file systems that glibc knows by their magic number; FUSE is not among these, and no request
/// reaches the server.
const LEFT_OUT: &str = "link::link_count_max";
/// The number of tests that the suite has for this configuration.
const TESTS_MIN: usize = 398;

/// The time between two deaths of a server that has a keeper.
const EVERY: Duration = Duration::from_millis(300);

fn suite(options: &str) {
    needs_fuse!();
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("pjdfstest becomes other users, which only root can");
    }
    let place = Place::new();
    for (image, dir) in [("disk.kedge", "mnt"), ("other.kedge", "other")] {
        place.run(&format!("mount{options} --create 64M {image} {dir}")).ok();
    }
    // The suite's users must be able to enter the directories.
    for dir in ["", "mnt", "other"] {
        fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let killer = options.contains("keeper").then(|| Killer::start(&place, EVERY));
    let Some(Said { passed, mut skipped }) = pjdfstest::run(&place, "", false) else { return };
    if let Some(killer) = killer {
        println!("{} servers died: {}", killer.stop(), keeper(&place));
    }
    let others = skipped.iter().position(|name| name == LEFT_OUT).map(|at| skipped.swap_remove(at));
    assert!(others.is_some() && skipped.iter().all(|name| name.contains("::erofs_")), "{skipped:?}");
    // These tests make the mount read-only. The suite leaves files open, so after other tests the
    // kernel would refuse that on any file system.
    let remounts = pjdfstest::run(&place, "erofs", true).unwrap();
    assert_eq!((remounts.passed.len(), remounts.skipped.len()), (skipped.len(), 0), "{skipped:?}");
    let tests = passed.len() + remounts.passed.len() + 1;
    assert!(tests >= TESTS_MIN, "only {tests} tests");
    println!("pjdfstest{options}: {} passed, 1 left out ({LEFT_OUT})", tests - 1);
    place.run("umount other").ok();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn pjdfstest_with_writes_passed_through() {
    suite("");
}

#[test]
fn pjdfstest_with_the_kernels_writeback_cache_on_the_clients_processor() {
    suite(" -o writeback_cache,placement=on");
}

#[test]
fn pjdfstest_through_rings() {
    if rings_are_on() {
        suite(" -o transport=io_uring");
    }
}

#[test]
fn pjdfstest_while_servers_are_killed() {
    suite(" -o keeper,placement=on");
}

/// stress-ng's programs that need features missing on FUSE or on this machine: binder, block
/// addresses, fs-verity.
const NOT_HERE: &[&str] = &["binderfs", "fiemap", "verity"];

/// Runs some programs of stress-ng, or with `KEDGE_LONG=1` all that work on files, for a second
/// each.
#[test]
fn stress_ng_on_files() {
    needs_fuse!();
    let long = crate::common::long();
    // stress-ng exits with 3 if a program was skipped, and with 2 if a program found an error.
    let (args, allowed): (&str, &[i32]) = match long {
        true => ("--class filesystem --sequential 1 -t 1s", &[0, 3]),
        false => ("--dentry 1 --rename 1 --fallocate 1 --hdd 1 --link 1 --xattr 1 --utime 1 -t 2s", &[0]),
    };
    // The sizes are far below that of the file system. A write that a full file system cuts short
    // leaves a hole in the file of `hdd`, which continues after it and later reports the hole as
    // wrong data.
    let sizes = "--hdd-bytes 64M --fallocate-bytes 64M";
    let place = Place::after("mount --create 1G disk.kedge mnt");
    fs::create_dir(place.path("mnt/t")).unwrap();
    let mut command = place.command("stress-ng");
    command
        .args(args.split(' ').chain(sizes.split(' ')))
        .args(["--verify", "--metrics-brief", "--temp-path"])
        .arg(place.path("mnt/t"));
    let out = output_of(command)
        .unwrap_or_else(|e| panic!("stress-ng: {e}; on Debian, as root, run: apt-get install -y stress-ng"));
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(out.status.code().is_some_and(|code| allowed.contains(&code)), "{}: {said}", out.status);
    assert!(!said.contains("fail:"), "{said}");
    assert!(said.contains("successful run completed"), "{said}");
    let skipped: Vec<&str> = said.lines().filter(|line| line.contains("skipping stress")).collect();
    let known = |line: &str| NOT_HERE.iter().any(|name| line.contains(&format!("] {name}: ")));
    assert!(skipped.iter().all(|line| known(line)), "{skipped:?}");
    // Lines with figures begin with a program's name; other lines are headings.
    let figures =
        said.lines().filter(|line| line.contains("metrc:")).filter_map(|line| line.split_once("] "));
    let names = figures.filter_map(|(_, rest)| rest.split(' ').next()).filter(|name| !name.is_empty());
    let ran: BTreeSet<&str> = names.filter(|name| *name != "stressor").collect();
    assert!(ran.len() >= 7, "{said}");
    println!("stress-ng: {} ran ({ran:?}), {} skipped", ran.len(), skipped.len());
    place.unmount_and_check("disk.kedge");
}
