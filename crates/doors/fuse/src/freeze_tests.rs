use super::*;
use crate::abi::{InHeader, WriteIn, ioctl, op};
use crate::control;
use crate::options::FuseOptions;
use crate::parking::{PARKED_MAX, Parked};
use crate::transport::{Received, Request, RequestBuf, Transport};
use kedge_base::{HANG, ManualClock, spawn_named};
use kedge_device::MemDevice;
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner};
use parking_lot::{Condvar, Mutex};
use std::thread::JoinHandle;
use zerocopy::IntoBytes;

/// Records the replies as unique and error.
#[derive(Default)]
struct Wire {
    replies: Mutex<Vec<(u64, i32)>>,
    came: Condvar,
}

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "test"
    }

    fn workers(&self) -> usize {
        1
    }

    fn receive<'a>(&'a self, _worker: usize, _buf: &'a mut RequestBuf) -> std::io::Result<Received<'a>> {
        Ok(Received::Ended)
    }

    fn wait(&self, _worker: usize) -> std::io::Result<()> {
        Ok(())
    }

    fn reply(&self, _token: u32, unique: u64, error: i32, _parts: &[&[u8]]) -> std::io::Result<()> {
        self.replies.lock().push((unique, error));
        self.came.notify_all();
        Ok(())
    }

    fn notify(&self, _code: i32, _body: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

impl Wire {
    /// Waits for `count` replies and removes them.
    fn take(&self, count: usize) -> Vec<(u64, i32)> {
        let mut replies = self.replies.lock();
        while replies.len() < count {
            let late = self.came.wait_for(&mut replies, HANG).timed_out();
            assert!(!late, "{} of {count} replies", replies.len());
        }
        replies.drain(..count).collect()
    }
}

/// A server whose only worker is the test's thread, with the thread for parked requests.
struct Bench {
    wire: Arc<Wire>,
    fs: FileSystem,
    ino: Ino,
    server: Option<Arc<Server<FileSystem>>>,
    thread: Option<JoinHandle<()>>,
    unique: u64,
}

impl Bench {
    fn new(room: u64) -> Bench {
        Bench::with(room, FuseOptions::default())
    }

    fn with(room: u64, options: FuseOptions) -> Bench {
        let device = Arc::new(MemDevice::new(32 << 20));
        let clock = || Arc::new(ManualClock::default());
        FileSystem::format(device.clone(), clock(), &FormatOptions::default()).unwrap();
        let fs = FileSystem::open(device, clock(), MountOptions::default()).unwrap();
        let ino = fs.create(Ino::ROOT, b"file", 0o644, Owner::default()).unwrap().ino;
        let wire = Arc::new(Wire::default());
        let ops = Arc::new(fs.clone());
        let closing = fs.clone();
        let close = Box::new(move || closing.close().unwrap());
        let (server, _seeks) =
            Server::new(ops.clone(), wire.clone(), options, serde_json::Value::Null, close);
        let (mut server, jobs) = server.freezable();
        server.parking = server.parking.map(|parking| parking.with_room(room));
        let server = Arc::new(server);
        let weak = Arc::downgrade(&server);
        let thread = spawn_named("late", move || serve(&weak, &ops, &jobs)).unwrap();
        Bench { wire, fs, ino, server: Some(server), thread: Some(thread), unique: 0 }
    }

    fn server(&self) -> &Server<FileSystem> {
        self.server.as_ref().unwrap()
    }

    fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        self.send_as(0, opcode, nodeid, body)
    }

    /// Sends a request whose caller is thread `pid`.
    fn send_as(&mut self, pid: u32, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        self.unique += 1;
        let len = 40 + body.len() as u32;
        let uid = rustix::process::geteuid().as_raw();
        let header =
            InHeader { opcode, nodeid, unique: self.unique, len, uid, pid, ..InHeader::new_zeroed() };
        let message = [header.as_bytes(), body].concat();
        self.server().handle(&Request::parse(&message, 0).unwrap(), &mut IoBuf::zeroed(1));
        self.unique
    }

    fn write(&mut self, offset: u64, bytes: &[u8], write_flags: u32) -> u64 {
        let asked = WriteIn { offset, size: bytes.len() as u32, write_flags, ..WriteIn::new_zeroed() };
        let ino = self.ino.0;
        self.send(op::WRITE, ino, &[asked.as_bytes(), bytes].concat())
    }

    fn ioctl(&mut self, cmd: u32, argument: &[u8]) -> i32 {
        let asked = abi::IoctlIn { cmd, ..abi::IoctlIn::new_zeroed() };
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let unique = self.send_as(own, op::IOCTL, 1, &[asked.as_bytes(), argument].concat());
        let replies = self.wire.take(1);
        assert_eq!(replies[0].0, unique);
        replies[0].1
    }

    /// Sends an ioctl as a user who is neither root nor the user serving the mount.
    fn ioctl_as_stranger(&mut self, cmd: u32) -> i32 {
        let asked = abi::IoctlIn { cmd, ..abi::IoctlIn::new_zeroed() };
        let body = [asked.as_bytes(), &[0; 4]].concat();
        let uid = rustix::process::geteuid().as_raw() + 4242;
        let len = 40 + body.len() as u32;
        let header = InHeader { opcode: op::IOCTL, nodeid: 1, uid, len, ..InHeader::new_zeroed() };
        let message = [header.as_bytes(), &body].concat();
        self.server().handle(&Request::parse(&message, 0).unwrap(), &mut IoBuf::zeroed(1));
        self.wire.take(1)[0].1
    }

    fn freeze(&mut self, seconds: u32) -> i32 {
        self.ioctl(ioctl::FREEZE, &seconds.to_ne_bytes())
    }

    /// Waits until no request is parked. The reply is sent slightly before the request is dropped.
    fn nothing_parked(&self) {
        while self.server().parking.as_ref().unwrap().bytes() > 0 {
            std::thread::yield_now();
        }
    }

    /// Ends the server as a session does.
    fn end(&mut self) {
        let server = self.server.take().unwrap();
        server.destroy();
        server.parking.as_ref().unwrap().send(Job::End);
        drop(server);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The only worker parks any number of changes, and still serves all other requests.
#[test]
fn more_writers_than_workers_wait_while_reads_and_the_thaw_go_on() {
    const WRITES: u64 = 200;
    let mut bench = Bench::new(PARKED_MAX);
    assert_eq!(bench.ioctl(ioctl::THAW, &[]), -libc::EINVAL);
    assert_eq!(bench.ioctl_as_stranger(ioctl::FREEZE), -libc::EPERM);
    assert_eq!(bench.freeze(0), 0);
    assert_eq!(bench.ioctl_as_stranger(ioctl::THAW), -libc::EPERM);
    assert_eq!(bench.freeze(0), -libc::EBUSY);
    let first = bench.write(0, b"0", 0);
    for i in 1..WRITES {
        bench.write(i, &[i as u8], 0);
    }
    let set = |name: &[u8], value: &[u8]| {
        let asked = abi::SetxattrIn { size: value.len() as u32, ..abi::SetxattrIn::new_zeroed() };
        [asked.as_bytes(), name, b"\0", value].concat()
    };
    let xattr = set(b"user.x", b"y");
    bench.send(op::SETXATTR, Ino::ROOT.0, &xattr);
    bench.send(op::MKDIR, Ino::ROOT.0, &[abi::MkdirIn::new_zeroed().as_bytes(), b"dir\0"].concat());
    let parked = bench.server().parking.as_ref().unwrap().bytes();
    assert!(parked > WRITES * size_of::<Parked>() as u64, "{parked}");
    assert!(bench.wire.replies.lock().is_empty());
    // Requests that change nothing are served.
    let ino = bench.ino.0;
    for (opcode, node, body) in [
        (op::GETATTR, ino, vec![0; 16]),
        (op::READ, ino, abi::ReadIn { size: 100, ..abi::ReadIn::new_zeroed() }.as_bytes().to_vec()),
        (op::LOOKUP, Ino::ROOT.0, b"file\0".to_vec()),
        (op::FSYNC, ino, abi::FsyncIn::new_zeroed().as_bytes().to_vec()),
        (op::SYNCFS, Ino::ROOT.0, vec![0; 8]),
        (op::STATFS, Ino::ROOT.0, vec![]),
        (op::SETXATTR, Ino::ROOT.0, set(control::XATTR_OPTIONS, b"noatime")),
    ] {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let unique = bench.send_as(own, opcode, node, &body);
        let error = if opcode == op::SETXATTR { -libc::EBUSY } else { 0 };
        assert_eq!(bench.wire.take(1), [(unique, error)], "opcode {opcode}");
    }
    assert_eq!(bench.fs.getattr(bench.ino).unwrap().size, 0);
    bench.fs.thaw().unwrap();
    let replies = bench.wire.take(WRITES as usize + 2);
    let expected: Vec<(u64, i32)> = (first..first + WRITES + 2).map(|unique| (unique, 0)).collect();
    assert_eq!(replies, expected, "in their order, each once");
    bench.nothing_parked();
    let mut bytes = vec![0; WRITES as usize];
    assert_eq!(bench.fs.read(bench.ino, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes[1..].iter().zip(1..).all(|(byte, i): (_, u64)| *byte == i as u8));
    bench.fs.lookup(Ino::ROOT, b"dir").unwrap();
    bench.end();
}

/// Every kind of request, and whether it waits for a thaw. If that depends on the arguments, both
/// cases are listed.
fn requests() -> Vec<(String, u32, Vec<u8>, bool)> {
    const CHANGES: [u32; 17] = [
        op::SETATTR,
        op::SYMLINK,
        op::MKNOD,
        op::MKDIR,
        op::UNLINK,
        op::RMDIR,
        op::RENAME,
        op::LINK,
        op::WRITE,
        op::REMOVEXATTR,
        op::CREATE,
        op::FALLOCATE,
        op::COPY_FILE_RANGE,
        op::COPY_FILE_RANGE_64,
        op::RENAME2,
        op::TMPFILE,
        op::SETXATTR,
    ];
    let open = |flags: i32| {
        let asked = abi::OpenIn { flags: flags as u32, ..abi::OpenIn::new_zeroed() };
        (format!("OPEN with flags {flags:#o}"), op::OPEN, asked.as_bytes().to_vec())
    };
    let of_ioctl = |cmd: u32| {
        let asked = abi::IoctlIn { cmd, ..abi::IoctlIn::new_zeroed() };
        (format!("IOCTL {cmd:#x}"), op::IOCTL, [asked.as_bytes(), &[0; 64]].concat())
    };
    let set_options = [&[0; 8], control::XATTR_OPTIONS, b"\0"].concat();
    let told = [
        (open(libc::O_RDWR), false),
        (open(libc::O_RDWR | libc::O_TRUNC), true),
        (("SETXATTR of options".to_owned(), op::SETXATTR, set_options), false),
        (of_ioctl(ioctl::SETFLAGS), true),
        (of_ioctl(ioctl::FSSETXATTR), true),
        (of_ioctl(ioctl::TRIM), true),
        (of_ioctl(ioctl::GETFLAGS), false),
        (of_ioctl(ioctl::FSGETXATTR), false),
        (of_ioctl(ioctl::SHUTDOWN), false),
        (of_ioctl(ioctl::FREEZE), false),
        (of_ioctl(ioctl::THAW), false),
    ];
    let told = told.into_iter().map(|((what, opcode, body), waits)| (what, opcode, body, waits));
    // Includes one opcode that is not known.
    let opcodes = (0..=abi::OPCODES as u32).filter(|opcode| !matches!(*opcode, op::OPEN | op::IOCTL));
    let of_opcode = |opcode: u32| {
        let waits = CHANGES.contains(&opcode);
        (format!("{opcode}: {}", abi::op_name(opcode)), opcode, vec![0; 128], waits)
    };
    told.chain(opcodes.map(of_opcode)).collect()
}

/// A change that is not recognised as one would block a worker at the gate of the file system.
#[test]
fn changes_and_nothing_else_wait_for_the_thaw() {
    for no_open in [true, false] {
        let mut bench = Bench::with(PARKED_MAX, FuseOptions { no_open, ..FuseOptions::default() });
        assert_eq!(bench.freeze(0), 0);
        let mut waiting = Vec::new();
        for (what, opcode, body, waits) in requests() {
            // With `no_open` these two requests are refused.
            let waits = waits && !(no_open && matches!(opcode, op::CREATE | op::OPEN));
            let header = InHeader { opcode, nodeid: Ino::ROOT.0, ..InHeader::new_zeroed() };
            let is_change = bench.server().is_change(&Request { header, body: &body, token: 0 });
            assert_eq!(is_change, waits, "{what}");
            if waits {
                waiting.push(bench.send(opcode, Ino::ROOT.0, &body));
                let parked = bench.server().parking.as_ref().unwrap().len();
                assert_eq!(parked, waiting.len(), "{what}");
            }
        }
        assert!(bench.wire.replies.lock().is_empty());
        assert_eq!(bench.ioctl(ioctl::THAW, &[]), 0);
        let answered: Vec<u64> = bench.wire.take(waiting.len()).iter().map(|(unique, _)| *unique).collect();
        assert_eq!(answered, waiting, "in their order, each once");
        bench.nothing_parked();
        bench.end();
    }
}

#[test]
fn what_waits_is_bounded_but_for_the_kernels_cache() {
    let mut bench = Bench::new(10_000);
    assert_eq!(bench.freeze(0), 0);
    let kept = bench.write(0, &[b'a'; 8000], 0);
    let refused = bench.write(8000, &[b'b'; 8000], 0);
    assert_eq!(bench.wire.take(1), [(refused, -libc::ENOMEM)]);
    let cached = bench.write(8000, &[b'c'; 8000], abi::WRITE_CACHE);
    assert_eq!(bench.ioctl(ioctl::THAW, &[]), 0);
    assert_eq!(bench.wire.take(2), [(kept, 0), (cached, 0)]);
    bench.nothing_parked();
    let again = bench.write(8000, &[b'd'; 8000], 0);
    assert_eq!(bench.wire.take(1), [(again, 0)]);
    bench.end();
}

/// A small request is always parked, because each waiting thread has only one of them.
#[test]
fn small_requests_always_find_room() {
    let mut bench = Bench::new(100);
    assert_eq!(bench.freeze(0), 0);
    let first = bench.write(0, &[b'a'; 900], 0);
    let second = bench.write(900, &[b'b'; 900], 0);
    let refused = bench.write(1800, &[b'c'; 1024], 0);
    assert_eq!(bench.wire.take(1), [(refused, -libc::ENOMEM)]);
    assert_eq!(bench.ioctl(ioctl::THAW, &[]), 0);
    assert_eq!(bench.wire.take(2), [(first, 0), (second, 0)]);
    assert_eq!(bench.fs.getattr(bench.ino).unwrap().size, 1800);
    bench.end();
}

/// A thread that is being killed gets EINTR and its change is not made, even if the INTERRUPT
/// arrives before the request. Other threads continue to wait. An INTERRUPT whose request is never
/// parked is forgotten.
#[test]
fn an_interrupted_change_of_the_killed_is_given_up() {
    let mut bench = Bench::new(PARKED_MAX);
    let alive = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let gone = u32::MAX >> 1;
    let proc = Path::new("/proc");
    assert!(is_killed(proc, gone) && !is_killed(proc, alive));
    let mkdir = |name: &[u8]| [abi::MkdirIn::new_zeroed().as_bytes(), name, b"\0"].concat();
    assert_eq!(bench.freeze(0), 0);
    let interrupt = |bench: &mut Bench, unique: u64| bench.send(op::INTERRUPT, 0, unique.as_bytes());
    let next = bench.unique + 2;
    interrupt(&mut bench, next);
    let early = bench.send_as(gone, op::MKDIR, Ino::ROOT.0, &mkdir(b"early"));
    assert_eq!((early, bench.wire.take(1)), (next, vec![(early, -libc::EINTR)]));
    let spared = bench.send_as(alive, op::MKDIR, Ino::ROOT.0, &mkdir(b"spared"));
    let late = bench.send_as(gone, op::MKDIR, Ino::ROOT.0, &mkdir(b"late"));
    interrupt(&mut bench, spared);
    interrupt(&mut bench, late);
    assert_eq!(bench.wire.take(1), [(late, -libc::EINTR)]);
    let one = bench.server().parking.as_ref().unwrap().len();
    assert_eq!(one, 1);
    assert_eq!(bench.ioctl(ioctl::THAW, &[]), 0);
    assert_eq!(bench.wire.take(1), [(spared, 0)]);
    bench.nothing_parked();
    assert!(bench.fs.lookup(Ino::ROOT, b"spared").is_ok());
    for name in [&b"early"[..], b"late"] {
        assert!(matches!(bench.fs.lookup(Ino::ROOT, name), Err(kedgefs::Error::NotFound)));
    }
    bench.end();
}

/// In a /proc of another pid namespace the numbers belong to other processes.
#[test]
fn a_foreign_proc_tells_of_no_caller_that_it_is_killed() {
    let foreign = tempfile::tempdir().unwrap();
    let gone = u32::MAX >> 1;
    assert!(is_killed(Path::new("/proc"), gone));
    assert!(!is_killed(foreign.path(), gone), "not mounted");
    std::os::unix::fs::symlink((std::process::id() + 1).to_string(), foreign.path().join("self")).unwrap();
    assert!(!is_killed(foreign.path(), gone));
}

#[test]
fn a_freeze_with_a_time_ends_by_itself() {
    let mut bench = Bench::new(PARKED_MAX);
    assert_eq!(bench.freeze(1), 0);
    let write = bench.write(0, b"x", 0);
    assert_eq!(bench.wire.take(1), [(write, 0)]);
    assert!(bench.fs.frozen_since().is_none());
    // A thaw also cancels the time limit of the freeze.
    assert_eq!((bench.freeze(3600), bench.ioctl(ioctl::THAW, &[]), bench.freeze(0)), (0, 0, 0));
    bench.end();
}

/// A clock whose sleeps return at once.
#[derive(Default)]
struct Restless(ManualClock);

impl Clock for Restless {
    fn now(&self) -> kedge_base::Timespec {
        self.0.now()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, time: Duration) {
        self.0.advance(time);
    }
}

/// An automatic thaw that finds no space on the image's host is retried, because no other caller
/// may ever thaw the file system.
#[test]
fn a_freeze_with_a_time_ends_when_the_host_has_space() {
    let place = tempfile::tempdir().unwrap();
    let (image, faults) = (place.path().join("image"), place.path().join("faults"));
    let file = kedge_device::FileDevice::create(image, 32 << 20, Default::default()).unwrap();
    let device = Arc::new(kedge_device::sim::ScriptedDevice::new(file, faults.clone()));
    let clock = Arc::new(Restless::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let fs = FileSystem::open(device, clock.clone(), MountOptions::default()).unwrap();
    fs.freeze().unwrap();
    std::fs::write(&faults, "write 28 0 *\n").unwrap();
    let mut timers = Timers { thaw: Some(Duration::ZERO), ..Timers::default() };
    let server = Weak::<Server<FileSystem>>::new();
    timers.ring(&server, &fs, &*clock);
    assert!(timers.thaw.is_some_and(|at| at > clock.monotonic()) && fs.frozen_since().is_some());
    std::fs::remove_file(&faults).unwrap();
    clock.0.advance(THAW_AGAIN);
    timers.ring(&server, &fs, &*clock);
    assert!(timers.thaw.is_none() && fs.frozen_since().is_none());
}

/// At the end of the mount, parked requests fail and the image stays unchanged.
#[test]
fn the_end_of_the_mount_answers_what_waits() {
    let mut bench = Bench::new(PARKED_MAX);
    assert_eq!(bench.freeze(0), 0);
    let write = bench.write(0, b"x", 0);
    bench.end();
    assert_eq!(bench.wire.take(1), [(write, -libc::EIO)]);
}
