//! Attackers that must not command a mount: root of a container without capabilities, root of a
//! user namespace, ordinary users, servers that only look like KedgeFS. None of their attempts
//! succeeds, and none delays a command of another user for long.
//!
//! The tests need root, as the target and to drop its rights. Without root they report that they
//! are skipped.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, copy_program, no_fuse, not_root, output_of, until};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use tar::{EntryType, Header};

const NEEDS_ROOT: &str = "only root can give its rights away";

/// Root's own PATH may contain directories that users cannot enter.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

fn left_out() -> bool {
    no_fuse() || not_root(NEEDS_ROOT)
}

/// Tries everything that would command the mount of a directory or plant files in it. Prints each
/// attempt that succeeded or that took longer than a bounded wait.
const ATTACK: &str = r#"
import array, ctypes, errno, fcntl, os, socket, struct, sys, time
view, expected = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
REFUSED = (errno.EPERM, errno.EACCES, errno.EROFS, errno.EOPNOTSUPP, errno.ENOTTY)

def tries(what, call):
    begun = time.monotonic()
    try:
        call()
        print("DONE", what, flush=True)
    except OSError as e:
        if e.errno not in REFUSED:
            print("ODD", what, e, flush=True)
    if time.monotonic() - begun > 10:
        print("SLOW", what, flush=True)

fd = os.open(view, os.O_RDONLY)
tries("trim", lambda: fcntl.ioctl(fd, 0xC0185879, struct.pack("QQQ", 0, 1 << 62, 0)))
if expected != "only trim":
    for flag in (2, 1, 0):
        tries(f"shutdown {flag}", lambda: fcntl.ioctl(fd, 0x8004587D, struct.pack("I", flag)))
    tries("freeze", lambda: fcntl.ioctl(fd, 0x40046B01, struct.pack("I", 1)))
    tries("thaw", lambda: fcntl.ioctl(fd, 0x6B02))
    tries("the kernel's freeze", lambda: fcntl.ioctl(fd, 0xC0045877, 0))
    tries("options", lambda: os.setxattr(view, "system.kedgefs.options", b"noatime"))
    tries("size", lambda: os.setxattr(view, "system.kedgefs.size", b"1073741824"))
    tries("flags", lambda: fcntl.ioctl(fd, 0x40086602, struct.pack("L", 0x10)))

# The bulk service: the names that can be known.
device = os.stat(view).st_dev
names = [f"{place}/mount-{os.major(device)}:{os.minor(device)}" for place in ("/run/kedgefs", "/tmp/kedgefs-65534")]
for name in names:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    def send():
        peer.connect(name)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        peer.sendmsg([b"kedge-beside 2\n"], rights)
        answer = peer.recv(4096)
        if b'"error":null' in answer:
            print("DONE admitted", flush=True)
        # Whatever was said: the archive follows.
        archive = open("planted.tar", "rb").read()
        peer.sendall(archive)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(4096)
        raise OSError(errno.EPERM, answer)
    begun = time.monotonic()
    try:
        send()
    except (BrokenPipeError, ConnectionResetError, FileNotFoundError):
        pass
    except OSError as e:
        if e.errno not in REFUSED:
            print("ODD bulk", e, flush=True)
    if time.monotonic() - begun > 10:
        print("SLOW bulk", flush=True)
print("end", flush=True)
"#;

/// An archive with a set-user-id file of root, a block device, and a path that leads out of the
/// directory.
fn planted() -> Vec<u8> {
    let entry = |path: &str, kind, mode, size: u64| {
        let mut header = Header::new_ustar();
        header.set_path(path).unwrap();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_device_major(8).unwrap();
        header.set_device_minor(0).unwrap();
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let file = entry("planted", EntryType::Regular, 0o4755, 0);
    [file, entry("device", EntryType::Block, 0o666, 0), vec![0; 1024]].concat()
}

/// An archive with a second name for an existing file.
fn link_to(target: &str) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_path("second").unwrap();
    header.set_link_name(target).unwrap();
    header.set_entry_type(EntryType::Link);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header.set_cksum();
    [header.as_bytes().to_vec(), vec![0; 1024]].concat()
}

/// Runs the attack as another user, through a view of the mount. Returns the lines that it printed.
#[track_caller]
fn attack(place: &Place, become_one: &str, view: &str, expected: &str) -> Vec<String> {
    let script = format!(
        "mkdir -p view; mount --bind mnt/shared view; mount -o remount,bind,{view} view\n\
         exec {become_one} python3 -c \"$ATTACK\" view '{expected}'"
    );
    let mut command = place.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-euc", &script]).env("ATTACK", ATTACK);
    command.env("PATH", PATH);
    let out = output_of(command).unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{become_one}: {said}{}", String::from_utf8_lossy(&out.stderr));
    said.lines().map(str::to_owned).collect()
}

fn target() -> Place {
    let place = Place::after("mount -o allow_other --create 64M disk.kedge mnt");
    fs::create_dir(place.path("mnt/shared")).unwrap();
    fs::set_permissions(place.path("mnt/shared"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(place.path("planted.tar"), planted()).unwrap();
    place
}

/// The names of the serving process's sockets in the abstract space.
fn abstract_names(place: &Place) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{}/fd", common::pid(place, "mnt").as_raw_nonzero())).unwrap();
    let links = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let own: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let fields = sockets.lines().skip(1).map(|line| line.split_ascii_whitespace().skip(6));
    let named = fields.filter_map(|mut rest| Some((rest.next()?, rest.next()?)));
    let mine: Vec<_> = named.filter(|(inode, _)| own.contains(&format!("socket:[{inode}]"))).collect();
    assert!(mine.iter().any(|(_, name)| name.contains("mount-")), "its socket is not seen: {mine:?}");
    mine.into_iter().filter(|(_, name)| name.starts_with('@')).map(|(_, name)| name.to_owned()).collect()
}

/// Regression: root without capabilities in a container, with a read-only view of a directory,
/// stopped the file system of the host and planted a set-user-id file in it.
#[test]
fn nobody_without_capabilities_here_commands_a_mount() {
    if left_out() {
        return;
    }
    let place = target();
    assert_eq!(abstract_names(&place), Vec::<String>::new());
    let ordinary = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let set_group = "setpriv --reuid 65534 --regid 0 --clear-groups";
    for become_one in [
        "setpriv --bounding-set -all --no-new-privs",
        "setpriv --bounding-set -all --no-new-privs unshare_net",
        "setpriv --bounding-set -sys_admin,-linux_immutable",
        "setpriv --bounding-set -sys_admin,-linux_immutable,-mknod --no-new-privs",
        "unshare --user --map-root-user",
        "unshare --user --map-root-user --net",
        "unshare --user --keep-caps",
        ordinary,
        &format!("{ordinary} unshare --user --map-root-user --net"),
        set_group,
    ] {
        // Make the network namespace while the process still has the rights for it.
        let words = match become_one.strip_suffix(" unshare_net") {
            Some(less) => format!("unshare --net {less}"),
            None => become_one.to_owned(),
        };
        for view in ["ro,nosuid,nodev", "rw"] {
            assert_eq!(attack(&place, &words, view, "nothing"), ["end"], "{words}, {view}");
            assert!(place.info("mnt")["shut_down"].is_null(), "{words}");
        }
        fs::write(place.path("mnt/after"), "it goes on").unwrap();
        let there: Vec<_> = fs::read_dir(place.path("mnt/shared")).unwrap().collect();
        assert!(there.is_empty(), "{words}: {there:?}");
    }
    place.unmount_and_check("disk.kedge");
}

/// The attack script can detect a success: root with its capabilities succeeds.
#[test]
fn root_with_its_capabilities_commands_a_mount_and_its_view_bounds_a_copy() {
    if left_out() {
        return;
    }
    let place = target();
    let said = attack(&place, "env", "ro,nosuid,nodev", "only trim");
    assert_eq!(said, ["DONE trim", "end"], "a read-only view takes no files");
    assert_eq!(attack(&place, "env", "rw,nosuid", "only trim"), ["DONE trim", "DONE admitted", "end"]);
    assert!(!place.path("mnt/shared/planted").exists(), "set-user-id through a nosuid mount");

    let copy = |options: &str, line: &str| {
        let script = format!(
            "mkdir -p view; mount --bind mnt/shared view; mount -o remount,bind,{options} view; \
             exec $K {line}"
        );
        let mut command = place.command("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-euc", &script]);
        command.env("K", env!("CARGO_BIN_EXE_kedge"));
        let out = output_of(command).unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    fs::write(place.path("plain"), "text").unwrap();
    fs::write(place.path("raised"), "text").unwrap();
    fs::set_permissions(place.path("raised"), fs::Permissions::from_mode(0o4755)).unwrap();
    for (options, line, word) in [
        ("ro", "cp plain view", "read-only"),
        ("rw,nosuid", "cp raised view", "nosuid"),
        ("rw,nodev", "cp -r devices view", "nodev"),
    ] {
        fs::create_dir_all(place.path("devices")).unwrap();
        if !place.path("devices/null").exists() {
            let made = place.command("mknod").args(["devices/null", "c", "1", "3"]).status().unwrap();
            assert!(made.success());
        }
        let (code, errors) = copy(options, line);
        assert!(code == 1 && errors.contains(word), "{line}: {errors}");
    }
    let (code, errors) = copy("rw,nosuid,nodev", "cp plain view");
    assert_eq!((code, errors.as_str()), (0, ""));
    let (code, errors) = copy("rw", "cp -r raised devices view");
    assert_eq!((code, errors.as_str()), (0, ""));
    let raised = fs::metadata(place.path("mnt/shared/raised")).unwrap();
    assert_eq!((raised.uid(), raised.mode() & 0o7777), (0, 0o4755));
    place.unmount_and_check("disk.kedge");
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes names that other programs connect to, lets their queues fill, and accepts no connection.
const SQUATTER: &str = r#"
import os, socket, sys, time
held = []
def take(address):
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(address)
    except OSError as e:
        print(address, e, file=sys.stderr)
        return
    taken.listen(0)
    held.append(taken)
    for _ in range(3):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            client.connect(address)
        except BlockingIOError:
            break
        held.append(client)
directories = []
for uid in sys.argv[1:]:
    directory = f"/tmp/kedgefs-{uid}"
    try:
        os.mkdir(directory, 0o777)
        os.chmod(directory, 0o777)
        directories.append(directory)
    except FileExistsError:
        pass
numbers = [f"0:{n}" for n in range(20, 120)] + [f"7:{n}" for n in range(40)]
for number in numbers:
    take(f"\0kedgefs-status-{number}")
    for directory in directories:
        take(f"{directory}/mount-{number}")
print("taken", flush=True)
sys.stdin.read()
"#;

/// Runs until it is dropped; its directories are removed.
struct Squatter(Killed, Vec<u32>);

impl Squatter {
    fn start(place: &Place, uids: &[u32]) -> Squatter {
        let mut command = place.command("setpriv");
        command.args(["--reuid", "64902", "--regid", "64902", "--clear-groups", "python3", "-c", SQUATTER]);
        command.args(uids.iter().map(u32::to_string)).env("PATH", PATH);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "taken\n");
        Squatter(Killed(child), uids.to_vec())
    }
}

impl Drop for Squatter {
    fn drop(&mut self) {
        for uid in &self.1 {
            let path = format!("/tmp/kedgefs-{uid}");
            // Remove only directories that the squatter made.
            if fs::metadata(&path).is_ok_and(|meta| meta.uid() == 64902) {
                fs::remove_dir_all(&path).unwrap();
            }
        }
        let _ = self.0.0.kill();
    }
}

#[track_caller]
fn kedge(place: &Place, line: &str) -> String {
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.env_remove("KEDGE_LOG").args(line.split(' '));
    let out = output_of(command).unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{line}: {said}");
    said
}

/// Regression: any user could predict and take the names of sockets, and connect(2) waits without a
/// bound while the queue is full.
#[test]
fn names_that_others_took_make_no_command_wait() {
    if left_out() {
        return;
    }
    let place = Place::new();
    let _squatter = Squatter::start(&place, &[0]);
    fs::create_dir(place.path("mnt")).unwrap();
    for line in [
        "mkfs --size 32M disk.kedge",
        "mount disk.kedge mnt",
        "info mnt",
        "info --json mnt",
        "stats mnt",
        "top --once mnt",
        "remount mnt -o noatime",
        "freeze mnt",
        "thaw mnt",
        "scrub mnt",
        "cp disk.tar mnt",
        "umount mnt",
        "fsck disk.kedge",
        "mkfs -f disk.kedge",
    ] {
        fs::write(place.path("disk.tar"), "a file").unwrap();
        kedge(&place, line);
    }
}

/// The same attack against a user whose directory for sockets another user has made.
#[test]
fn a_directory_that_another_user_made_is_not_used() {
    if left_out() {
        return;
    }
    // The mount helper looks up the name of its user, and this user exists on every system.
    const USER: u32 = 2;
    let place = Place::new();
    let _squatter = Squatter::start(&place, &[USER]);
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    copy_program(&place.path("kedge"));
    fs::write(place.path("file"), "text").unwrap();
    let user = |line: &str| {
        let mut command = place.command("setpriv");
        command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
        command.arg(place.path("kedge")).args(line.split(' '));
        command.env_remove("XDG_RUNTIME_DIR").env("PATH", PATH);
        let out = output_of(command).unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, errors) = user("mount --create 32M disk.kedge mnt");
    assert_eq!(code, 0, "{errors}");
    for line in ["info mnt", "stats mnt", "freeze mnt", "thaw mnt"] {
        let (code, errors) = user(line);
        assert_eq!(code, 0, "{line}: {errors}");
    }
    let (code, errors) = user("cp file mnt");
    assert!(code == 1 && errors.contains("cp(1) and tar(1) do without"), "{errors}");
    let (code, errors) = user("umount mnt");
    assert_eq!(code, 0, "{errors}");
}

/// A FUSE server of any kind that replies to the requests of `kedge cp`, and records them.
const LIKENESS: &str = r#"
import ctypes, os, struct, sys
kind, owner, directory, seen = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id={owner},group_id={owner},allow_other"
if libc.mount(b"likeness", directory.encode(), kind.encode(), 0, options.encode()):
    raise OSError(ctypes.get_errno(), "mount")
print("mounted", flush=True)
log = open(seen, "w", buffering=1)
while True:
    try:
        request = os.read(fd, 1 << 18)
    except OSError:
        break
    _, op, unique, node, *_ = struct.unpack("<IIQQ", request[:24])
    def reply(error, data=b""):
        os.write(fd, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
    if op == 26:
        reply(0, struct.pack("<IIIIHHIIHHII24x", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, 0, 0))
    elif op == 3:
        attributes = struct.pack("<6Q3I7I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, 0, 0, 0, 4096, 0)
        reply(0, struct.pack("<QII", 0, 0, 0) + attributes)
    elif op == 27:
        reply(0, bytes(16))
    elif op == 29:
        reply(0)
    elif op == 22:
        print("asked for", request[48:].split(b"\0")[0].decode(), file=log)
        size = struct.unpack("<I", request[40:44])[0]
        reply(0, b"1" if size else struct.pack("<II", 1, 0))
    elif op == 1:
        reply(-2)
    elif op not in (2, 36, 42):
        reply(-38)
"#;

fn likeness(place: &Place, kind: &str, owner: u32) -> Killed {
    fs::create_dir_all(place.path("like")).unwrap();
    let mut command = place.command("python3");
    command.args(["-c", LIKENESS, kind, &owner.to_string()]).arg(place.path("like")).arg("seen");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let server = Killed(child);
    assert_eq!(said, "mounted\n");
    server
}

fn detach(dir: &Path) {
    kedge_fuse::unmount(dir, true).unwrap();
    until("it is detached", || kedge_fuse::mount_at(dir).is_none());
}

/// Listens under a name, reads what clients send, and replies with success.
const LISTENER: &str = r#"
import os, socket, sys
os.makedirs(os.path.dirname(sys.argv[1]), mode=0o700, exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
client, _ = listener.accept()
client.settimeout(5)
print("got", client.recv(100), flush=True)
"#;

/// Regression: the files went to the socket named by whatever server replied, even of another file
/// system.
#[test]
fn a_copy_goes_to_no_other_file_system_and_to_no_other_process() {
    if left_out() {
        return;
    }
    let place = Place::new();
    fs::write(place.path("file"), "secret").unwrap();
    let dir = place.path("like");
    for (kind, owner, code, word) in [
        ("fuse.likeness", 0, 2, "use cp(1)"),
        ("fuse.kedgefs", 65534, 1, "only root and the user who serves the mount"),
        ("fuse.kedgefs", 0, 1, "reach the process that serves"),
    ] {
        let server = likeness(&place, kind, owner);
        let dir = dir.canonicalize().unwrap();
        place.run("cp file like").refused(code, &[word]);
        let seen = fs::read_to_string(place.path("seen")).unwrap();
        assert_eq!(seen.contains("kedgefs"), kind == "fuse.kedgefs" && owner == 0, "{kind}: {seen}");
        detach(&dir);
        drop(server);
    }

    // Another process of root listens under the name.
    let server = likeness(&place, "fuse.kedgefs", 0);
    let dir = dir.canonicalize().unwrap();
    let device = kedge_fuse::mount_at(&dir).unwrap().device;
    let path = format!("/run/kedgefs/mount-{device}");
    let mut command = place.command("python3");
    let mut child = command.args(["-c", LISTENER, &path]).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let listener = Killed(child);
    let refused = place.run("cp file like");
    line.clear();
    said.read_line(&mut line).unwrap();
    fs::remove_file(&path).unwrap();
    refused.refused(1, &["in place of the process that serves the mount"]);
    assert_eq!(line, "got b''\n", "nothing was sent");
    drop(listener);
    detach(&dir);
    drop(server);
}

/// The same uid has no rights from a sandbox, that is, in other namespaces.
#[test]
fn a_user_commands_the_own_mount_but_not_from_a_sandbox() {
    if left_out() {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    copy_program(&place.path("kedge"));
    fs::write(place.path("planted.tar"), planted()).unwrap();
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let run = |become_one: &str, line: &str| {
        let mut words = become_one.split(' ');
        let mut command = place.command(words.next().unwrap());
        command.args(words).args(["sh", "-euc", line]).env("K", place.path("kedge")).env("ATTACK", ATTACK);
        command.env("PATH", PATH);
        let out = output_of(command).unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        (out.status.success(), said, String::from_utf8(out.stderr).unwrap())
    };
    let (ok, _, errors) = run(user, "$K mount --create 32M disk.kedge mnt; mkdir mnt/shared");
    assert!(ok, "{errors}");
    let (ok, _, errors) = run(
        user,
        "$K freeze mnt; $K thaw mnt; $K trim mnt
        python3 -c 'import os; os.setxattr(\"mnt\", \"system.kedgefs.options\", b\"noatime\")'",
    );
    assert!(ok, "{errors}");
    let sandbox = format!("{user} unshare --user --map-user 65534 --mount --propagation private");
    let view = "mount --bind mnt/shared mnt/shared || true";
    let attack = "exec python3 -c \"$ATTACK\" mnt/shared nothing";
    for become_one in [
        format!("{user} unshare --user"),
        format!("{user} unshare --user --map-root-user --mount --propagation private"),
        sandbox,
        // A sandbox without a user namespace: a service that root runs as the user, with another
        // view of the file systems.
        format!("unshare --mount --propagation private {user}"),
    ] {
        let (ok, said, errors) = run(&become_one, &format!("{view} 2> /dev/null; {attack}"));
        assert!(ok && said == "end\n", "{become_one}: {said}{errors}");
    }
    let (ok, said, errors) = run(user, "ls -A mnt/shared; $K umount mnt");
    assert!(ok && said.is_empty(), "{said}{errors}");
    assert_eq!(place.run("fsck disk.kedge").code, 0);

    // Files of other users in the image stay unchanged, as with any mount through the kernel.
    fs::write(place.path("mine"), "").unwrap();
    fs::create_dir_all(place.path("tree/theirs")).unwrap();
    fs::write(place.path("tree/theirs/new"), "").unwrap();
    place.run("cp -r tree/theirs disk.kedge:/shared").ok();
    place.run("cp mine disk.kedge:/shared/set").ok();
    let (ok, _, errors) = run(user, "$K mount disk.kedge mnt");
    assert!(ok, "{errors}");
    fs::write(place.path("link.tar"), link_to("set")).unwrap();
    for line in [
        "$K cp mine mnt/shared/theirs",
        "$K cp -r tree/theirs mnt/shared",
        "tar -C tree -cf walk.tar theirs/new; $K tar -x -f walk.tar mnt/shared",
        "$K tar -x -f link.tar mnt/shared",
    ] {
        let (ok, _, errors) = run(user, line);
        assert!(
            !ok && (errors.contains("another user's") || errors.contains("Permission")),
            "{line}: {errors}"
        );
    }
    let (ok, _, errors) = run(user, "$K cp mine mnt/shared; $K cp -r tree mnt/shared; $K umount mnt");
    assert!(ok, "{errors}");
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}
