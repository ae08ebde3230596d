//! Unprivileged users against root: their mounts, file names and writes neither block nor mislead
//! root's commands.
//!
//! The tests need root, to act as root and as the user. Without root they report that they are
//! skipped.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, copy_program, no_fuse, output_of, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The uid of "nobody" on most systems; the user need not exist.
const USER: u32 = 65534;

fn left_out() -> bool {
    let unprivileged = !rustix::process::geteuid().is_root();
    if unprivileged {
        kedge_base::skip::note("only root can become another user");
    }
    no_fuse() || unprivileged
}

/// A server that any user can run: it mounts with the set-user-id helper, under a source of the
/// user's choice, and never replies to a request.
const SILENT_SERVER: &str = r#"
import array, os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
environment = dict(os.environ, _FUSE_COMMFD=str(theirs.fileno()))
command = ["fusermount3", "-o", "fsname=" + sys.argv[1] + ",subtype=kedgefs", "--", sys.argv[2]]
subprocess.run(command, pass_fds=[theirs.fileno()], env=environment, check=True)
fds = array.array("i")
_, control, _, _ = ours.recvmsg(1, socket.CMSG_LEN(fds.itemsize))
fds.frombytes(control[0][2])
print("mounted", flush=True)
time.sleep(3600)
"#;

/// A process of the user and its mount, both ended on drop.
struct Server(Child, PathBuf);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        if let Err(e) = kedge_fuse::unmount(&self.1, true) {
            eprintln!("{}: {e}", self.1.display());
        }
    }
}

/// A command that runs as the user.
fn as_user(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    // Root's own PATH may contain directories that the user cannot enter.
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups", program]);
    command
}

/// Makes a directory of root that other users may read, and a directory of the user in it.
fn place() -> (Place, PathBuf) {
    let place = Place::new();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = place.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(USER), Some(USER)).unwrap();
    (place, theirs)
}

fn silent_mount(source: &Path, dir: &Path) -> Server {
    fs::create_dir(dir).unwrap();
    chown(dir, Some(USER), Some(USER)).unwrap();
    let mut command = as_user("python3");
    command.args(["-c", SILENT_SERVER]).args([source, dir]).stdin(Stdio::null());
    let mut server = Server(command.spawn().unwrap(), dir.to_owned());
    until("the user's mount is there", || {
        assert_eq!(server.0.try_wait().unwrap(), None, "the server has ended");
        kedge_fuse::mount_at(dir).is_some_and(|m| m.owner == Some(USER) && m.source == source)
    });
    server
}

/// `kedge` as root; a hang fails the test.
#[track_caller]
fn kedge(place: &Place, line: &str) -> (i32, String) {
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.env_remove("KEDGE_LOG").args(line.split(' '));
    let output = output_of(command).unwrap();
    let text = format!(
        "{line}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.code().expect("ends by itself"), text)
}

#[track_caller]
fn works(place: &Place, line: &str) {
    let (code, text) = kedge(place, line);
    assert_eq!(code, 0, "{text}");
}

/// Regression: the in-use check followed the sources of all mounts, and any user can mount a server
/// under any source, for example the image's path or a symlink to it.
#[test]
fn a_mount_that_names_an_image_does_not_block_it() {
    if left_out() {
        return;
    }
    let (place, theirs) = place();
    works(&place, "mkfs --size 32M disk.kedge");
    let image = place.path("disk.kedge").canonicalize().unwrap();
    let link = theirs.join("link");
    symlink(&image, &link).unwrap();
    let _by_name = silent_mount(&image, &theirs.join("a"));
    let _by_link = silent_mount(&link, &theirs.join("b"));
    works(&place, "fsck disk.kedge");
    works(&place, "fsck -y -f disk.kedge");
    works(&place, "mkfs -f disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    works(&place, "mount disk.kedge mnt");
    // A real mount is still reported: root's own mount, found by the inode of its loop device.
    let (code, text) = kedge(&place, "fsck disk.kedge");
    assert!(code == 8 && text.contains("disk.kedge is mounted on") && text.contains("/mnt"), "{text}");
    fs::hard_link(&image, place.path("other name")).unwrap();
    let (code, text) = kedge(&place, "mkfs -f disk.kedge");
    assert!(code == 1 && text.contains("disk.kedge is mounted on"), "{text}");
    place.unmount();
    works(&place, "fsck disk.kedge");
}

/// A stat, an attribute read or an unmount at a server that does not reply would wait forever.
#[test]
fn a_server_that_hangs_holds_up_nobody() {
    if left_out() {
        return;
    }
    let (place, theirs) = place();
    works(&place, "mkfs --size 32M disk.kedge");
    let image = place.path("disk.kedge").canonicalize().unwrap();
    let hung = theirs.join("hung");
    let server = silent_mount(&image, &hung);
    fs::create_dir(place.path("mnt")).unwrap();
    works(&place, "mount disk.kedge mnt");
    assert!(kedge_fuse::mount_at(&hung).is_some(), "it is not ours to detach");
    let (code, text) = kedge(&place, "mount disk.kedge theirs/hung");
    assert!(code == 1 && text.contains("busy"), "{text}");
    place.unmount();
    let (code, text) = kedge(&place, "umount theirs/hung");
    assert_eq!(code, 0, "{text}");
    assert_eq!(kedge_fuse::mount_at(&hung), None);
    drop(server);
}

/// As above, with a server that has served requests and was then stopped.
#[test]
fn a_server_that_was_stopped_holds_up_nobody() {
    if left_out() {
        return;
    }
    let (place, theirs) = place();
    works(&place, "mkfs --size 32M disk.kedge");
    // Copy the program to a place where the user can run it.
    let program = theirs.join("kedge");
    copy_program(&program);
    let hung = theirs.join("hung");
    let mut command = as_user(program.to_str().unwrap());
    command.args(["mount", "--foreground", "--create", "32M", "their.kedge", "hung"]).current_dir(&theirs);
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    let mut server = Server(child, hung.clone());
    until("the user's mount is served", || {
        assert_eq!(server.0.try_wait().unwrap(), None, "the server has ended");
        let mut look = as_user("test");
        look.args(["-d"]).arg(hung.join("."));
        kedge_fuse::mount_at(&hung).is_some_and(|m| m.is_foreign()) && look.status().unwrap().success()
    });
    kill_process(pid, Signal::STOP).unwrap();
    works(&place, "fsck disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    works(&place, "mount disk.kedge mnt");
    place.unmount();
    // The user's process holds the lock on the user's image.
    let (code, text) = kedge(&place, "fsck theirs/their.kedge");
    assert!(code == 8 && text.contains("in use"), "{text}");
    works(&place, "umount theirs/hung");
    drop(server);
}

/// Regression: root's serving process wrote its messages through any symlink or pipe at the path of
/// its log file.
#[test]
fn a_log_file_is_a_file_and_ones_own() {
    if left_out() {
        return;
    }
    let (place, theirs) = place();
    works(&place, "mkfs --size 32M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(place.path("secret"), "before").unwrap();
    symlink(place.path("secret"), theirs.join("link")).unwrap();
    symlink(place.path("made"), theirs.join("dangling")).unwrap();
    fs::hard_link(place.path("secret"), theirs.join("hard")).unwrap();
    fs::write(theirs.join("file"), "").unwrap();
    chown(theirs.join("file"), Some(USER), Some(USER)).unwrap();
    let fifo = Command::new("mkfifo").arg(theirs.join("pipe")).status().unwrap();
    assert!(fifo.success());
    for name in ["link", "dangling", "hard", "file", "pipe", "."] {
        let (code, text) = kedge(&place, &format!("mount --log-file theirs/{name} disk.kedge mnt"));
        assert!(code == 1 && text.contains("log file"), "{text}");
    }
    assert_eq!(fs::read(place.path("secret")).unwrap(), b"before");
    assert!(!place.path("made").exists());
    works(&place, "mount --log-file log disk.kedge mnt");
    assert_eq!(fs::metadata(place.path("log")).unwrap().permissions().mode() & 0o777, 0o600);
    place.unmount();
    works(&place, "mount --log-file log disk.kedge mnt");
    place.unmount();
}

/// Operations of a user in the user's own directory, at all limits, and forbidden operations
/// elsewhere. Prints a line for each result that a user must not get.
const MISCHIEF: &str = r#"
import ctypes, errno, fcntl, os, stat, struct, sys
mount, home, secret, cache = sys.argv[1:5]
libc = ctypes.CDLL(None, use_errno=True)
ALL_FAULTS = FAULTS = (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN, errno.EUCLEAN, errno.EFAULT)

def bad(what):
    print("BAD", what, flush=True)

def tries(what, call, *wanted):
    """wanted: the errors that may come; none: any but those of a broken file system, or success."""
    try:
        call()
    except OSError as e:
        if e.errno in FAULTS or (wanted and e.errno not in wanted):
            bad(f"{what}: {e}")
        return e.errno
    except OverflowError:
        return errno.EOVERFLOW
    if wanted and 0 not in wanted:
        bad(f"{what}: it worked")
    return 0

os.chdir(home)

# Names.
names = [bytes([b]) * 255 for b in range(1, 256) if b not in b"/."] + [b"..." , b" ", b"\n", b"-", b"\xff\xfe"]
for name in names:
    tries(f"create {name[:4]}", lambda: os.close(os.open(name, os.O_CREAT | os.O_WRONLY)), 0)
found = set(os.listdir(os.fsencode(home)))
if found != set(names):
    bad(f"{len(found)} names of {len(names)}")
for name in names:
    os.unlink(name)
tries("a name of 256", lambda: os.mkdir(b"n" * 256), errno.ENAMETOOLONG)

# Symlinks.
tries("target of 4095", lambda: os.symlink("t" * 4095, "longest"), 0)
tries("target of 4096", lambda: os.symlink("t" * 4096, "longer"), errno.ENAMETOOLONG)
os.symlink("loop", "loop")
tries("loop", lambda: open("loop"), errno.ELOOP)

# Attributes, one's own and the mount's.
open("f", "w").close()
for n in range(300):
    tries("an attribute", lambda: os.setxattr("f", f"user.{n}", b"v" * (n * 16)), 0, errno.ENOSPC, errno.E2BIG, errno.ERANGE)
os.listxattr("f")
for size in (4096, 4097, 65536):
    tries(f"attribute of {size}", lambda: os.setxattr("f", "user.big", b"v" * size))
tries("attribute name of 255", lambda: os.setxattr("f", "user." + "n" * 250, b""), 0)
for name in ("system.kedgefs.options", "system.kedgefs.info", "system.kedgefs.stats", "system.kedgefs.pid", "system.kedgefs.x", "trusted.x", "security.x"):
    for where in ("f", mount):
        tries(f"set {name} of {where}", lambda: os.setxattr(where, name, b"commit=1"), errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
        tries(f"remove {name} of {where}", lambda: os.removexattr(where, name), errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENODATA)
for name in ("system.kedgefs.x", "system.kedgefs.", "system.kedgefs.options"):
    tries(f"get {name}", lambda: os.getxattr(mount, name), errno.ENODATA, errno.EOPNOTSUPP)
for where in (mount, home, "f"):
    fd = os.open(where, os.O_RDONLY)
    for flag in (0, 1, 2, 9):
        tries("shutdown", lambda: fcntl.ioctl(fd, 0x8004587D, struct.pack("I", flag)), errno.EPERM, errno.ENOTTY)
    for request in (0x40086602, 0x80086601, 0x401C5820, 0xC0045878, 0x5401, 0, 0x40047211):
        tries(f"ioctl {request:x}", lambda: fcntl.ioctl(fd, request, b"\0" * 64))
    os.close(fd)

# Offsets and sizes.
fd = os.open("f", os.O_RDWR)
edges = [0, 1, 4095, 4096, 1 << 31, 1 << 32, 1 << 40, (1 << 43) - 1, 1 << 43, 1 << 52, 1 << 54, (1 << 55) - 8192, (1 << 55) - 4096,
         (1 << 55) - 1, 1 << 55, 1 << 56, 1 << 62, (1 << 63) - 8192, (1 << 63) - 4096, (1 << 63) - 2, (1 << 63) - 1]
def fallocate(mode, at, count):
    if libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(count)):
        raise OSError(ctypes.get_errno(), "fallocate")
for at in edges:
    # The kernel's writeback cache takes bytes behind the largest size and learns later that they have no place. Then fsync says
    # so, and so does a punch, in the kernel's words: EIO.
    late = cache == "writeback_cache" and at >= (1 << 55) - 8192
    FAULTS = ALL_FAULTS[1:] if late else ALL_FAULTS
    tries(f"write at {at}", lambda: os.pwrite(fd, b"x" * 5000, at))
    tries(f"read at {at}", lambda: os.pread(fd, 5000, at))
    for whence in (os.SEEK_DATA, os.SEEK_HOLE, os.SEEK_SET):
        tries(f"seek to {at}", lambda: os.lseek(fd, at, whence))
    for count in (1, 4096, 1 << 20, 1 << 40, 1 << 55, (1 << 63) - 1):
        # keep size; punch; collapse; zero; zero and keep; insert; unshare
        for mode in (0x3, 0x8, 0x10, 0x11, 0x20, 0x41):
            tries(f"fallocate {mode} {at} {count}", lambda: fallocate(mode, at, count))
        for mode in (0x0, 0x1):
            if tries(f"fallocate {mode} {at} {count}", lambda: fallocate(mode, at, count)) == 0:
                tries("punch", lambda: fallocate(0x3, at, count))
    tries(f"truncate to {at}", lambda: os.ftruncate(fd, at))
    tries(f"fsync at {at}", lambda: os.fsync(fd), 0, *[errno.EFBIG] * late)
FAULTS = ALL_FAULTS
tries("copy far", lambda: os.copy_file_range(fd, fd, 1 << 20, 0, (1 << 55) - 4096))
os.ftruncate(fd, 0)
os.fsync(fd)
os.close(fd)

# Times.
for second in (-(1 << 62), -1, 0, 1 << 31, 1 << 33, (1 << 63) // 10**9):
    tries(f"time {second}", lambda: os.utime("f", ns=(second * 10**9, second * 10**9)))

# A deep tree, and a directory into itself.
for n in range(1500):
    os.mkdir("d")
    os.chdir("d")
tries("into itself", lambda: os.rename(os.path.join(home, "d"), "e"), errno.EINVAL)
for n in range(1500):
    os.chdir("..")
    os.rmdir("d")

# What is not theirs.
deny = (errno.EACCES, errno.EPERM)
tries("read a secret", lambda: open(secret), *deny)
tries("write a secret", lambda: open(secret, "w"), *deny)
tries("truncate a secret", lambda: os.truncate(secret, 0), *deny)
tries("chmod", lambda: os.chmod(secret, 0o777), *deny)
tries("chown", lambda: os.chown(secret, os.getuid(), -1), *deny)
tries("utime", lambda: os.utime(secret), *deny)
tries("unlink", lambda: os.unlink(secret), *deny)
tries("rename over", lambda: os.rename("f", secret), *deny)
tries("attribute of a secret", lambda: os.getxattr(secret, "user.hidden"), *deny)
tries("set an attribute", lambda: os.setxattr(secret, "user.mine", b""), *deny)
tries("create beside", lambda: os.mkdir(mount + "/mine"), *deny)
tries("a device", lambda: os.mknod("dev", stat.S_IFBLK | 0o666, os.makedev(7, 0)), *deny)
os.chmod("f", 0o6777)
if os.stat("f").st_uid != os.getuid():
    bad("the file has changed hands")
tries("give away", lambda: os.chown("f", 0, 0), *deny)

# All the space there is, and back.
fd = os.open("all", os.O_CREAT | os.O_RDWR)
size = 1 << 20
at = 0
while size >= 4096:
    if tries("fill", lambda: fallocate(0, at, size), 0, errno.ENOSPC) == 0:
        at += size
    else:
        size //= 2
tries("write into a full image", lambda: os.write(os.open("more", os.O_CREAT | os.O_WRONLY), b"x" * 100000), 0, errno.ENOSPC)
tries("fsync all", lambda: os.fsync(fd), 0)
os.close(fd)
os.unlink("all")
print("done", flush=True)
"#;

/// A user in a directory of the user's own on root's mount gets errors; root's files stay
/// unchanged, the mount continues, and the image is clean.
#[test]
fn a_user_at_the_limits_harms_neither_mount_nor_others() {
    if left_out() {
        return;
    }
    for options in ["writeback_cache", "nowriteback_cache"] {
        let (place, _) = place();
        works(&place, &format!("mount --create 64M -o {options} disk.kedge mnt"));
        let (home, secret) = (place.path("mnt/home"), place.path("mnt/secret"));
        fs::create_dir(&home).unwrap();
        chown(&home, Some(USER), Some(USER)).unwrap();
        fs::write(&secret, "root's").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        rustix::fs::setxattr(&secret, "user.hidden", b"root's", rustix::fs::XattrFlags::empty()).unwrap();
        let before = place.info("mnt")["options"].clone();
        let mut command = as_user("python3");
        command.args(["-c", MISCHIEF]).args([&place.path("mnt"), &home, &secret]).arg(options);
        let output = output_of(command).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said == "done\n", "{options}: {said}{errors}");
        assert_eq!(place.info("mnt")["options"], before, "{options}");
        assert_eq!(fs::read(&secret).unwrap(), b"root's", "{options}");
        fs::write(place.path("mnt/after"), "it goes on").unwrap();
        match options {
            "writeback_cache" => place.unmount_refused_and_check("disk.kedge"),
            _ => place.unmount_and_check("disk.kedge"),
        }
    }
}

/// The number of files on which a user has begun an atomic write, and the errno of the next begin.
const ATOMIC_WRITES: &str = r"
import fcntl, os, sys
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
begun = 0
try:
    for file in files:
        fcntl.ioctl(file, 0xF501)
        begun += 1
except OSError as e:
    print(begun, e.errno)
";

/// A mount has a bounded number of atomic writes.
#[test]
fn a_reader_takes_no_atomic_write_and_a_user_not_all() {
    if left_out() {
        return;
    }
    let (place, _) = place();
    fs::create_dir(place.path("mnt")).unwrap();
    works(&place, "mount --create 64M disk.kedge mnt");
    fs::set_permissions(place.path("mnt"), fs::Permissions::from_mode(0o755)).unwrap();
    let begin = |prefix: &str, owner| {
        let files: Vec<_> = (0..64).map(|n| place.path(&format!("mnt/{prefix}{n}"))).collect();
        for file in &files {
            fs::write(file, "").unwrap();
            chown(file, Some(owner), Some(owner)).unwrap();
        }
        let mut command = as_user("python3");
        command.args(["-c", ATOMIC_WRITES]).args(files);
        let output = output_of(command).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(begin("of_root", 0), format!("0 {}\n", libc::EACCES));
    assert_eq!(begin("of_user", USER), format!("32 {}\n", libc::EBUSY));
    place.unmount();
}
