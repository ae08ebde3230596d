//! File flags on the real mount: chattr, lsattr, and what the flags then forbid, through the
//! kernel.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, kill, no_fuse, not_root, output_within, tool};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

const NEEDS_ROOT: &str = "only root may make files immutable";
const LIMIT: Duration = Duration::from_secs(120);
const EPERM: Option<i32> = Some(1);

fn mounted(options: &str) -> Place {
    let place = Place::new();
    place.run(&format!("mount{options} --create 64M disk.kedge mnt")).ok();
    place
}

fn chattr(place: &Place, args: &str) {
    let mut command = place.command("chattr");
    command.args(args.split(' '));
    tool(command, "e2fsprogs", LIMIT);
}

/// The letters of the flags that are set.
fn lsattr(place: &Place, path: &str) -> String {
    let mut command = place.command("lsattr");
    command.args(["-d", path]);
    let line = tool(command, "e2fsprogs", LIMIT);
    line.split(' ').next().unwrap().replace('-', "")
}

fn errno<T>(answer: std::io::Result<T>) -> Option<i32> {
    answer.err().and_then(|e| e.raw_os_error())
}

/// Both cache modes: bytes that were written before the flag stay, whether the kernel has written
/// them back or not.
#[test]
fn what_is_immutable_stays_as_it_was_when_it_became_so() {
    if no_fuse() || not_root(NEEDS_ROOT) {
        return;
    }
    for options in ["", " -o writeback_cache"] {
        let place = mounted(options);
        let path = place.path("mnt/f");
        let text = "a line\n".repeat(10_000);
        let file = fs::File::create(&path).unwrap();
        (&file).write_all(text.as_bytes()).unwrap();
        // A store through a shared mapping, which only the kernel has.
        let store =
            "import mmap\nwith open('mnt/f', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m: m[:5] = b'STORE'";
        let mut python = place.command("python3");
        python.args(["-c", store]);
        tool(python, "python3", LIMIT);
        chattr(&place, "+id mnt/f");
        assert_eq!(lsattr(&place, "mnt/f"), "id");
        file.sync_all().unwrap();
        let mut text = text.into_bytes();
        text[..5].copy_from_slice(b"STORE");

        assert_eq!(errno(fs::remove_file(&path)), EPERM);
        assert_eq!(errno(fs::rename(&path, place.path("mnt/g"))), EPERM);
        assert_eq!(errno(fs::hard_link(&path, place.path("mnt/g"))), EPERM);
        assert_eq!(errno(fs::OpenOptions::new().write(true).truncate(true).open(&path)), EPERM);
        assert_eq!(errno(file.set_len(3)), EPERM);
        // With the writeback cache the kernel takes the bytes, and learns of it when it writes.
        let told = file.write_at(b"changed", 0).and_then(|_| file.sync_all());
        assert!(told.is_err(), "{options}: {told:?}");
        drop(file);
        kill(&place, "mnt");
        place.run("mount disk.kedge mnt").ok();
        assert_eq!(fs::read(&path).unwrap(), text, "{options}");
        assert_eq!(lsattr(&place, "mnt/f"), "id");
        chattr(&place, "-i mnt/f");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn what_is_append_only_grows_at_its_end() {
    if no_fuse() || not_root(NEEDS_ROOT) {
        return;
    }
    for options in ["", " -o writeback_cache"] {
        let place = mounted(options);
        let path = place.path("mnt/log");
        fs::write(&path, "first\n").unwrap();
        chattr(&place, "+a mnt/log");
        let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
        for line in ["second\n", "third\n"] {
            log.write_all(line.as_bytes()).unwrap();
            log.sync_all().unwrap();
        }
        assert_eq!(errno(log.set_len(3)), EPERM);
        assert_eq!(errno(fs::remove_file(&path)), EPERM);
        let over = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let told = over.write_at(b"FIRST", 0).and_then(|_| over.sync_all());
        assert!(told.is_err(), "{options}: {told:?}");
        drop((log, over));
        kill(&place, "mnt");
        place.run("mount disk.kedge mnt").ok();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nthird\n", "{options}");
    }
}

/// A user who is not root loses the file's privilege with a change of its contents. What an
/// append-only file refuses, costs it nothing.
#[test]
fn an_append_drops_the_privilege_of_an_append_only_file() {
    if no_fuse() || not_root(NEEDS_ROOT) {
        return;
    }
    for options in ["", " -o writeback_cache"] {
        let place = mounted(options);
        for path in ["", "mnt"] {
            fs::set_permissions(place.path(path), Permissions::from_mode(0o755)).unwrap();
        }
        let path = place.path("mnt/log");
        for (change, mode) in [
            ("echo second >> mnt/log", Ok(0o777)),
            ("fallocate -l 100 mnt/log", Ok(0o777)),
            ("fallocate -p -l 3 mnt/log", Err(0o6777)),
            ("echo FIRST 1<> mnt/log", Err(0o6777)),
            (": > mnt/log", Err(0o6777)),
        ] {
            fs::write(&path, "first\n").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
            chattr(&place, "+a mnt/log");
            let mut command = place.command("setpriv");
            command.args(["--reuid", "1", "--regid", "1", "--clear-groups", "sh", "-c", change]);
            let out = output_within(command, LIMIT).unwrap();
            let mode_now = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            let ended = if out.status.success() { Ok(mode_now) } else { Err(mode_now) };
            assert_eq!(ended, mode, "{options}: {change}: {}", String::from_utf8_lossy(&out.stderr));
            chattr(&place, "-a mnt/log");
        }
    }
}

/// Both kinds of ioctl, on a directory that hands its flags on.
#[test]
fn tools_see_and_set_what_a_directory_hands_on() {
    if no_fuse() || not_root(NEEDS_ROOT) {
        return;
    }
    let place = mounted("");
    fs::create_dir(place.path("mnt/d")).unwrap();
    chattr(&place, "+dA mnt/d");
    fs::write(place.path("mnt/d/f"), "text").unwrap();
    assert_eq!(lsattr(&place, "mnt/d/f"), "dA");
    chattr(&place, "=d mnt/d/f");
    assert_eq!(lsattr(&place, "mnt/d/f"), "d");
    let other = place.command("chattr").args(["+c", "mnt/d/f"]).output().unwrap();
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && said.contains("not supported"), "{said}");
    assert_eq!(lsattr(&place, "mnt/d/f"), "d");
}

/// The owner may set what forbids nothing, others nothing, and only root what forbids.
#[test]
fn the_kernel_asks_who_may() {
    if no_fuse() || not_root(NEEDS_ROOT) {
        return;
    }
    let place = mounted("");
    for path in ["", "mnt"] {
        fs::set_permissions(place.path(path), Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(place.path("mnt/f"), "text").unwrap();
    std::os::unix::fs::chown(place.path("mnt/f"), Some(65534), None).unwrap();
    let may = |user: &str, flags: &str| {
        let mut command = place.command("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "chattr", flags, "mnt/f"]);
        output_within(command, LIMIT).unwrap().status.success()
    };
    assert!(may("65534", "+d") && !may("1", "-d") && !may("65534", "+i") && !may("65534", "+a"));
    assert_eq!(lsattr(&place, "mnt/f"), "d");
}
