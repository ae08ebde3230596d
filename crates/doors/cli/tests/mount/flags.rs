//! File flags on the real mount: chattr, lsattr, and the operations that the flags forbid, through
//! the kernel.

use crate::common::{Place, kill, needs_fuse, output_of, tool};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

const NEEDS_ROOT: &str = "only root may make files immutable";
const EPERM: Option<i32> = Some(1);

fn mounted(options: &str) -> Place {
    let place = Place::after("mkfs --immutable --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run(&format!("mount{options} disk.kedge mnt")).ok();
    place
}

/// The error of a chattr that must fail.
fn chattr_refused(place: &Place, args: &str) -> String {
    let output = place.command("chattr").args(args.split(' ')).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "chattr {args} succeeds");
    said
}

fn chattr(place: &Place, args: &str) {
    let mut command = place.command("chattr");
    command.args(args.split(' '));
    tool(command, "e2fsprogs");
}

/// The letters of the flags that are set.
fn lsattr(place: &Place, path: &str) -> String {
    let mut command = place.command("lsattr");
    command.args(["-d", path]);
    let line = tool(command, "e2fsprogs");
    line.split(' ').next().unwrap().replace('-', "")
}

fn errno<T>(answer: std::io::Result<T>) -> Option<i32> {
    answer.err().and_then(|e| e.raw_os_error())
}

/// In both cache modes bytes written before the flag was set stay, whether the kernel has written
/// them back or not.
#[test]
fn what_is_immutable_stays_as_it_was_when_it_became_so() {
    needs_fuse!(root: NEEDS_ROOT);
    for options in ["", " -o writeback_cache"] {
        let place = mounted(options);
        let path = place.path("mnt/f");
        let text = "a line\n".repeat(10_000);
        let file = fs::File::create(&path).unwrap();
        (&file).write_all(text.as_bytes()).unwrap();
        // Store through a shared mapping; the bytes are only in the kernel's page cache.
        let store =
            "import mmap\nwith open('mnt/f', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m: m[:5] = b'STORE'";
        let mut python = place.command("python3");
        python.args(["-c", store]);
        tool(python, "python3");
        if !options.is_empty() {
            // The flag is refused, because this descriptor could still store into the kernel's
            // pages.
            let busy = chattr_refused(&place, "+id mnt/f");
            assert!(busy.contains("Text file busy"), "{busy}");
        }
        let file = if options.is_empty() {
            file
        } else {
            drop(file);
            fs::File::open(&path).unwrap()
        };
        chattr(&place, "+id mnt/f");
        assert_eq!(lsattr(&place, "mnt/f"), "id");
        file.sync_all().unwrap();
        let mut text = text.into_bytes();
        text[..5].copy_from_slice(b"STORE");

        assert_eq!(errno(fs::remove_file(&path)), EPERM);
        assert_eq!(errno(fs::rename(&path, place.path("mnt/g"))), EPERM);
        assert_eq!(errno(fs::hard_link(&path, place.path("mnt/g"))), EPERM);
        assert_eq!(errno(fs::OpenOptions::new().write(true).truncate(true).open(&path)), EPERM);
        if options.is_empty() {
            assert_eq!(errno(file.set_len(3)), EPERM);
            assert_eq!(errno(file.write_at(b"changed", 0)), EPERM);
        }
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
    needs_fuse!(root: NEEDS_ROOT);
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
        assert_eq!(errno(fs::OpenOptions::new().write(true).open(&path)), EPERM);
        drop(log);
        kill(&place, "mnt");
        place.run("mount disk.kedge mnt").ok();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nthird\n", "{options}");
    }
}

/// A change of the contents by a user other than root clears the set-id bits of the file. A change
/// that the append-only flag forbids clears no bits.
#[test]
fn an_append_drops_the_privilege_of_an_append_only_file() {
    needs_fuse!(root: NEEDS_ROOT);
    const APPENDS: &str =
        "python3 -c 'import os; os.posix_fallocate(os.open(\"mnt/log\", os.O_WRONLY | os.O_APPEND), 0, 100)'";
    for options in ["", " -o writeback_cache"] {
        let place = mounted(options);
        for path in ["", "mnt"] {
            fs::set_permissions(place.path(path), Permissions::from_mode(0o755)).unwrap();
        }
        let path = place.path("mnt/log");
        for (change, mode) in [
            ("echo second >> mnt/log", Ok(0o777)),
            (APPENDS, Ok(0o777)),
            ("fallocate -p -l 3 mnt/log", Err(0o6777)),
            ("echo FIRST 1<> mnt/log", Err(0o6777)),
            (": > mnt/log", Err(0o6777)),
        ] {
            fs::write(&path, "first\n").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
            chattr(&place, "+a mnt/log");
            let mut command = place.command("setpriv");
            command.args(["--reuid", "1", "--regid", "1", "--clear-groups", "sh", "-c", change]);
            let out = output_of(command).unwrap();
            let mode_now = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            let ended = if out.status.success() { Ok(mode_now) } else { Err(mode_now) };
            assert_eq!(ended, mode, "{options}: {change}: {}", String::from_utf8_lossy(&out.stderr));
            chattr(&place, "-a mnt/log");
        }
    }
}

/// Uses both ioctl interfaces, on a directory whose new files inherit its flags.
#[test]
fn tools_see_and_set_what_a_directory_hands_on() {
    needs_fuse!(root: NEEDS_ROOT);
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

/// The owner may set flags that forbid nothing, only root flags that forbid changes, and other
/// users none.
#[test]
fn the_kernel_asks_who_may() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = mounted("");
    for path in ["", "mnt"] {
        fs::set_permissions(place.path(path), Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(place.path("mnt/f"), "text").unwrap();
    std::os::unix::fs::chown(place.path("mnt/f"), Some(65534), None).unwrap();
    let may = |user: &str, flags: &str| {
        let mut command = place.command("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "chattr", flags, "mnt/f"]);
        output_of(command).unwrap().status.success()
    };
    assert!(may("65534", "+d") && !may("1", "-d") && !may("65534", "+i") && !may("65534", "+a"));
    assert_eq!(lsattr(&place, "mnt/f"), "d");
}

/// Prints the results of open(2) and of a shared mapping of a flagged file, then the bytes that
/// another program reads, and the result of its syncfs.
const OPENS: &str = r#"
import errno, mmap, os, subprocess
os.chdir("mnt")
def tries(want, what, call):
    try:
        got = "ok"
        call()
    except OSError as e:
        got = errno.errorcode[e.errno]
    assert got == want, (what, got, want)
def chattr(flags, name):
    return subprocess.run(["chattr", flags, name], capture_output=True, text=True)
def opens(name, wanted):
    for want, flags in wanted:
        tries(want, (name, flags), lambda: os.close(os.open(name, flags)))
RW, W, R, A, T = os.O_RDWR, os.O_WRONLY, os.O_RDONLY, os.O_APPEND, os.O_TRUNC
open("f", "w").write("text of f\n")
open("log", "w").write("line 0\n")
mapped = os.open("f", RW)
mapping = mmap.mmap(mapped, 4)
os.close(mapped)
assert "Text file busy" in chattr("+i", "f").stderr
mapping[:4] = b"TEXT"
mapping.close()
assert chattr("+i", "f").returncode == 0
opens("f", [("EPERM", RW), ("EPERM", W), ("EPERM", W | A), ("EPERM", R | T), ("EPERM", W | T), ("ok", R)])
reader = os.open("f", R)
tries("EACCES", "a shared mapping", lambda: mmap.mmap(reader, 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
assert os.read(reader, 100) == b"TEXT of f\n"

early = os.open("log", W)
if writeback:
    assert "Text file busy" in chattr("+a", "log").stderr
    os.close(early)
assert chattr("+a", "log").returncode == 0
opens("log", [("EPERM", RW), ("EPERM", W), ("EPERM", R | T), ("EPERM", W | A | T), ("ok", R), ("ok", W | A)])
log = os.open("log", RW | A)
tries("ENODEV", "a shared mapping", lambda: mmap.mmap(log, 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
if not writeback:
    tries("EPERM", "over what is there", lambda: os.pwrite(early, b"LINE", 0))
reader = os.open("log", R)
text = b"line 0\n"
for i in range(1, 3000):
    line = b"line %d\n" % i
    os.write(log, line)
    text += line
    # The pages that the kernel has for readers follow.
    assert os.pread(reader, 100, len(text) - len(line)) == line, i
assert os.pread(reader, 1 << 20, 0) == text
assert chattr("+i", "log").returncode == 0
tries("EPERM", "an append to what is immutable now", lambda: os.write(log, b"x"))
subprocess.run(["sync", "-f", "."], check=True)
assert chattr("-i", "f").returncode == 0
opens("f", [("ok", RW), ("ok", W | T)])
"#;

#[test]
fn what_is_flagged_is_not_opened_for_writing() {
    needs_fuse!(root: NEEDS_ROOT);
    for (options, writeback) in [("", "False"), (" -o writeback_cache", "True")] {
        let place = mounted(options);
        let mut python = place.command("python3");
        python.args(["-c", &format!("writeback = {writeback}\n{OPENS}")]);
        tool(python, "python3");
        place.unmount_and_check("disk.kedge");
    }
}

/// A mount that receives no opens (`no_open`) could not enforce the flags of files.
#[test]
fn an_image_without_the_feature_refuses_until_it_is_tuned() {
    needs_fuse!(root: NEEDS_ROOT);
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::write(place.path("mnt/f"), "text").unwrap();
    for flags in ["+i", "+a"] {
        let said = chattr_refused(&place, &format!("{flags} mnt/f"));
        assert!(said.contains("not supported"), "{said}");
    }
    chattr(&place, "+dA mnt/f");
    assert_eq!(place.info("mnt")["mount"]["options"]["no_open"], true);
    // The flag is permitted for a directory: each change of a directory is a request to the mount.
    fs::create_dir(place.path("mnt/dir")).unwrap();
    chattr(&place, "+i mnt/dir");
    assert_eq!(errno(fs::File::create(place.path("mnt/dir/new"))), EPERM);
    assert_eq!(errno(fs::remove_dir(place.path("mnt/dir"))), EPERM);
    chattr(&place, "-i mnt/dir");
    place.unmount();
    place.run("tune --immutable disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    assert_eq!(place.info("mnt")["mount"]["options"]["no_open"], false);
    chattr(&place, "+i mnt/f");
    assert_eq!(lsattr(&place, "mnt/f"), "idA");
    assert_eq!(errno(fs::OpenOptions::new().write(true).open(place.path("mnt/f"))), EPERM);
    chattr(&place, "-i mnt/f");
    place.unmount_and_check("disk.kedge");
}

/// The kernel does not know that the ioctl changes the ctime, so it must not show a cached one.
#[test]
fn chattr_moves_the_ctime_that_stat_shows() {
    needs_fuse!(root: NEEDS_ROOT);
    use std::os::unix::fs::MetadataExt;
    let place = mounted("");
    let path = place.path("mnt/f");
    fs::write(&path, "text").unwrap();
    let ctime = || fs::metadata(&path).map(|m| (m.ctime(), m.ctime_nsec())).unwrap();
    for flags in ["+A", "+i", "-i", "+a", "=d"] {
        let before = ctime();
        // The clock of time stamps ticks every few milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        chattr(&place, &format!("{flags} mnt/f"));
        assert!(ctime() > before, "{flags}");
    }
}
