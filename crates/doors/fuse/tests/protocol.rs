//! The server with a kernel that sends invalid requests: every request gets one reply, and nothing
//! panics.

#![allow(clippy::unwrap_used)]

mod memfs;

use kedge_base::IoBuf;
use kedge_fuse::abi::{self, InHeader, OutHeader, op};
use kedge_fuse::failures::Failures;
use kedge_fuse::settle::{self, PageJob};
use kedge_fuse::transport::{Received, Reply, Request, RequestBuf, Transport};
use kedge_fuse::{FuseOptions, Ops, Server};
use kedgefs::{Ino, Owner, SetAttr};
use memfs::MemFs;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Records the replies that the kernel would get: unique, error, payload.
#[derive(Default)]
struct Wire {
    replies: Mutex<Vec<(u64, i32, Vec<u8>)>>,
    notified: Mutex<Vec<(i32, Vec<u8>)>>,
}

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "test"
    }

    fn workers(&self) -> usize {
        1
    }

    fn receive<'a>(&'a self, _worker: usize, _buf: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        Ok(Received::Ended)
    }

    fn wait(&self, _worker: usize) -> io::Result<()> {
        Ok(())
    }

    fn reply(&self, _token: u32, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.replies.lock().push((unique, error, parts.concat()));
        Ok(())
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        self.notified.lock().push((code, body.to_vec()));
        Ok(())
    }
}

struct Bench {
    wire: Arc<Wire>,
    server: Server<MemFs>,
    jobs: Receiver<PageJob>,
    fs: MemFs,
    unique: u64,
    out: IoBuf,
}

impl Bench {
    fn new(options: FuseOptions) -> Bench {
        Bench::of(MemFs::new(), options)
    }

    fn of(fs: MemFs, options: FuseOptions) -> Bench {
        let wire = Arc::new(Wire::default());
        let (server, jobs) = Server::new(
            Arc::new(fs.clone()),
            wire.clone(),
            options,
            serde_json::Value::Null,
            Box::new(|| {}),
        );
        Bench { wire, server, jobs, fs, unique: 0, out: IoBuf::zeroed(256) }
    }

    /// Sends a request. Returns the error and the payload of the reply, or `None` without a reply.
    fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> Option<(i32, Vec<u8>)> {
        self.send_as(InHeader { opcode, nodeid, ..InHeader::new_zeroed() }, body)
    }

    /// Sends a request. `header` has its other fields.
    fn send_as(&mut self, header: InHeader, body: &[u8]) -> Option<(i32, Vec<u8>)> {
        self.unique += 1;
        let (opcode, len) = (header.opcode, 40 + body.len() as u32);
        let header = InHeader { unique: self.unique, len, ..header };
        let message = [header.as_bytes(), body].concat();
        let request = Request::parse(&message, 0).unwrap();
        self.server.handle(&request, &mut self.out);
        let mut replies = std::mem::take(&mut *self.wire.replies.lock());
        assert!(replies.len() <= 1, "opcode {opcode} got {} replies", replies.len());
        let (unique, error, payload) = replies.pop()?;
        assert_eq!(unique, self.unique);
        assert!(error <= 0 && (error == 0 || payload.is_empty()));
        Some((error, payload))
    }
}

fn both() -> [FuseOptions; 2] {
    let open = FuseOptions { no_open: false, ..FuseOptions::default() };
    [FuseOptions::default(), open]
}

/// A generator with a fixed seed, so that the sequence is the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[test]
fn nonsense_is_refused() {
    for (seed, options) in [0x9e37_79b9_7f4a_7c15, 0x0123_4567_89ab_cdef].into_iter().zip(both()) {
        println!("seed {seed:#x}");
        let mut bench = Bench::new(options);
        let mut random = Random(seed);
        bench.fs_file();
        for _ in 0..100_000 {
            let opcode = random.below(60) as u32;
            // These opcodes are excluded. The file system must tolerate a FORGET without a pin, and
            // after an INIT that negotiates a writeback cache, a thread that this test does not
            // start would serve LSEEK.
            if matches!(opcode, op::INIT | op::FORGET | op::BATCH_FORGET | op::INTERRUPT) {
                continue;
            }
            let len = random.below(120) as usize;
            let body: Vec<u8> = (0..len)
                .map(|_| match random.below(4) {
                    0 | 1 => 0,
                    2 => b"abc."[random.below(4) as usize],
                    _ => random.next() as u8,
                })
                .collect();
            if opcode == op::WRITE && body.len() >= 16 && body[8..16] != [0; 8] {
                continue;
            }
            let answer = bench.send(opcode, random.below(6), &body);
            assert!(answer.is_some(), "opcode {opcode} unanswered: {body:?}");
            assert_ne!(answer.map(|a| a.0), Some(-libc::EIO), "opcode {opcode} panicked: {body:?}");
        }
    }
}

impl Bench {
    fn fs_file(&self) {
        self.fs.create(Ino::ROOT, b"a", 0o644, Owner::default()).unwrap();
        self.fs.mkdir(Ino::ROOT, b"b", 0o755, Owner::default()).unwrap();
    }
}

#[test]
fn short_bodies_are_invalid() {
    for options in both() {
        let no_open = options.no_open;
        let mut bench = Bench::new(options);
        bench.fs_file();
        for opcode in 1..abi::OPCODES as u32 {
            let Some((error, _)) = bench.send(opcode, 1, &[]) else {
                assert!(matches!(opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT));
                continue;
            };
            let bodyless =
                [op::GETATTR, op::STATX, op::STATFS, op::RELEASEDIR, op::SYNCFS, op::DESTROY, op::READLINK];
            match opcode {
                _ if bodyless.contains(&opcode) => assert_eq!(error, 0, "{}", abi::op_name(opcode)),
                op::OPENDIR if !no_open => assert_eq!(error, 0),
                _ => assert!(
                    [-libc::EINVAL, -libc::ENOSYS].contains(&error),
                    "{} {error}",
                    abi::op_name(opcode)
                ),
            }
        }
    }
}

#[test]
fn names_end_and_have_no_slash() {
    let mut bench = Bench::new(FuseOptions::default());
    for name in [&b"\0"[..], b"abc", b"a/b\0", b""] {
        assert_eq!(bench.send(op::LOOKUP, 1, name).unwrap().0, -libc::EINVAL, "{name:?}");
        assert_eq!(bench.send(op::UNLINK, 1, name).unwrap().0, -libc::EINVAL, "{name:?}");
    }
    // A WRITE whose size exceeds its data.
    let write = abi::WriteIn { size: 5, ..abi::WriteIn::new_zeroed() };
    assert_eq!(bench.send(op::WRITE, 1, &[write.as_bytes(), b"four"].concat()).unwrap().0, -libc::EINVAL);
}

#[test]
fn lookups_pin_and_forgets_unpin() {
    let mut bench = Bench::new(FuseOptions::default());
    bench.fs_file();
    let lookup = |bench: &mut Bench, dir, name: &[u8]| {
        let (error, payload) = bench.send(op::LOOKUP, dir, name).unwrap();
        assert_eq!(error, 0);
        abi::EntryOut::read_from_bytes(&payload).unwrap()
    };
    assert_eq!(lookup(&mut bench, 1, b"a\0").nodeid, 2);
    assert_eq!(lookup(&mut bench, 1, b"a\0").generation, 1);
    assert_eq!(bench.fs.pins(2), 2);
    // The lookups that an NFS server causes: of an inode by number, and of its parent.
    assert_eq!(lookup(&mut bench, 2, b".\0").nodeid, 2);
    assert_eq!(lookup(&mut bench, 3, b"..\0").nodeid, 1);
    assert_eq!(bench.fs.listings(), 0, "a lookup of the parent reads no directory");
    assert_eq!(bench.send(op::LOOKUP, 99, b".\0").unwrap().0, -libc::ENOENT);
    assert_eq!(bench.fs.pins(2), 3);
    // The kernel may cache that a name does not exist.
    let none = lookup(&mut bench, 1, b"none\0");
    assert_eq!((none.nodeid, none.entry_valid), (0, 3600));
    assert_eq!(bench.send(op::FORGET, 2, &2u64.to_ne_bytes()), None);
    assert_eq!(bench.fs.pins(2), 1);
    let batch = abi::BatchForgetIn { count: 2, dummy: 0 };
    let two = [abi::ForgetOne { nodeid: 2, nlookup: 1 }, abi::ForgetOne { nodeid: 1, nlookup: 1 }];
    assert_eq!(bench.send(op::BATCH_FORGET, 0, &[batch.as_bytes(), two.as_bytes()].concat()), None);
    assert_eq!(
        (bench.fs.pins(2), bench.fs.pins(1)),
        (0, 1),
        "the root's pins are not the kernel's to give back"
    );
    // A count above the number of entries sent: only the entries sent are processed.
    lookup(&mut bench, 1, b"a\0");
    assert_eq!(bench.send(op::BATCH_FORGET, 0, &[batch.as_bytes(), two[..1].as_bytes()].concat()), None);
    assert_eq!(bench.fs.pins(2), 0);
}

#[test]
fn directories_continue_where_they_stopped() {
    let mut bench = Bench::new(FuseOptions::default());
    for i in 0..50 {
        bench.fs.create(Ino::ROOT, format!("{i:03}").as_bytes(), 0o644, Owner::default()).unwrap();
    }
    for (opcode, head) in [(op::READDIR, 24), (op::READDIRPLUS, 152)] {
        let (mut offset, mut names) = (0, Vec::new());
        loop {
            let ask = abi::ReadIn { offset, size: 600, ..abi::ReadIn::new_zeroed() };
            let (error, payload) = bench.send(opcode, 1, ask.as_bytes()).unwrap();
            assert!(error == 0 && payload.len() <= 600);
            if payload.is_empty() {
                break;
            }
            let mut rest = &payload[..];
            while !rest.is_empty() {
                let dirent = abi::Dirent::read_from_bytes(&rest[head - 24..head]).unwrap();
                let name = &rest[head..head + dirent.namelen as usize];
                if head == 152 {
                    let entry = abi::EntryOut::read_from_bytes(&rest[..128]).unwrap();
                    assert_eq!(entry.nodeid, if name.starts_with(b".") { 0 } else { dirent.ino });
                }
                names.push(String::from_utf8(name.to_vec()).unwrap());
                offset = dirent.off;
                rest = &rest[abi::dirent_size(head, name.len())..];
            }
        }
        assert_eq!(names.len(), 52);
        assert_eq!((&*names[0], &*names[1], &*names[51]), (".", "..", "049"));
    }
    assert_eq!(bench.fs.pins(2), 1, "READDIRPLUS pins, READDIR does not");
}

#[test]
fn init_agrees_on_what_both_have() {
    let ask_both = |options, major, minor, flags, flags2| {
        let init = abi::InitIn { major, minor, max_readahead: 131072, flags };
        let more = abi::InitInExt { flags2, ..abi::InitInExt::new_zeroed() };
        let body = [init.as_bytes(), more.as_bytes()].concat();
        let (error, payload) = Bench::new(options).send(op::INIT, 0, &body).unwrap();
        abi::InitOut::read_from_bytes(&payload).map_err(|_| error)
    };
    let ask = |options, major, minor, flags| ask_both(options, major, minor, flags, 0);
    let [closed, open] = both();
    let out = ask(closed.clone(), 7, 45, u32::MAX).unwrap();
    assert_eq!((out.major, out.minor, out.max_write, out.max_pages), (7, abi::MINOR, 1 << 20, 256));
    assert_eq!(out.flags & abi::init::WRITEBACK_CACHE, 0, "not the default");
    let gathers = FuseOptions { writeback_cache: true, ..closed.clone() };
    assert_ne!(ask(gathers, 7, 45, u32::MAX).unwrap().flags & abi::init::WRITEBACK_CACHE, 0);
    assert_eq!(out.flags & abi::init::ATOMIC_O_TRUNC, 0, "would lose O_TRUNC");
    assert_ne!(ask(open.clone(), 7, 45, u32::MAX).unwrap().flags & abi::init::ATOMIC_O_TRUNC, 0);
    assert_eq!(ask(open.clone(), 7, 31, 1).unwrap().flags, 1);
    // Two of the flags from bit 32 on are used, and only with the extension.
    let idmap = if rustix::process::geteuid().is_root() { abi::init2::ALLOW_IDMAP } else { 0 };
    let [old, new] = [43, 44].map(|minor| ask_both(open.clone(), 7, minor, u32::MAX, u32::MAX).unwrap());
    assert_eq!((old.flags2, new.flags2), (idmap, idmap | abi::init2::NO_EXPORT_SUPPORT));
    let handles = abi::init::EXPORT_SUPPORT;
    assert_eq!((old.flags & handles, new.flags & handles), (handles, 0));
    assert_eq!(ask_both(open.clone(), 7, 45, !abi::init::INIT_EXT, u32::MAX).unwrap().flags2, 0);
    assert_eq!(ask(open.clone(), 8, 0, 0).unwrap().major, 7);
    assert_eq!(ask(open.clone(), 7, 22, 0).unwrap_err(), -libc::EPROTO);
    assert_eq!(ask(open, 6, 99, 0).unwrap_err(), -libc::EPROTO);
}

/// The kernel may have built the first SETXATTR before it had the reply to INIT.
#[test]
fn an_attribute_may_be_set_before_init_is_answered() {
    let mut fs = MemFs::new();
    fs.acls = true;
    let mut bench = Bench::of(fs, FuseOptions::default());
    let init = abi::InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };
    let body = [init.as_bytes(), abi::InitInExt::new_zeroed().as_bytes()].concat();
    let agreed = abi::InitOut::read_from_bytes(&bench.send(op::INIT, 0, &body).unwrap().1).unwrap();
    assert_ne!(agreed.flags & abi::init::SETXATTR_EXT, 0);
    let kill = abi::SetxattrInExt { setxattr_flags: abi::SETXATTR_ACL_KILL_SGID, padding: 0 };
    let none = abi::SetxattrInExt::new_zeroed();
    for (name, ext) in [("user.a", &b""[..]), ("user.b", none.as_bytes()), ("user.c", kill.as_bytes())] {
        let asked = abi::SetxattrIn { size: 5, flags: 0 };
        let body = [asked.as_bytes(), ext, name.as_bytes(), b"\0value"].concat();
        assert_eq!(bench.send(op::SETXATTR, 1, &body).unwrap().0, 0, "{name}");
        let asked = abi::GetxattrIn { size: 100, padding: 0 };
        let body = [asked.as_bytes(), name.as_bytes(), b"\0"].concat();
        assert_eq!(bench.send(op::GETXATTR, 1, &body).unwrap(), (0, b"value".to_vec()), "{name}");
    }
}

/// Kernels before 5.13 pass the ioctl on for any caller that can open the file, so the flags cannot
/// be set.
#[test]
fn flags_are_set_only_if_the_kernel_has_asked_who_may() {
    const SETFLAGS: u32 = 0x4008_6602;
    const FSSETXATTR: u32 = 0x401c_5820;
    let answers = |minor| {
        let mut bench = Bench::new(FuseOptions::default());
        let init = abi::InitIn { major: 7, minor, max_readahead: 131_072, flags: 0 };
        assert_eq!(bench.send(op::INIT, 0, init.as_bytes()).unwrap().0, 0);
        [SETFLAGS, FSSETXATTR].map(|cmd| {
            let asked = abi::IoctlIn { cmd, ..abi::IoctlIn::new_zeroed() };
            // The request has no argument, so code that parses it finds it malformed.
            bench.send(op::IOCTL, 1, asked.as_bytes()).unwrap().0
        })
    };
    assert_eq!(answers(33), [-libc::EOPNOTSUPP; 2]);
    assert!(answers(34).iter().all(|answer| *answer != -libc::EOPNOTSUPP), "{:?}", answers(34));
}

/// Requests as the kernel sends them if idmapped mounts are permitted.
#[test]
fn requests_without_ids_make_no_inode_and_rights_are_capabilities() {
    let mut bench = Bench::new(FuseOptions::default());
    let header =
        |opcode, uid, gid, pid| InHeader { opcode, nodeid: 1, uid, gid, pid, ..InHeader::new_zeroed() };
    let mknod = abi::MknodIn { mode: libc::S_IFREG | 0o644, ..abi::MknodIn::new_zeroed() };
    let mknod = [mknod.as_bytes(), b"new\0"].concat();
    for (uid, gid) in [(abi::NO_ID, 0), (0, abi::NO_ID)] {
        let answer = bench.send_as(header(op::MKNOD, uid, gid, 0), &mknod);
        assert_eq!(answer.unwrap().0, -libc::EOVERFLOW);
    }
    assert_eq!(bench.send(op::LOOKUP, 1, b"new\0").unwrap().1[..8], [0; 8], "there is none");

    let trim = abi::IoctlIn { cmd: 0xc018_5879, ..abi::IoctlIn::new_zeroed() };
    let all = abi::TrimRange { len: u64::MAX, ..abi::TrimRange::new_zeroed() };
    let trim = [trim.as_bytes(), all.as_bytes()].concat();
    let mut asked_by = |uid, pid| bench.send_as(header(op::IOCTL, uid, uid, pid), &trim).unwrap().0;
    // The file system in memory does not support trim, so a permitted caller gets EOPNOTSUPP.
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(asked_by(uid, 0), -libc::EPERM, "a uid alone gives no right");
    assert_eq!(asked_by(uid, own), -libc::EOPNOTSUPP);
    assert_eq!(asked_by(65533, own), -libc::EPERM, "it acts with another's credentials");
    assert_eq!(asked_by(abi::NO_ID, own), -libc::EOPNOTSUPP);
    assert_eq!(asked_by(abi::NO_ID, 0), -libc::EPERM, "a thread that this process cannot see");
    if uid != 0 {
        return kedge_base::skip::note("only root can take its own rights away");
    }
    let mut program = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    assert_eq!(asked_by(abi::NO_ID, program.id()), -libc::EOPNOTSUPP, "root's other programs");
    program.kill().unwrap();
    program.wait().unwrap();
    for less in [
        "setpriv --reuid 65534 --regid 65534 --clear-groups",
        "setpriv --bounding-set -all",
        "setpriv --bounding-set -sys_admin",
        // These have all capabilities, but in another user namespace.
        "unshare --user --map-root-user",
        "unshare --user --keep-caps",
    ] {
        let mut words = less.split(' ').chain(["sleep", "1000"]);
        let mut program = std::process::Command::new(words.next().unwrap()).args(words).spawn().unwrap();
        // Waits for the exec: before it, the process still has root's rights.
        let name = format!("/proc/{}/comm", program.id());
        while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
            assert!(program.try_wait().unwrap().is_none(), "{less}: ended");
            kedge_base::pause(std::time::Duration::from_millis(5));
        }
        let answers = [abi::NO_ID, 0, 65534].map(|uid| asked_by(uid, program.id()));
        assert_eq!(answers, [-libc::EPERM; 3], "{less}");
        program.kill().unwrap();
        program.wait().unwrap();
    }
    // Kernel threads have all capabilities, but act for other processes.
    match std::fs::read_to_string("/proc/2/comm") {
        Ok(name) if name == "kthreadd\n" => assert_eq!(asked_by(abi::NO_ID, 2), -libc::EPERM),
        _ => kedge_base::skip::note("no thread of the kernel is seen here"),
    }
}

/// A change of size that fails, or a crash in the middle, leaves no changed content with the old
/// privilege.
#[test]
fn set_id_bits_are_cleared_before_a_size_is_set() {
    use abi::fattr;
    let mut fs = MemFs::new();
    fs.sizes_fail = true;
    let ino = fs.create(Ino::ROOT, b"f", 0o106_777, Owner::default()).unwrap().ino;
    let mut bench = Bench::of(fs, FuseOptions::default());
    let valid = fattr::SIZE | fattr::KILL_SUIDGID;
    let cut = abi::SetattrIn { valid, size: 10, ..abi::SetattrIn::new_zeroed() };
    let reply = bench.send(op::SETATTR, ino.0, cut.as_bytes()).unwrap();
    assert_eq!(reply.0, -libc::ENOSPC);
    assert_eq!(bench.fs.getattr(ino).unwrap().mode & 0o7777, 0o777);
}

/// The kernel keeps size and pages of the target after an error, so they are invalidated first.
#[test]
fn a_copy_that_cannot_be_made_durable_has_its_pages_dropped() {
    let fails = |done: kedge_fuse::Done| done(Err(kedgefs::Error::OverLimit));
    let mut fs = MemFs::new();
    fs.on_fsync = Some(Arc::new(fails));
    let [source, target] =
        [b"source", b"target"].map(|name| fs.create(Ino::ROOT, name, 0o644, Owner::default()).unwrap().ino);
    fs.setattr(source, &SetAttr { size: Some(1 << 20), ..SetAttr::default() }).unwrap();
    for opcode in [op::COPY_FILE_RANGE, op::COPY_FILE_RANGE_64] {
        let mut bench = Bench::of(fs.clone(), FuseOptions::default());
        let asked = abi::CopyFileRangeIn {
            nodeid_out: target.0,
            off_out: 8192,
            len: 1 << 20,
            ..abi::CopyFileRangeIn::new_zeroed()
        };
        assert_eq!(bench.send(opcode, source.0, asked.as_bytes()), None, "the reply waits");
        let Bench { wire, server, jobs, fs, .. } = bench;
        drop(server);
        settle::serve(Arc::new(fs), wire.clone(), jobs);
        let body = abi::InvalInodeOut { ino: target.0, off: 8192, len: 0 };
        assert_eq!(*wire.notified.lock(), [(abi::NOTIFY_INVAL_INODE, body.as_bytes().to_vec())]);
        assert_eq!(*wire.replies.lock(), [(1, -libc::EDQUOT, Vec::new())]);
    }
}

#[test]
fn a_dropped_reply_is_an_error() {
    let wire = Arc::new(Wire::default());
    let header = InHeader { unique: 7, ..InHeader::new_zeroed() };
    let request = Request { header, body: &[], token: 0 };
    let failures = Arc::new(Failures::default());
    drop(Reply::new(wire.clone(), failures.clone(), &request));
    Reply::new(wire.clone(), failures.clone(), &request).none();
    Reply::new(wire.clone(), failures.clone(), &request).err(libc::EPERM);
    let replies: Vec<_> = wire.replies.lock().iter().map(|r| (r.0, r.1)).collect();
    assert_eq!(replies, [(7, -libc::EIO), (7, -libc::EPERM)]);
}

#[test]
fn messages_that_are_no_requests() {
    let header = InHeader { len: 40, ..InHeader::new_zeroed() };
    assert!(Request::parse(header.as_bytes(), 0).is_some());
    assert!(Request::parse(&header.as_bytes()[..39], 0).is_none());
    assert!(Request::parse(&[header.as_bytes(), &[0]].concat(), 0).is_none());
    assert!(Request::parse(OutHeader::default().as_bytes(), 0).is_none());
    // The data of a WRITE begins at a page boundary.
    let mut buf = RequestBuf::new();
    let start = buf.as_mut_bytes().as_ptr() as usize;
    assert_eq!((start + size_of::<InHeader>() + size_of::<abi::WriteIn>()) % 4096, 0);
    assert_eq!(buf.as_mut_bytes().len(), 80 + abi::MAX_IO);
}
