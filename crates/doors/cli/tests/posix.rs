//! Test programs of others on the real mount: pjdfstest, whole, for what POSIX says of names,
//! permissions and times, and stress-ng.
//!
//! `cargo xtask test` builds pjdfstest where it can. Where it is not there, its tests count as
//! skipped.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, no_fuse, output_within};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// The one that the suite leaves out by itself: it asks pathconf(3) for the largest link count,
/// which glibc knows of file systems whose number it knows. It has none for FUSE, and no server is
/// asked.
const LEFT_OUT: &str = "link::link_count_max";
/// As many tests has the suite for what it runs on.
const TESTS_MIN: usize = 398;

const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = REMOUNT

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// What one run of the suite said of its tests.
struct Said {
    passed: usize,
    skipped: Vec<String>,
}

/// Runs the tests whose names contain `pattern`; nothing may fail. `None`: there is no pjdfstest.
fn run(place: &Place, pattern: &str, remount: bool) -> Option<Said> {
    let configuration = CONFIGURATION.replace("REMOUNT", &remount.to_string());
    fs::write(place.path("pjdfstest.toml"), configuration).unwrap();
    let mut command = place.command("pjdfstest");
    command.args(["-c", "pjdfstest.toml", "-p"]).arg(place.path("mnt")).arg("-s").arg(place.path("other"));
    command.arg(pattern);
    let out = match output_within(command, Duration::from_secs(900)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            kedge_base::skip::note("no pjdfstest: cargo install pjdfstest");
            return None;
        }
        out => out.unwrap(),
    };
    let said = String::from_utf8(out.stdout).unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("Summary: 0 failed, "), "{said}{errors}");
    let ending = |word: &str| {
        let lines = said.lines().filter_map(|line| line.strip_suffix(word));
        lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
    };
    Some(Said { passed: ending(" ok").len(), skipped: ending(" skipped") })
}

fn pjdfstest(options: &str) {
    if no_fuse() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return kedge_base::skip::note("pjdfstest becomes other users, which only root can");
    }
    let place = Place::new();
    for (image, dir) in [("disk.kedge", "mnt"), ("other.kedge", "other")] {
        place.run(&format!("mount{options} --create 64M {image} {dir}")).ok();
    }
    // The suite's users must be able to pass.
    for dir in ["", "mnt", "other"] {
        fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let Some(Said { passed, mut skipped }) = run(&place, "", false) else { return };
    let others = skipped.iter().position(|name| name == LEFT_OUT).map(|at| skipped.swap_remove(at));
    assert!(others.is_some() && skipped.iter().all(|name| name.contains("::erofs_")), "{skipped:?}");
    // These make the mount read-only. The suite leaves files open, so that on any file system the
    // kernel refuses this behind other tests.
    let remounts = run(&place, "erofs", true).unwrap();
    assert_eq!((remounts.passed, remounts.skipped.len()), (skipped.len(), 0), "{skipped:?}");
    let tests = passed + remounts.passed + 1;
    assert!(tests >= TESTS_MIN, "only {tests} tests");
    println!("pjdfstest{options}: {} passed, 1 left out ({LEFT_OUT})", tests - 1);
    place.run("umount other").ok();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn pjdfstest_with_writes_passed_through() {
    pjdfstest("");
}

#[test]
fn pjdfstest_with_the_kernels_writeback_cache() {
    pjdfstest(" -o writeback_cache");
}

/// What programs of stress-ng want and a FUSE file system has not, or no file system here: binder,
/// addresses of blocks, fs-verity.
const NOT_HERE: &[&str] = &["binderfs", "fiemap", "verity"];

/// Some programs of stress-ng, or with `KEDGE_LONG=1` all that work on files, a second each.
#[test]
fn stress_ng_on_files() {
    if no_fuse() {
        return;
    }
    let long = std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1");
    // stress-ng answers 3 if one of them was skipped, and 2 if one found something wrong.
    let (args, allowed): (&str, &[i32]) = match long {
        true => ("--class filesystem --sequential 1 -t 1s", &[0, 3]),
        false => ("--dentry 1 --rename 1 --fallocate 1 --hdd 1 --link 1 --xattr 1 --utime 1 -t 2s", &[0]),
    };
    let place = Place::new();
    place.run("mount --create 1G disk.kedge mnt").ok();
    fs::create_dir(place.path("mnt/t")).unwrap();
    let mut command = place.command("stress-ng");
    command
        .args(args.split(' '))
        .args(["--verify", "--metrics-brief", "--temp-path"])
        .arg(place.path("mnt/t"));
    let out = output_within(command, Duration::from_secs(900))
        .unwrap_or_else(|e| panic!("stress-ng: {e}; on Debian, as root, run: apt-get install -y stress-ng"));
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(out.status.code().is_some_and(|code| allowed.contains(&code)), "{}: {said}", out.status);
    assert!(!said.contains("fail:"), "{said}");
    assert!(said.contains("successful run completed"), "{said}");
    let skipped: Vec<&str> = said.lines().filter(|line| line.contains("skipping stress")).collect();
    let known = |line: &str| NOT_HERE.iter().any(|name| line.contains(&format!("] {name}: ")));
    assert!(skipped.iter().all(|line| known(line)), "{skipped:?}");
    // Lines of figures begin with a program's name; others are headings.
    let figures =
        said.lines().filter(|line| line.contains("metrc:")).filter_map(|line| line.split_once("] "));
    let names = figures.filter_map(|(_, rest)| rest.split(' ').next()).filter(|name| !name.is_empty());
    let ran: BTreeSet<&str> = names.filter(|name| *name != "stressor").collect();
    assert!(ran.len() >= 7, "{said}");
    println!("stress-ng: {} ran ({ran:?}), {} skipped", ran.len(), skipped.len());
    place.unmount_and_check("disk.kedge");
}
