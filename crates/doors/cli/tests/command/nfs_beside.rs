//! `kedge mount --nfs`: an image that is mounted and served over NFS at the same time. Each side
//! sees the other's changes at once, also what it had cached before.

use super::nfs::client::{Client, FILE_SYNC, NOENT, STALE, Set, Time, UNSTABLE, mode, size};
use crate::common::io::Mapping;
use crate::common::{Place, needs_fuse, pid, until, until_dead};
use kedge_base::spawn_named;
use parking_lot::Mutex;
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const TWO_PAGES: usize = 8192;

/// An image that is mounted on `mnt` and served. Killed on drop.
struct Both {
    place: Place,
    child: Child,
    address: SocketAddr,
}

impl Both {
    fn start(place: Place, more: &[&str]) -> Both {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
        command.current_dir(place.path(".")).args(["mount", "--foreground", "--nfs", "0", "--any-port"]);
        command.args(more).args(["disk.kedge", "mnt"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("disk.kedge is served; mount -t nfs -o "), "{line:?}");
        let port = line.split("mountport=").nth(1).and_then(|rest| rest.split(' ').next());
        let port: u16 = port.unwrap_or_else(|| panic!("no port in {line:?}")).parse().unwrap();
        // Requests on the mount wait until it is served.
        fs::read_dir(place.path("mnt")).unwrap();
        Both { place, child, address: ([127, 0, 0, 1], port).into() }
    }

    fn new() -> Both {
        Both::start(image(), &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }

    fn client(&self) -> (Client, Vec<u8>) {
        let mut client = Client::of(self.address, 0, 0, &[]);
        client.beside = true;
        let root = client.root();
        (client, root)
    }

    /// Unmounts, which ends the process, and checks the image.
    fn end(mut self) -> Place {
        self.place.unmount();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        let place = std::mem::replace(&mut self.place, Place::new());
        place.run("fsck -f disk.kedge").ok();
        place
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        // It has usually ended.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn image() -> Place {
    let place = Place::after("mkfs --size 128M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

fn at(time: (u32, u32)) -> Option<Time> {
    Some(Time::At(time.0, time.1))
}

#[test]
fn names_that_a_client_changes_are_seen_on_the_mount() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    let new = ["file", "dir", "link", "hard", "exclusive"];
    // The kernel caches that these names do not exist.
    assert!(new.iter().all(|name| is_absent(&both.path(name))));
    assert_eq!(names(&both.path("")), [""; 0]);
    let (file, _) = c.create(&root, "file", &mode(0o640)).unwrap();
    c.write(&file, 0, b"first", UNSTABLE).unwrap();
    c.mkdir(&root, "dir", &mode(0o750)).unwrap();
    c.symlink(&root, "link", b"file").unwrap();
    assert_eq!(c.link(&file, &root, "hard").0, 0);
    c.create_exclusive(&root, "exclusive", *b"verifier").unwrap();
    assert!(new.iter().all(|name| !is_absent(&both.path(name))));
    assert_eq!(names(&both.path("")), ["dir", "exclusive", "file", "hard", "link"]);
    assert_eq!(fs::read(both.path("link")).unwrap(), b"first");
    assert_eq!(fs::metadata(both.path("file")).unwrap().nlink(), 2);
    let made = OpenOptions::new().write(true).create_new(true).open(both.path("exclusive"));
    assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists);
    // Names that the kernel knows now refer to other inodes, or to none.
    let (other, _) = c.create(&root, "other", &mode(0o600)).unwrap();
    c.write(&other, 0, b"second", UNSTABLE).unwrap();
    assert_eq!(c.rename((&root, "other"), (&root, "file")), 0);
    assert_eq!(fs::read(both.path("file")).unwrap(), b"second");
    assert_eq!(c.remove(&root, "link"), 0);
    c.symlink(&root, "link", b"hard").unwrap();
    assert_eq!(fs::read_link(both.path("link")).unwrap(), Path::new("hard"));
    assert_eq!(fs::read(both.path("link")).unwrap(), b"first");
    assert_eq!((c.remove(&root, "hard"), c.rmdir(&root, "dir")), (0, 0));
    assert!(is_absent(&both.path("hard")) && is_absent(&both.path("dir")) && is_absent(&both.path("other")));
    assert_eq!(names(&both.path("")), ["exclusive", "file", "link"]);
    drop(c);
    both.end();
}

/// The kernel would compare its listing with the time of the directory.
#[test]
fn a_listing_is_new_though_the_time_of_the_directory_is_set_back() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    c.create(&root, "a", &mode(0o600)).unwrap();
    assert_eq!(names(&both.path("")), ["a"]);
    let before = c.getattr(&root).unwrap().mtime;
    c.create(&root, "b", &mode(0o600)).unwrap();
    assert_eq!(c.setattr(&root, &Set { mtime: at(before), ..Set::default() }), 0);
    assert_eq!(names(&both.path("")), ["a", "b"]);
    drop(c);
    both.end();
}

#[test]
fn attributes_that_a_client_changes_are_seen_on_the_mount() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    fs::write(both.path("f"), b"x").unwrap();
    let open = File::open(both.path("f")).unwrap();
    let all = || [open.metadata().unwrap(), fs::metadata(both.path("f")).unwrap()];
    assert!(all().iter().all(|meta| meta.mode() & 0o777 != 0o604));
    let (file, _) = c.lookup(&root, "f").unwrap();
    let set = Set { uid: Some(7), gid: Some(8), mtime: Some(Time::At(5, 6)), ..mode(0o604) };
    assert_eq!(c.setattr(&file, &set), 0);
    for meta in all() {
        let found = (meta.mode() & 0o777, meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec());
        assert_eq!(found, (0o604, 7, 8, 5, 6));
    }
    drop((c, open));
    both.end();
}

/// Size and time of the file stay, so nothing but a notification shows the change to the kernel.
#[test]
fn bytes_that_a_client_writes_are_seen_in_open_and_mapped_files() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    fs::write(both.path("f"), [b'a'; TWO_PAGES]).unwrap();
    let (file, _) = c.lookup(&root, "f").unwrap();
    let before = c.getattr(&file).unwrap().mtime;
    let open = OpenOptions::new().read(true).write(true).open(both.path("f")).unwrap();
    let mapping = Mapping::new(&open, 0, TWO_PAGES).unwrap();
    let mut buf = [0; TWO_PAGES];
    open.read_exact_at(&mut buf, 0).unwrap();
    mapping.read(0, &mut buf);
    assert_eq!(buf, [b'a'; TWO_PAGES]);
    for letter in [b'b', b'c'] {
        c.write(&file, 0, &[letter; TWO_PAGES], UNSTABLE).unwrap();
        assert_eq!(c.setattr(&file, &Set { mtime: at(before), ..Set::default() }), 0);
        open.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf, [letter; TWO_PAGES], "in the open file");
        mapping.read(0, &mut buf);
        assert_eq!(buf, [letter; TWO_PAGES], "in the mapping");
        assert_eq!(fs::read(both.path("f")).unwrap(), [letter; TWO_PAGES]);
    }
    drop((c, mapping, open));
    both.end();
}

#[test]
fn sizes_that_a_client_sets_are_seen_in_open_files() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    fs::write(both.path("f"), [b'a'; TWO_PAGES]).unwrap();
    let (file, _) = c.lookup(&root, "f").unwrap();
    let open = File::open(both.path("f")).unwrap();
    let mut buf = [0; TWO_PAGES];
    let mut read = || open.read_at(&mut buf, 0).map(|n| buf[..n].to_vec()).unwrap();
    assert_eq!(read().len(), TWO_PAGES);
    assert_eq!(c.setattr(&file, &size(3)), 0);
    assert_eq!(read(), b"aaa");
    c.write(&file, 3, b"bc", UNSTABLE).unwrap();
    assert_eq!(read(), b"aaabc");
    // An UNCHECKED create of a file that exists.
    c.create(&root, "f", &size(0)).unwrap();
    assert_eq!(read(), b"");
    assert_eq!(open.metadata().unwrap().len(), 0);
    drop((c, open));
    both.end();
}

/// The kernel appends where it believes the end to be.
#[test]
fn an_append_on_the_mount_goes_to_the_end_that_a_client_has_moved() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    let mut log = OpenOptions::new().read(true).append(true).create(true).open(both.path("log")).unwrap();
    let (file, _) = c.lookup(&root, "log").unwrap();
    let mut wanted = Vec::<u8>::new();
    for round in 0..20u8 {
        let (ours, theirs) = (vec![b'a' + round; 1000], vec![b'A' + round; 700]);
        log.write_all(&ours).unwrap();
        wanted.extend(&ours);
        c.write(&file, wanted.len() as u64, &theirs, UNSTABLE).unwrap();
        wanted.extend(&theirs);
        if round == 12 {
            // As a program that begins a new log does.
            assert_eq!(c.setattr(&file, &size(0)), 0);
            wanted.clear();
        }
    }
    log.write_all(b"end").unwrap();
    wanted.extend(b"end");
    assert!(c.read(&file, 0, 40_000).unwrap().0 == wanted, "as a client sees it");
    until("the mount shows the same", || fs::read(both.path("log")).unwrap() == wanted);
    let mut again = vec![0; wanted.len()];
    log.read_exact_at(&mut again, 0).unwrap();
    assert!(again == wanted, "in the open file");
    drop((c, log));
    both.end();
}

#[test]
fn a_file_that_is_open_on_the_mount_outlives_its_removal_by_a_client() {
    needs_fuse!();
    const LARGE: usize = 16 << 20;
    let both = Both::new();
    let (mut c, root) = both.client();
    let free = || rustix::fs::statvfs(both.path("")).unwrap().f_bfree * 4096;
    let before = free();
    fs::write(both.path("f"), vec![7; LARGE]).unwrap();
    fs::write(both.path("g"), vec![8; LARGE]).unwrap();
    let open = File::open(both.path("f")).unwrap();
    assert!(before - free() >= 2 * LARGE as u64);
    assert_eq!((c.remove(&root, "f"), c.rename((&root, "g"), (&root, "h"))), (0, 0));
    assert!(is_absent(&both.path("f")));
    let mut buf = [0; 4096];
    open.read_exact_at(&mut buf, LARGE as u64 - 4096).unwrap();
    assert_eq!(buf, [7; 4096]);
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert!(before - free() >= 2 * LARGE as u64, "the open file keeps its blocks");
    drop(open);
    // The kernel has the file under the name "g", and nothing looks that name up.
    assert_eq!(c.remove(&root, "h"), 0);
    until("the blocks of both are free", || before - free() < 1 << 20);
    drop(c);
    both.end();
}

#[test]
fn what_the_mount_changes_is_seen_by_clients() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    assert_eq!(c.lookup(&root, "f").err(), Some(NOENT));
    fs::write(both.path("f"), b"first").unwrap();
    let (file, attr) = c.lookup(&root, "f").unwrap();
    assert_eq!((c.read(&file, 0, 100).unwrap().0, attr.size), (b"first".to_vec(), 5));
    fs::write(both.path("f"), b"second one").unwrap();
    assert_eq!(c.read(&file, 0, 100).unwrap().0, b"second one");
    fs::set_permissions(both.path("f"), Permissions::from_mode(0o604)).unwrap();
    assert_eq!(c.getattr(&file).unwrap().mode, 0o604);
    fs::create_dir(both.path("d")).unwrap();
    symlink("f", both.path("l")).unwrap();
    fs::rename(both.path("f"), both.path("d/g")).unwrap();
    assert_eq!(c.lookup(&root, "f").err(), Some(NOENT));
    let (link, _) = c.lookup(&root, "l").unwrap();
    assert_eq!(c.readlink(&link).unwrap(), b"f");
    let mut listed: Vec<String> = c.list(&root, 4096, true).into_iter().map(|e| e.name).collect();
    listed.retain(|name| name != "." && name != "..");
    listed.sort();
    assert_eq!(listed, ["d", "l"]);
    let open = File::open(both.path("d/g")).unwrap();
    fs::remove_file(both.path("d/g")).unwrap();
    assert_eq!(c.getattr(&file).err(), Some(STALE), "open on the mount, but without a name");
    drop((c, open));
    both.end();
}

/// A client keeps its cache if the attributes before a change are those that it has, or if time
/// stamps are equal.
#[test]
fn a_client_cannot_conclude_that_nothing_has_changed() {
    needs_fuse!();
    let both = Both::new();
    let (mut c, root) = both.client();
    let open = File::create(both.path("f")).unwrap();
    let (file, _) = c.lookup(&root, "f").unwrap();
    let mut seen = Vec::new();
    for n in 0..200u32 {
        open.write_all_at(&n.to_be_bytes(), 0).unwrap();
        let attr = c.getattr(&file).unwrap();
        seen.push((attr.mtime, attr.ctime));
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "each write has its own time");
    let (status, around) = c.setattr_guarded(&file, &mode(0o600), None);
    assert_eq!((status, around.before), (0, None));
    assert!(around.after.is_some());
    drop((c, open));
    both.end();
}

/// What one side has been promised: contents by name.
type Promised = Mutex<BTreeMap<String, Vec<u8>>>;

fn content(n: u32) -> Vec<u8> {
    (0..1 + n * 911 % 30_000).map(|at| (at * 31 + n) as u8).collect()
}

/// Writes files over NFS, with COMMIT, until the server is dead or `stop` is set, and removes
/// others.
fn client_load(address: SocketAddr, writer: &str, stop: &AtomicBool, promised: &Promised) {
    let Ok(mut c) = Client::connect(address) else { return };
    c.beside = true;
    let root = c.root();
    for n in 0u32.. {
        let (name, bytes) = (format!("{writer}-{n}"), content(n));
        let written = (|| {
            let (file, _) = c.try_create(&root, &name, 1, &mode(0o600))?.unwrap();
            let stable = if n.is_multiple_of(2) { FILE_SYNC } else { UNSTABLE };
            c.try_write(&file, 0, &bytes, stable)?.unwrap();
            c.try_commit(&file)?.unwrap();
            std::io::Result::Ok(())
        })();
        if written.is_err() || stop.load(SeqCst) {
            return;
        }
        promised.lock().insert(name, bytes);
    }
}

/// The same through the mount, with fsync.
fn mount_load(dir: &Path, writer: &str, stop: &AtomicBool, promised: &Promised) {
    for n in 0u32.. {
        let (name, bytes) = (format!("{writer}-{n}"), content(n));
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).open(dir.join(&name))?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            // The name of the file becomes durable with it.
            std::io::Result::Ok(())
        })();
        if written.is_err() || stop.load(SeqCst) {
            return;
        }
        promised.lock().insert(name, bytes);
    }
}

/// Runs two writers on each side until `enough` files are promised, then `end`, and waits for the
/// writers.
fn load(both: &Both, round: u32, enough: usize, promised: &Arc<Promised>, end: impl FnOnce(&AtomicBool)) {
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let (address, dir, writer) = (both.address, both.path(""), format!("r{round}-w{n}"));
            let (stop, promised) = (stop.clone(), promised.clone());
            let work = move || match n % 2 {
                0 => client_load(address, &writer, &stop, &promised),
                _ => mount_load(&dir, &writer, &stop, &promised),
            };
            spawn_named("writer", work).unwrap()
        })
        .collect();
    let (before, mounted) = (promised.lock().len(), format!("r{round}-w1-5"));
    until("both sides have written", || {
        let promised = promised.lock();
        promised.len() >= before + enough && promised.contains_key(&mounted)
    });
    end(&stop);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

/// Both sides see all that is promised.
fn verify(both: &Both, promised: &Promised) {
    let (mut c, root) = both.client();
    for (name, bytes) in &*promised.lock() {
        assert!(fs::read(both.path(name)).unwrap() == *bytes, "{name} on the mount");
        let (file, _) = c.lookup(&root, name).unwrap();
        assert!(c.read(&file, 0, 40_000).unwrap().0 == *bytes, "{name} over NFS");
    }
}

#[test]
fn both_sides_change_the_same_directory_at_the_same_time() {
    needs_fuse!();
    let both = Both::new();
    let promised = Arc::new(Promised::default());
    load(&both, 0, 200, &promised, |stop| stop.store(true, SeqCst));
    verify(&both, &promised);
    // Both create, replace and remove the same few names; each call succeeds or fails as a whole.
    let stop = Arc::new(AtomicBool::new(false));
    let (dir, stopped) = (both.path(""), stop.clone());
    let on_mount = move || {
        let mut done = 0u32;
        while !stopped.load(SeqCst) || done < 200 {
            let (a, b) = (dir.join(format!("same{}", done % 3)), dir.join(format!("same{}", (done + 1) % 3)));
            let _other_was_faster = fs::write(&a, b"mount").and_then(|()| fs::rename(&a, &b));
            let _other_was_faster = fs::remove_file(&b);
            done += 1;
        }
    };
    let on_mount = spawn_named("mount", on_mount).unwrap();
    let (mut c, root) = both.client();
    let mut made = 0;
    for n in 0..300 {
        let (a, b) = (format!("same{}", n % 3), format!("same{}", (n + 1) % 3));
        made += u32::from(c.create(&root, &a, &mode(0o600)).is_ok());
        c.rename((&root, &a), (&root, &b));
        c.remove(&root, &b);
    }
    stop.store(true, SeqCst);
    on_mount.join().unwrap();
    assert!(made > 0);
    drop(c);
    both.end();
}

/// Unflushed writes are lost with the process, as in a power failure.
#[test]
fn sigkill_loses_nothing_that_either_side_was_promised() {
    needs_fuse!();
    let promised = Arc::new(Promised::default());
    let mut place = Some(image());
    for round in 0..4 {
        let mut both = Both::start(place.take().unwrap(), &["--volatile"]);
        verify(&both, &promised);
        load(&both, round, 60, &promised, |_| {
            kill_process(pid(&both.place, "mnt"), Signal::KILL).unwrap();
        });
        until_dead(&both.place, "mnt");
        both.child.wait().unwrap();
        let left = std::mem::replace(&mut both.place, Place::new());
        left.run("umount mnt").refused(1, &["the serving process had died"]);
        left.run("fsck -f disk.kedge").ok();
        place = Some(left);
    }
    let both = Both::start(place.take().unwrap(), &[]);
    verify(&both, &promised);
    both.end();
}

#[test]
fn the_server_lives_as_long_as_the_mount() {
    needs_fuse!();
    let place = image();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for more in ["", "--foreground "] {
        let run = place.run(&format!("mount {more}--nfs {port} disk.kedge mnt"));
        run.refused(1, &["listen on", "in use"]);
        assert!(kedge_fuse::mount_at(&place.path("mnt")).is_none(), "nothing is mounted");
    }
    drop(taken);
    let out = place.run(&format!("mount --any-port --nfs {port} disk.kedge mnt")).ok();
    assert_eq!(
        out.trim_end(),
        format!(
            "disk.kedge is served; mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port} \
             127.0.0.1:/ DIR"
        )
    );
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut c = Client::of(address, 0, 0, &[]);
    c.beside = true;
    let root = c.root();
    let (file, _) = c.create(&root, "f", &mode(0o600)).unwrap();
    c.write(&file, 0, b"not committed", UNSTABLE).unwrap();
    let mut open = File::open(place.path("mnt/f")).unwrap();
    // A mount in use stays after the signal, and so does the server.
    kill_process(pid(&place, "mnt"), Signal::TERM).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(c.getattr(&file).is_ok());
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "not committed");
    drop(open);
    let mnt = place.path("mnt");
    until("the mount is no longer in use", || {
        // The thread that got the signal gives up after some seconds.
        let _ended_already = place.run("umount mnt");
        kedge_fuse::mount_at(&mnt).is_none()
    });
    // The connection is closed, the port is free, and the image is closed.
    let mut rest = Vec::new();
    c.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    until("the port is free", || TcpListener::bind(address).is_ok());
    until("the image is closed", || !place.run("fsck disk.kedge").err.contains("in use"));
    assert_eq!(place.run("cat disk.kedge:/f").ok(), "not committed");
    let info = place.info("disk.kedge");
    assert_eq!(info["state"], "clean");
    // The tree that the mount shows is the one that is served.
    place.run("snapshot create disk.kedge:/ disk.kedge:/monday").ok();
    let both = Both::start(place, &["-o", "tree=monday", "--squash", "all", "--anonymous", "7:8"]);
    let (mut c, root) = both.client();
    assert!(c.lookup(&root, "f").is_ok());
    assert_eq!(c.mount("/monday").err(), Some(NOENT));
    drop(c);
    both.end();
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let place = image();
    let refused = |words: &str, code, why: &[&str]| {
        place.run(&format!("mount {words} disk.kedge mnt")).refused(code, why);
    };
    refused("--nfs 2049 -o volatile", 2, &["volatile", "durable"]);
    refused("--nfs 2049 -o keeper", 2, &["keeper", "would not listen"]);
    refused("--nfs 2049 -o writeback_cache", 2, &["writeback_cache"]);
    refused("--nfs 2049 --daemon d", 2, &["--daemon"]);
    refused("--nfs here", 2, &["--nfs here"]);
    refused("--nfs 0", 2, &["--foreground"]);
    refused("--any-port", 2, &["--any-port", "--nfs"]);
    refused("--squash all", 2, &["--squash", "--nfs"]);
    refused("--anonymous 1:2", 2, &["--anonymous", "--nfs"]);
    refused("--nfs 2049 --anonymous 1", 2, &["UID:GID"]);
}

/// A mount without NFS cannot get it afterwards, by the same command for another directory.
#[test]
fn an_image_that_is_mounted_is_not_served_by_a_second_mount() {
    needs_fuse!();
    let place = image();
    place.run("mount disk.kedge mnt").ok();
    fs::create_dir(place.path("other")).unwrap();
    place.run("mount --nfs 2049 disk.kedge other").refused(1, &["in use", "mounted on"]);
    place.unmount_and_check("disk.kedge");
}

/// Handles that clients got afterwards would be stale for the next server.
#[test]
fn the_root_is_not_replaced_while_clients_use_it() {
    needs_fuse!();
    let both = Both::new();
    fs::write(both.path("f"), "first").unwrap();
    both.place.run("snapshot create mnt mnt/s").ok();
    fs::write(both.path("f"), "second").unwrap();
    let run = both.place.run("snapshot rollback mnt/s mnt");
    assert!(run.code != 0 && run.err.contains("or beside NFS"), "{}{}", run.out, run.err);
    assert_eq!(fs::read_to_string(both.path("f")).unwrap(), "second");
    // A tree below the root can be replaced.
    both.place.run("fork mnt/s mnt/t").ok();
    both.place.run("snapshot rollback mnt/s mnt/t").ok();
    both.end();
}
