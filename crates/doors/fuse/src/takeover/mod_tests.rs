//! Each kind of change, with a death of its server at each of its steps. The reply to the resent
//! request, and the tree, must be as without a death.
//!
//! A death is a panic at a step. Afterwards nothing of the server is used again, and its device is
//! copied. The area is a real one.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::abi::{
    FallocateIn, InHeader, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, WriteIn,
    fattr,
};
use crate::keep::area;
use crate::keep::area::Negotiated;
use crate::keep::journal::{EntryHead, Mark};
use crate::keep::steps::{break_rule, die_after, die_at};
use crate::options::FuseOptions;
use crate::session::MountedSession;
use crate::settle::{self, PageJob};
use crate::transport::{Received, RequestBuf, Transport};
use crate::unmount::MountPoint;
use kedge_base::{JoinHandle, spawn_named};
use kedge_device::MemDevice;
use kedgefs::{FileKind, FileSystem, FormatOptions, MountOptions, SetAttr};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use zerocopy::FromZeros;

/// Records the replies.
#[derive(Default)]
pub(super) struct Wire(pub(super) Mutex<Vec<(u64, i32, Vec<u8>)>>);

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "test"
    }
    fn workers(&self) -> usize {
        1
    }
    fn receive<'a>(&'a self, _: usize, _: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        Ok(Received::Ended)
    }
    fn wait(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn reply(&self, _: u32, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.0.lock().push((unique, error, parts.concat()));
        Ok(())
    }
    fn notify(&self, _: i32, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// Builds the arguments of a request.
pub(super) type Arguments = Box<dyn Fn(&World) -> Vec<u8>>;

/// A change: name, opcode, the path of its inode, and its arguments.
pub(super) struct Change(
    pub(super) &'static str,
    pub(super) u32,
    pub(super) &'static str,
    pub(super) Arguments,
);

pub(super) struct World {
    device: Arc<MemDevice>,
    area: OwnedFd,
    pub(super) fs: FileSystem,
    server: Server<FileSystem>,
    wire: Arc<Wire>,
    jobs: Receiver<PageJob>,
    recycles: Option<JoinHandle<()>>,
    unique: u64,
}

type Serving = (FileSystem, Server<FileSystem>, Arc<Wire>, Receiver<PageJob>);

fn begin(device: &Arc<MemDevice>, area: &OwnedFd) -> (Life, FileSystem) {
    let life = Life::begin(Area::inherited(area.try_clone().unwrap()).unwrap());
    let clock = Arc::new(SystemClock::default());
    let options = MountOptions::default();
    let fs = match life.is_second() {
        false => FileSystem::open(device.clone(), clock, options).unwrap(),
        true => FileSystem::open_again(device.clone(), clock, options, None, |end| {
            life.recovered(end);
            Ok(())
        })
        .unwrap(),
    };
    (life, fs)
}

fn server(device: &Arc<MemDevice>, area: &OwnedFd) -> Serving {
    let (life, fs) = begin(device, area);
    let wire = Arc::new(Wire::default());
    let (server, jobs) =
        Server::new(Arc::new(fs.clone()), wire.clone(), FuseOptions::default(), Value::Null, Box::new(|| ()));
    (fs, server.resume(&life).unwrap(), wire, jobs)
}

/// Starts the thread that frees the journal.
fn recycle(server: &Server<FileSystem>, fs: &FileSystem) -> JoinHandle<()> {
    let (kept, fs) = (server.kept.clone().unwrap(), fs.clone());
    spawn_named("recycle", move || Server::recycle(&kept, &fs)).unwrap()
}

impl World {
    pub(super) fn new() -> World {
        static FORMATTED: LazyLock<MemDevice> = LazyLock::new(|| {
            let device = Arc::new(MemDevice::new(16 << 20));
            let clock = Arc::new(SystemClock::default());
            FileSystem::format(device.clone(), clock, &FormatOptions::default()).unwrap();
            device.fork()
        });
        let device = Arc::new(FORMATTED.fork());
        let area = Area::make().unwrap().fd().try_clone_to_owned().unwrap();
        let (fs, server, wire, jobs) = server(&device, &area);
        let kept = server.kept.as_ref().unwrap();
        kept.negotiated(Negotiated { done: 1, writeback: 0, acls: 0, flags_checked: 1 });
        server.flags_checked.store(true, Relaxed);
        let recycles = Some(recycle(&server, &fs));
        let mut world = World { device, area, fs, server, wire, jobs, recycles, unique: 0 };
        world.fill();
        world
    }

    /// Makes files, of which some are durable.
    fn fill(&mut self) {
        for (i, name) in ["a", "b", "c", "dir", "empty", "dir/x"].iter().enumerate() {
            let (dir, name) = name.rsplit_once('/').unwrap_or(("", name));
            let body = named(MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), &[name]);
            match name.len() {
                1 => {
                    let mknod = MknodIn { mode: 0o100_644, ..MknodIn::default() };
                    self.done(op::MKNOD, dir, &named(mknod.as_bytes(), &[name]));
                }
                _ => self.done(op::MKDIR, dir, &body),
            }
            if i == 2 {
                self.done(op::WRITE, "a", &write(0, b"durable"));
                self.fs.sync().unwrap();
            }
        }
        self.done(op::WRITE, "a", &write(3, b"again and longer"));
        self.done(op::WRITE, "dir/x", &write(5000, &[7; 9000]));
        self.done(op::SETXATTR, "b", &xattr(0, "user.old", b"1"));
    }

    pub(super) fn ino(&self, path: &str) -> u64 {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.fs.lookup(at, name.as_bytes()).unwrap().ino;
        }
        at.0
    }

    pub(super) fn send(&mut self, unique: u64, opcode: u32, node: u64, body: &[u8]) {
        let len = 40 + body.len() as u32;
        let (pid, own) = (std::process::id(), rustix::process::geteuid().as_raw());
        // Only these calls check the user.
        let uid = if opcode == op::IOCTL { own } else { 0 };
        let header = InHeader { opcode, nodeid: node, unique, len, pid, uid, ..InHeader::default() };
        let message = [header.as_bytes(), body].concat();
        let request = Request::parse(&message, 0).unwrap();
        let kept = self.server.kept.clone().unwrap();
        let reply = self.server.accept(&request);
        self.server.serve_kept(&kept, &request, reply, &mut IoBuf::zeroed(1));
        while let Ok(PageJob::Request(job)) = self.jobs.try_recv() {
            settle::answer(&self.fs, &*self.wire, job);
        }
    }

    fn done(&mut self, opcode: u32, path: &str, body: &[u8]) {
        self.unique += 2;
        self.send(self.unique, opcode, self.ino(path), body);
        assert_eq!(self.wire.0.lock().last().unwrap().1, 0, "{} of {path}", op_name(opcode));
    }

    /// The server dies, and another one replaces it.
    pub(super) fn next_life(&mut self) {
        self.end_thread();
        self.device = Arc::new(self.device.fork());
        (self.fs, self.server, self.wire, self.jobs) = server(&self.device, &self.area);
        self.recycles = Some(recycle(&self.server, &self.fs));
    }

    fn end_thread(&mut self) {
        self.server.kept.as_ref().unwrap().end();
        if let Some(thread) = self.recycles.take() {
            thread.join().unwrap();
        }
    }

    /// Errno and size of the last reply.
    fn last(&self) -> (i32, usize) {
        let replies = self.wire.0.lock();
        let (_, error, parts) = replies.last().expect("there is a reply");
        (*error, parts.len())
    }

    /// All names, with everything except times that a program can see of their inodes.
    pub(super) fn tree(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![(String::new(), Ino::ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            let mut names = Vec::new();
            let mut visit = |entry: kedgefs::DirEntry<'_>| {
                names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.ino));
                true
            };
            self.fs.readdir(dir, 0, &mut visit).unwrap();
            for (name, ino) in names.into_iter().filter(|(name, _)| name != "." && name != "..") {
                let attr = self.fs.getattr(ino).unwrap();
                let mut bytes = vec![0; attr.size as usize];
                if attr.kind == FileKind::Regular {
                    self.fs.read_uncached(ino, 0, &mut bytes).unwrap();
                }
                let attributes = self.fs.listxattr(ino).unwrap();
                let (mode, links, size) = (attr.mode, attr.nlink, attr.size);
                let flags = attr.flags.bits();
                let seen = format!("{ino} {mode:o} {flags} {links} {size} {attributes:?} {bytes:?}");
                found.insert(format!("{path}/{name}"), seen);
                if attr.kind == FileKind::Directory {
                    dirs.push((format!("{path}/{name}"), ino));
                }
            }
        }
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end_thread();
    }
}

pub(super) fn named(head: &[u8], names: &[&str]) -> Vec<u8> {
    let mut body = head.to_vec();
    for name in names {
        body.extend_from_slice(name.as_bytes());
        body.push(0);
    }
    body
}

fn write(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let asked = WriteIn { offset, size: bytes.len() as u32, ..WriteIn::default() };
    [asked.as_bytes(), bytes].concat()
}

pub(super) fn xattr(flags: u32, name: &str, value: &[u8]) -> Vec<u8> {
    let asked = SetxattrIn { size: value.len() as u32, flags };
    [&named(asked.as_bytes(), &[name])[..], value].concat()
}

fn fallocate(mode: u32, offset: u64, length: u64) -> Vec<u8> {
    FallocateIn { offset, length, mode, ..FallocateIn::default() }.as_bytes().to_vec()
}

fn setattr(set: SetattrIn) -> Vec<u8> {
    set.as_bytes().to_vec()
}

fn changes() -> Vec<Change> {
    let plain =
        |name, opcode, path, body: Vec<u8>| Change(name, opcode, path, Box::new(move |_| body.clone()));
    let mknod = MknodIn { mode: 0o100_600, ..MknodIn::default() };
    let mkdir = MkdirIn { mode: 0o700, umask: 0 };
    let size = |size| setattr(SetattrIn { valid: fattr::SIZE, size, ..SetattrIn::default() });
    let mode = SetattrIn { valid: fattr::MODE, mode: 0o100_640, ..SetattrIn::default() };
    let times = SetattrIn { valid: fattr::MTIME, mtime: 1000, ..SetattrIn::default() };
    let into_dir = |w: &World| RenameIn { newdir: w.ino("dir") }.as_bytes().to_vec();
    let rename2 =
        |w: &World, flags| Rename2In { newdir: w.ino(""), flags, ..Rename2In::default() }.as_bytes().to_vec();
    vec![
        plain("mknod", op::MKNOD, "dir", named(mknod.as_bytes(), &["new"])),
        plain("mkdir", op::MKDIR, "dir", named(mkdir.as_bytes(), &["newdir"])),
        plain("symlink", op::SYMLINK, "", named(&[], &["link", "target"])),
        Change(
            "link",
            op::LINK,
            "dir",
            Box::new(|w| named(LinkIn { oldnodeid: w.ino("b") }.as_bytes(), &["second"])),
        ),
        plain("unlink", op::UNLINK, "", named(&[], &["c"])),
        plain("rmdir", op::RMDIR, "", named(&[], &["empty"])),
        Change("rename", op::RENAME, "", Box::new(move |w| named(&into_dir(w), &["a", "moved"]))),
        Change("rename over", op::RENAME, "", Box::new(move |w| named(&into_dir(w), &["a", "x"]))),
        Change("rename new", op::RENAME2, "", Box::new(move |w| named(&rename2(w, 1), &["b", "fresh"]))),
        Change("exchange", op::RENAME2, "", Box::new(move |w| named(&rename2(w, 2), &["a", "b"]))),
        plain("write", op::WRITE, "a", write(2, b"XYZ")),
        plain("append", op::WRITE, "dir/x", write(14_000, &[9; 70_000])),
        plain("shrink", op::SETATTR, "dir/x", size(6000)),
        Change("shrink a set-id file", op::SETATTR, "dir/x", Box::new(shrink_set_id)),
        plain("grow", op::SETATTR, "a", size(100_000)),
        plain("chmod", op::SETATTR, "a", setattr(mode)),
        plain("utimes", op::SETATTR, "a", setattr(times)),
        plain("allocate", op::FALLOCATE, "a", fallocate(0, 0, 50_000)),
        plain("punch", op::FALLOCATE, "dir/x", fallocate(3, 8192, 4096)),
        plain("zero", op::FALLOCATE, "dir/x", fallocate(0x10, 6000, 4000)),
        plain("setxattr", op::SETXATTR, "a", xattr(1, "user.new", b"value")),
        plain("removexattr", op::REMOVEXATTR, "b", named(&[], &["user.old"])),
    ]
}

/// Sets mode bits that the change of size must clear.
fn shrink_set_id(world: &World) -> Vec<u8> {
    let set = SetAttr { mode: Some(0o6777), ..SetAttr::default() };
    world.fs.setattr(Ino(world.ino("dir/x")), &set).unwrap();
    world.fs.sync().unwrap();
    let valid = fattr::SIZE | fattr::KILL_SUIDGID;
    setattr(SetattrIn { valid, size: 6000, ..SetattrIn::default() })
}

type Found = ((i32, usize), BTreeMap<String, String>);

fn unnumbered((reply, tree): Found) -> Found {
    let without = |seen: String| seen.split_once(' ').unwrap().1.to_owned();
    (reply, tree.into_iter().map(|(name, seen)| (name, without(seen))).collect())
}

/// Runs a change whose server dies at a step. `deaths` is the number of deaths before the request
/// is resent. Returns reply and tree.
fn run(change: &Change, death: Option<(Step, bool)>, deaths: u32) -> Found {
    let mut world = World::new();
    let (node, body) = (world.ino(change.2), (change.3)(&world));
    let unique = 1000;
    let Some((step, durable)) = death else {
        world.send(unique, change.1, node, &body);
        return (world.last(), world.tree());
    };
    let fs = world.fs.clone();
    die_at(
        step,
        Box::new(move || {
            if durable {
                fs.sync().unwrap();
            }
        }),
    );
    let died = catch_unwind(AssertUnwindSafe(|| world.send(unique, change.1, node, &body)));
    die_at(Step::Never, Box::new(|| ()));
    if died.is_err() {
        for _ in 0..deaths {
            world.next_life();
        }
        world.send(unique | UNIQUE_RESEND, change.1, node, &body);
        // If the machine failed now, the image would be consistent.
        let replay = Some(Arc::new(kedge_fsck::StoreReplay) as Arc<dyn kedge_fsck::Replay>);
        let options = kedge_fsck::CheckOptions { replay, ..kedge_fsck::CheckOptions::default() };
        let report = kedge_fsck::check(Arc::new(world.device.fork()), &options);
        assert_eq!(report.exit_code() as u8, 0, "{report}");
    } else {
        // Only a change without a record can pass this step without a death.
        assert_eq!(step, Step::Marked, "{}: no death at {step:?}", change.0);
    }
    (world.last(), world.tree())
}

/// The cases whose result differs from that without a death.
pub(super) fn differences_of(changes: &[Change]) -> Vec<String> {
    let mut differ = Vec::new();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    for change in changes {
        let want = run(change, None, 0);
        assert_eq!(want.0.0, 0, "{}", change.0);
        for (step, durable) in [
            (Step::Begun, false),
            (Step::Marked, false),
            (Step::Made, false),
            (Step::Made, true),
            (Step::Finished, false),
            (Step::Finished, true),
        ] {
            for deaths in 1..=2 {
                let died = AssertUnwindSafe(|| run(change, Some((step, durable)), deaths));
                let outcome = catch_unwind(died);
                let same = outcome.is_ok_and(|found| match step {
                    // The resent request was served like a new one, so a new inode may have another
                    // number. No reply has named that number.
                    Step::Begun => unnumbered(found) == unnumbered(want.clone()),
                    // The same holds for the inode of a whiteout.
                    Step::Made if change.0 == "whiteout" => unnumbered(found) == unnumbered(want.clone()),
                    _ => found == want,
                });
                if !same {
                    differ.push(format!("{} at {step:?}, durable {durable}, {deaths} deaths", change.0));
                }
            }
        }
    }
    std::panic::set_hook(hook);
    differ
}

#[test]
fn each_change_is_made_once_wherever_its_server_dies() {
    let changes = changes();
    assert_eq!(differences_of(&changes), Vec::<String>::new());
    for (rule, caught_by) in [(Broken::AnswerRepeated, "at Finished"), (Broken::MarkIgnored, "durable true")]
    {
        break_rule(rule);
        let mut differ = changes.chunks(1).flat_map(differences_of);
        let caught = differ.find(|case| case.contains(caught_by));
        break_rule(Broken::Nothing);
        println!("{rule:?} is caught by {caught:?}");
        assert!(caught.is_some(), "{rule:?} is not caught");
    }
}

/// The stores after which a server dies. If there are many, only those near both ends, because the
/// others store arguments. Only every `one_in`th of these stores is used, starting with number
/// `first`.
fn deaths_of(stores: u64, first: usize, one_in: usize) -> impl Iterator<Item = u64> {
    (1..=stores)
        .filter(move |at| stores < 200 || *at < 30 || *at + 30 > stores)
        .skip(first % one_in)
        .step_by(one_in)
}

/// A world in which the change's request can be sent, with the request's inode and arguments.
fn before(change: &Change) -> (World, u64, Vec<u8>) {
    let world = World::new();
    let (node, body) = (world.ino(change.2), (change.3)(&world));
    (world, node, body)
}

/// Runs a change whose server dies after `first` of its stores. The next server dies after `second`
/// stores while it takes over; with 0 it does not die.
fn run_to_store(change: &Change, first: u64, second: u64) -> Found {
    let (mut world, node, body) = before(change);
    die_after(first);
    let died = catch_unwind(AssertUnwindSafe(|| world.send(1000, change.1, node, &body)));
    die_after(second);
    assert!(died.is_err(), "{}: no death after {first} stores", change.0);
    let next = catch_unwind(AssertUnwindSafe(|| world.next_life()));
    die_after(0);
    if next.is_err() {
        world.next_life();
    }
    world.send(1000 | UNIQUE_RESEND, change.1, node, &body);
    (world.last(), world.tree())
}

/// The number of stores that a change makes, and the number that the next server makes after a
/// death at the last of them.
fn stores_of(change: &Change) -> (u64, u64) {
    let (mut world, node, body) = before(change);
    die_after(0);
    world.send(1000, change.1, node, &body);
    let first = die_after(0);
    world.next_life();
    (first, die_after(0))
}

/// The cases whose result differs from that without a death, and the number of all cases.
fn differences_of_stores(changes: &[Change], one_in: usize) -> (Vec<String>, usize) {
    let (mut differ, mut cases) = (Vec::new(), 0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    for (number, change) in changes.iter().enumerate() {
        let want = unnumbered(run(change, None, 0));
        let (stores, stores_next) = stores_of(change);
        let once = deaths_of(stores, number, one_in).map(|first| (first, 0));
        let twice = deaths_of(stores_next, number, one_in).map(|second| (stores, second));
        for (first, second) in once.chain(twice) {
            cases += 1;
            let found = catch_unwind(AssertUnwindSafe(|| run_to_store(change, first, second)));
            die_after(0);
            if !found.is_ok_and(|found| unnumbered(found) == want) {
                differ.push(format!("{} after {first} stores and {second} of {stores_next}", change.0));
            }
        }
    }
    std::panic::set_hook(hook);
    (differ, cases)
}

#[test]
fn each_change_is_made_once_after_whichever_store_its_server_dies() {
    let changes = changes();
    // The same code makes the entries of all changes. So each change is tested with some of the
    // deaths, and all changes together cover all deaths.
    let one_in = if std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1") { 1 } else { 4 };
    let (differ, cases) = differences_of_stores(&changes, one_in);
    println!("{cases} deaths");
    assert_eq!(differ, Vec::<String>::new());
    break_rule(Broken::FirstWordFirst);
    let (differ, _) = differences_of_stores(&changes[..1], 1);
    break_rule(Broken::Nothing);
    println!("{} cases differ, such as {:?}", differ.len(), differ.first());
    assert!(!differ.is_empty(), "fields that are valid too early are not caught");
}

/// A program writes bytes that look like an entry of the journal, placed where a later use of the
/// half expects the next entry. Returns whether they are taken for an entry.
fn old_bytes_are_taken() -> bool {
    let mut world = World::new();
    world.next_life();
    let life = 2;
    let arguments = b"c\0";
    let mut forged = EntryHead {
        magic: u32::from_le_bytes(*b"kent"),
        len: arguments.len() as u32,
        generation: ((life + 1) << 32) + 1,
        seq: 1000,
        life: life + 1,
        node: Ino::ROOT.0,
        opcode: op::UNLINK,
        ..EntryHead::new_zeroed()
    };
    forged.check = forged.checksum(arguments);
    forged.mark = Mark { life: life + 1, end: u64::MAX, ino: 0 };
    forged.outcome.state = DONE;
    // The write's entry is the first of the half, so its arguments begin after two units of 128
    // bytes. The entry of the next life's small write ends within the third.
    let bytes = [&[0; 3 * 128 - 2 * 128 - size_of::<WriteIn>()][..], forged.as_bytes(), arguments].concat();
    world.done(op::WRITE, "a", &write(0, &bytes));
    world.next_life();
    world.done(op::WRITE, "b", &write(0, b"small"));
    world.next_life();
    world.fs.lookup(Ino::ROOT, b"c").is_err()
}

#[test]
fn bytes_of_a_program_are_never_an_entry() {
    assert!(!old_bytes_are_taken());
    break_rule(Broken::OldEntryTaken);
    let taken = old_bytes_are_taken();
    break_rule(Broken::Nothing);
    assert!(taken, "without the rule the forged entry is taken");
}

/// A slow request is in progress when a user kills its server. Other servers die of other causes.
#[test]
fn a_request_beside_the_deaths_of_others_is_not_refused() {
    let mut world = World::new();
    let area = Area::inherited(world.area.try_clone().unwrap()).unwrap();
    let (node, body) = (world.ino("a"), write(0, b"slow"));
    let slow = 1000 | UNIQUE_RESEND;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    for _ in 0..DEATHS_MAX {
        area.note_death(libc::SIGABRT);
        world.next_life();
        die_at(Step::Begun, Box::new(|| ()));
        let died = AssertUnwindSafe(|| world.send(slow, op::WRITE, node, &body));
        assert!(catch_unwind(died).is_err(), "its server dies while it is served alone");
        die_at(Step::Never, Box::new(|| ()));
        area.note_death(libc::SIGKILL);
        world.next_life();
    }
    std::panic::set_hook(hook);
    area.note_death(libc::SIGABRT);
    world.next_life();
    world.send(slow, op::WRITE, node, &body);
    assert_eq!(world.last().0, 0);
}

#[test]
fn a_request_that_kills_three_servers_is_refused() {
    let mut world = World::new();
    let area = Area::inherited(world.area.try_clone().unwrap()).unwrap();
    let (node, body) = (world.ino("a"), write(0, b"deadly"));
    let (deadly, harmless) = (1000, 1002);
    let resent = |unique, life| if life > 0 { unique | UNIQUE_RESEND } else { unique };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    for life in 0..DEATHS_MAX {
        if life == 1 {
            // This request was in progress when the first server died, and did not cause that.
            world.send(harmless | UNIQUE_RESEND, op::WRITE, node, &write(50, b"served"));
            assert_eq!(world.last().0, 0);
        }
        die_at(Step::Begun, Box::new(|| ()));
        let died = AssertUnwindSafe(|| world.send(resent(deadly, life), op::WRITE, node, &body));
        assert!(catch_unwind(died).is_err(), "the request kills server {life}");
        die_at(Step::Never, Box::new(|| ()));
        area.note_death(libc::SIGABRT);
        world.next_life();
    }
    std::panic::set_hook(hook);
    die_at(Step::Begun, Box::new(|| ()));
    world.send(deadly | UNIQUE_RESEND, op::WRITE, node, &body);
    die_at(Step::Never, Box::new(|| ()));
    assert_eq!(world.last(), (-libc::EIO, 0));
    world.done(op::WRITE, "a", &write(0, b"goes on"));
    let mut bytes = vec![0; 56];
    world.fs.read_uncached(Ino(node), 0, &mut bytes).unwrap();
    assert_eq!((&bytes[..7], &bytes[50..]), (&b"goes on"[..], &b"served"[..]));
}

fn mount_point() -> MountPoint {
    MountPoint {
        image: "image".into(),
        dir: "dir".into(),
        device: None,
        privileged: false,
        source: "image".into(),
        why_plain: None,
    }
}

/// Whether servers that take over report that they serve: one that dies while it makes a change
/// again, and one that does not.
#[test]
fn a_server_that_dies_while_it_makes_changes_again_has_not_served() {
    let mut world = World::new();
    let body = named(MkdirIn { mode: 0o700, umask: 0 }.as_bytes(), &["new"]);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    die_at(Step::Marked, Box::new(|| ()));
    let died = AssertUnwindSafe(|| world.send(1000, op::MKDIR, Ino::ROOT.0, &body));
    assert!(catch_unwind(died).is_err(), "the change kills the first server");
    world.end_thread();
    let mut reported = Vec::new();
    for dies in [true, true, false] {
        if !dies {
            die_at(Step::Never, Box::new(|| ()));
        }
        world.device = Arc::new(world.device.fork());
        let (life, fs) = begin(&world.device, &world.area);
        let session = MountedSession::new(Arc::new(Wire::default()), mount_point(), FuseOptions::default());
        let session = session.living(life);
        let serves = Cell::new(false);
        let live = || {
            serves.set(true);
            Ok(())
        };
        let closes = fs.clone();
        let run = AssertUnwindSafe(|| session.resume_and_close(fs, live, move || closes.close()));
        let ended = catch_unwind(run);
        assert_eq!(ended.is_err(), dies);
        reported.push(serves.get());
        if let Ok(closed) = ended {
            closed.unwrap().unwrap();
        }
    }
    std::panic::set_hook(hook);
    assert_eq!(reported, [false, false, true]);
}

#[test]
fn the_mount_is_noted_and_unknown_below_an_older_keeper() {
    let area = Area::make().unwrap();
    let life = |area: &Area| Life::begin(Area::inherited(area.fd().try_clone_to_owned().unwrap()).unwrap());
    assert_eq!((life(&area).device(), life(&area).is_privileged()), (None, false));
    for (device, privileged) in [("7:1048575", true), ("0:61", false)] {
        area.note_mount(Some(device), privileged);
        assert_eq!(life(&area).device().as_deref(), Some(device));
        assert_eq!(life(&area).is_privileged(), privileged);
    }
}

/// A connection whose reads fail while the mount lasts.
struct Unreadable;

impl Transport for Unreadable {
    fn name(&self) -> &'static str {
        "unreadable"
    }
    fn workers(&self) -> usize {
        1
    }
    fn receive<'a>(&'a self, _: usize, _: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
    fn wait(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn reply(&self, _: u32, _: u64, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Ok(())
    }
    fn notify(&self, _: i32, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// A close would make the keeper give the image up, and so end the mount.
#[test]
fn a_server_that_cannot_go_on_leaves_the_image_open_for_the_next_one() {
    let world = World::new();
    let device = Arc::new(world.device.fork());
    let area = Area::make().unwrap().fd().try_clone_to_owned().unwrap();
    let (life, fs) = begin(&device, &area);
    let closed = Arc::new(AtomicBool::new(false));
    let closes = closed.clone();
    let session = MountedSession::new(Arc::new(Unreadable), mount_point(), FuseOptions::default());
    let close = move || {
        closes.store(true, Relaxed);
        Ok::<_, io::Error>(())
    };
    let served = session.living(life).resume_and_close(fs, || Ok(()), close);
    assert_eq!(served.err().and_then(|e| e.raw_os_error()), Some(libc::EIO));
    assert!(!closed.load(Relaxed), "the image was closed");
}

/// Whether the changes are made again after many servers that could not: half of them do not reach
/// the journal, and the others end while they redo the first change.
fn survives_many_failed_starts() -> bool {
    let mut world = World::new();
    // Some entries have a durable record, and the others have none.
    world.done(op::MKDIR, "dir", &named(MkdirIn { mode: 0o700, umask: 0 }.as_bytes(), &["new"]));
    world.done(op::WRITE, "a", &write(0, b"later"));
    let before = world.tree();
    world.end_thread();
    for attempt in 0..2 * (area::LIVES + 3) {
        world.device = Arc::new(world.device.fork());
        let (life, fs) = begin(&world.device, &world.area);
        if attempt % 2 == 0 {
            continue;
        }
        let (wire, options) = (Arc::new(Wire::default()), FuseOptions::default());
        let (server, _jobs) = Server::new(Arc::new(fs), wire, options, Value::Null, Box::new(|| ()));
        die_at(Step::Redone, Box::new(|| ()));
        let ended = catch_unwind(AssertUnwindSafe(|| server.resume(&life).map(drop)));
        die_at(Step::Never, Box::new(|| ()));
        if ended.is_ok_and(|redone| redone.is_err()) {
            return false;
        }
    }
    world.next_life();
    world.tree() == before
}

#[test]
fn any_number_of_servers_may_fail_to_start() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let survives = survives_many_failed_starts();
    break_rule(Broken::LivesUsedUp);
    let used_up = !survives_many_failed_starts();
    break_rule(Broken::Nothing);
    std::panic::set_hook(hook);
    assert!(survives);
    assert!(used_up, "a life for each start is not caught");
}

/// Returns the content of an unlinked open file after two deaths.
fn unlinked_file() -> Option<Vec<u8>> {
    let mut world = World::new();
    // The kernel has two references: from the reply to MKNOD and from a lookup.
    world.done(op::LOOKUP, "", b"a\0");
    let node = world.ino("a");
    world.done(op::UNLINK, "", b"a\0");
    for durable in [false, true] {
        if durable {
            world.fs.sync().unwrap();
        }
        world.next_life();
    }
    let mut bytes = vec![0; 19];
    let read = world.fs.read_uncached(Ino(node), 0, &mut bytes).ok()?;
    bytes.truncate(read);
    // The kernel drops its references, which deletes the file.
    world.server.unpin_for_test(node, 2);
    assert!(world.fs.getattr(Ino(node)).is_err(), "the last pin deletes it");
    Some(bytes)
}

#[test]
fn an_unlinked_file_that_is_open_survives() {
    assert_eq!(unlinked_file().unwrap(), b"duragain and longer");
    break_rule(Broken::OrphanDropped);
    let dropped = unlinked_file();
    break_rule(Broken::Nothing);
    assert_eq!(dropped, None, "without pins the file is gone");
}

#[test]
fn a_file_whose_pin_the_memory_cannot_hold_is_deleted() {
    let mut world = World::new();
    let kept = world.server.kept.clone().unwrap();
    kept.pins.lock().fill();
    let deletions = world.fs.deletions();
    let body = named(abi::CreateIn { mode: 0o100_600, ..abi::CreateIn::new_zeroed() }.as_bytes(), &[""]);
    world.send(5000, op::TMPFILE, Ino::ROOT.0, &body);
    assert_eq!(world.last(), (-libc::ENOMEM, 0));
    assert_eq!(world.fs.deletions(), deletions + 1);
}

/// The next server leaves nothing of such a file, whether its record is durable or not.
#[test]
fn a_file_whose_pin_the_memory_could_not_hold_is_not_pinned_later() {
    for durable in [false, true] {
        let mut world = World::new();
        world.fs.sync().unwrap();
        let kept = world.server.kept.clone().unwrap();
        kept.pins.lock().fill();
        let body = named(abi::CreateIn { mode: 0o100_600, ..abi::CreateIn::new_zeroed() }.as_bytes(), &[""]);
        world.send(5000, op::TMPFILE, Ino::ROOT.0, &body);
        assert_eq!(world.last(), (-libc::ENOMEM, 0));
        let entries = Journal::scan(&kept.area).unwrap();
        let entry = entries.into_iter().find(|entry| entry.head.opcode == op::TMPFILE).unwrap();
        let (made, state) = (Ino(entry.head.mark.ino), entry.head.outcome.state);
        assert!(made.0 != 0 && state == REFUSED, "the file was made: {made}, {state}");
        if durable {
            world.fs.sync().unwrap();
        }
        for life in 1..=2 {
            world.next_life();
            let kept = world.server.kept.as_ref().unwrap();
            assert!(!kept.pins.lock().has(made), "pinned after death {life}, durable {durable}");
            assert!(world.fs.getattr(made).is_err(), "there after death {life}, durable {durable}");
        }
    }
}

/// The record of a file without a name contains nothing of the directory.
#[test]
fn times_of_a_directory_stay_although_a_nameless_file_was_made_in_it_later() {
    let mut world = World::new();
    world.fs.sync().unwrap();
    let times = SetattrIn { valid: fattr::MTIME, mtime: 1000, ..SetattrIn::default() };
    world.done(op::SETATTR, "dir", &setattr(times));
    let body = named(abi::CreateIn { mode: 0o100_600, ..abi::CreateIn::new_zeroed() }.as_bytes(), &[""]);
    world.done(op::TMPFILE, "dir", &body);
    // Makes the record of the file durable. The times of the directory are in no record.
    let entries = Journal::scan(&world.server.kept.as_ref().unwrap().area).unwrap();
    let made = entries.into_iter().find(|entry| entry.head.opcode == op::TMPFILE).unwrap();
    world.fs.fsync(Ino(made.head.mark.ino), false).unwrap();
    world.next_life();
    assert_eq!(world.fs.getattr(Ino(world.ino("dir"))).unwrap().mtime.sec, 1000);
}

#[test]
fn bits_that_were_set_after_a_change_of_content_stay() {
    let mut world = World::new();
    let changes = [
        (op::FALLOCATE, fallocate(0, 0, 50_000)),
        (op::WRITE, write(0, b"before")),
        (op::SETATTR, setattr(SetattrIn { valid: fattr::SIZE, size: 40_000, ..SetattrIn::default() })),
    ];
    for (opcode, body) in changes {
        world.done(opcode, "a", &body);
    }
    let mode = SetattrIn { valid: fattr::MODE, mode: 0o106_755, ..SetattrIn::default() };
    world.done(op::SETATTR, "a", &setattr(mode));
    // The record of the mode becomes durable, so only the changes of content are redone.
    world.fs.sync().unwrap();
    for life in 1..=2 {
        world.next_life();
        let attr = world.fs.getattr(Ino(world.ino("a"))).unwrap();
        assert_eq!((attr.mode & 0o7777, attr.size), (0o6755, 40_000), "after death {life}");
    }
}

#[test]
fn times_that_a_program_has_seen_stay() {
    let mut world = World::new();
    let mode = SetattrIn { valid: fattr::MODE, mode: 0o100_600, ..SetattrIn::default() };
    world.done(op::WRITE, "b", &write(0, b"earlier"));
    world.done(op::WRITE, "dir/x", &write(0, b"now"));
    world.done(op::SETATTR, "b", &setattr(mode));
    world.done(op::SETATTR, "dir/x", &setattr(mode));
    world.fs.sync().unwrap();
    world.done(op::WRITE, "b", &write(0, b"later"));
    let seen = |world: &World| {
        ["a", "b", "dir", "dir/x"].map(|path| {
            let attr = world.fs.getattr(Ino(world.ino(path))).unwrap();
            (attr.mtime, attr.ctime, attr.btime)
        })
    };
    let before = seen(&world);
    world.next_life();
    assert_eq!(seen(&world), before);
}

/// Times of a file before and after a death. They were set before a change of its content whose
/// record is durable.
fn times_before_a_durable_change((opcode, body): (u32, &[u8])) -> [[kedgefs::Timespec; 3]; 2] {
    let mut world = World::new();
    let valid = fattr::ATIME | fattr::MTIME;
    let old = SetattrIn { valid, atime: 900, mtime: 1000, ..SetattrIn::default() };
    world.done(op::SETATTR, "a", &setattr(old));
    world.done(opcode, "a", body);
    world.fs.sync().unwrap();
    let seen = |world: &World| {
        let attr = world.fs.getattr(Ino(world.ino("a"))).unwrap();
        [attr.atime, attr.mtime, attr.ctime]
    };
    let before = seen(&world);
    world.next_life();
    [before, seen(&world)]
}

#[test]
fn times_of_a_durable_change_of_content_stay() {
    let size = setattr(SetattrIn { valid: fattr::SIZE, size: 5, ..SetattrIn::default() });
    let allocation = fallocate(0, 0, 50_000);
    for change in [(op::SETATTR, &size[..]), (op::FALLOCATE, &allocation)] {
        let [before, after] = times_before_a_durable_change(change);
        assert_eq!((before[0].sec, before[1].sec == 1000), (900, false));
        assert_eq!(after, before, "{}", op_name(change.0));
        break_rule(Broken::OlderTimeAgain);
        let [before, after] = times_before_a_durable_change(change);
        break_rule(Broken::Nothing);
        assert_ne!(after[1], before[1], "an older time is not caught");
    }
}

/// Whether a file whose content was changed has set-id bits. Its server dies, the next one dies
/// when it has made the change again and the log was forced, and then the machine fails.
fn bits_survive(opcode: u32) -> bool {
    let mut world = World::new();
    let shrink = shrink_set_id(&world);
    let write = WriteIn { size: 1, write_flags: abi::WRITE_KILL_SUIDGID, ..WriteIn::default() };
    let body = if opcode == op::WRITE { [write.as_bytes(), b"!"].concat() } else { shrink };
    // Frees the journal.
    world.next_life();
    world.done(opcode, "dir/x", &body);
    world.end_thread();
    world.device = Arc::new(world.device.fork());
    let (life, fs) = begin(&world.device, &world.area);
    let (wire, options) = (Arc::new(Wire::default()), FuseOptions::default());
    let (server, _jobs) = Server::new(Arc::new(fs.clone()), wire, options, Value::Null, Box::new(|| ()));
    die_at(Step::Made, Box::new(move || fs.sync().unwrap()));
    let died = catch_unwind(AssertUnwindSafe(|| server.resume(&life).map(drop))).is_err();
    die_at(Step::Never, Box::new(|| ()));
    assert!(died, "the change is made again");
    let clock = Arc::new(SystemClock::default());
    let fs =
        FileSystem::open(Arc::new(world.device.fork()), clock, MountOptions::default()).expect("recovers");
    let dir = fs.lookup(Ino::ROOT, b"dir").unwrap().ino;
    let attr = fs.lookup(dir, b"x").unwrap();
    let mut first = [0];
    fs.read_uncached(attr.ino, 0, &mut first).unwrap();
    assert!(attr.size == 6000 || first == *b"!", "the content is durable");
    attr.mode & 0o6000 != 0
}

#[test]
fn set_id_bits_do_not_survive_a_second_death() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let survive = [op::SETATTR, op::WRITE].map(bits_survive);
    break_rule(Broken::BitsClearedLate);
    let broken = [op::SETATTR, op::WRITE].map(bits_survive);
    break_rule(Broken::Nothing);
    std::panic::set_hook(hook);
    assert_eq!((survive, broken), ([false; 2], [true; 2]));
}

#[test]
fn a_full_journal_syncs_and_goes_on() {
    let mut world = World::new();
    let kept = world.server.kept.clone().unwrap();
    let (syncing, ops) = (kept.clone(), Arc::new(world.fs.clone()));
    let thread = kedge_base::spawn_named("recycle", move || Server::recycle(&syncing, &*ops)).unwrap();
    // More entries than both halves can hold.
    for i in 0..40_000u64 {
        world.done(op::WRITE, "a", &write(i % 1000, &[i as u8]));
    }
    world.next_life();
    kept.end();
    thread.join().unwrap();
    let mut bytes = vec![0; 1];
    world.fs.read_uncached(Ino(world.ino("a")), 999, &mut bytes).unwrap();
    assert_eq!(bytes, [39_999u64 as u8]);
}

#[test]
fn a_journal_of_another_content_is_refused() {
    let mut world = World::new();
    let area = Area::inherited(world.area.try_clone().unwrap()).unwrap();
    world.done(op::UNLINK, "", b"c\0");
    let entries = Journal::scan(&area).unwrap();
    assert!(entries.len() > 8);
    // Flips a bit in the arguments of the first entry.
    let at = area::HALVES_AT + 128 + 128;
    let word: u64 = area.read(at);
    area.store(at, word ^ 1);
    let e = Journal::scan(&area).unwrap_err();
    assert!(e.to_string().contains("wrong checksum"), "{e}");
}
