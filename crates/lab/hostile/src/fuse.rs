//! FUSE requests that no kernel would send, handled by the server for a file system in memory.
//!
//! An input is a list of requests: two bytes of length, then the opcode, the node and the body. If
//! the first byte is odd, requests are whole messages including the header.

use crate::drive::{Target, outcome};
use kedge_base::{IoBuf, ManualClock};
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, check};
use kedge_fuse::abi::{InHeader, op};
use kedge_fuse::transport::{Received, Request, RequestBuf, Transport};
use kedge_fuse::{FuseOptions, Server};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, XattrMode};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub const TARGET: Target = Target {
    name: "fuse",
    run,
    words: &[
        b"file\0",
        b"dir\0",
        b"new\0",
        b"..\0",
        b".\0",
        b"a/b\0",
        b"user.a\0",
        b"system.posix_acl_access\0",
        b"system.posix_acl_default\0",
        b"system.kedgefs.options\0",
        b"security.capability\0",
        b"trusted.a\0",
        b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff",
    ],
    len_max: 8000,
};

const IMAGE: u64 = 16 << 20;
const LOG: u64 = 1 << 20;
const REQUESTS_MAX: usize = 64;
const OWNER: Owner = Owner { uid: 1000, gid: 1000 };
const HEAD: usize = size_of::<InHeader>();

/// Records the replies: number of the request, and error.
#[derive(Default)]
struct Wire {
    answers: Mutex<Vec<(u64, i32)>>,
}

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "fuzz"
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
        assert!(error <= 0 && error > -4096, "an errno: {error}");
        assert!(error == 0 || parts.iter().all(|part| part.is_empty()), "an error with bytes");
        self.answers.lock().push((unique, error));
        Ok(())
    }

    fn notify(&self, _code: i32, _body: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

fn options() -> MountOptions {
    MountOptions { commit: Duration::from_secs(3600), cache_size: 4 << 20, ..MountOptions::default() }
}

/// An image with a file of each kind, in nodes 2 to 6.
fn base() -> &'static MemDevice {
    static BASE: OnceLock<MemDevice> = OnceLock::new();
    BASE.get_or_init(|| {
        let device = Arc::new(MemDevice::new(IMAGE));
        let format = FormatOptions { log_size: Some(LOG), seed: Some(1), ..FormatOptions::default() };
        FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &format)
            .expect("an image is made");
        let fs = open(device.clone()).expect("a fresh image opens");
        let file = fs.create(Ino::ROOT, b"file", 0o644, OWNER).expect("there is room").ino;
        fs.write(file, 3000, &[7; 20_000]).expect("there is room");
        fs.setxattr(file, b"user.a", &[1; 900], XattrMode::Any).expect("there is room");
        let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).expect("there is room").ino;
        fs.create(dir, b"inner", 0o600, OWNER).expect("there is room");
        fs.symlink(Ino::ROOT, b"link", b"dir/inner", OWNER).expect("there is room");
        fs.mknod(Ino::ROOT, b"pipe", 0o010_644, 0, OWNER).expect("there is room");
        fs.close().expect("it closes");
        device.fork()
    })
}

fn open(device: Arc<MemDevice>) -> kedgefs::Result<FileSystem> {
    FileSystem::open(device, Arc::new(ManualClock::default()), options())
}

fn messages(input: &[u8]) -> Vec<Vec<u8>> {
    let Some((&how, mut rest)) = input.split_first() else { return Vec::new() };
    let mut messages = Vec::new();
    while let Some((len, behind)) = rest.split_first_chunk::<2>()
        && messages.len() < REQUESTS_MAX
    {
        let len = u16::from_le_bytes(*len) as usize % 4096;
        let (bytes, behind) = behind.split_at(len.min(behind.len()));
        rest = behind;
        messages.push(if how & 1 == 1 { bytes.to_vec() } else { message(bytes) });
    }
    messages
}

/// Builds a request from an opcode, a node and a body.
fn message(bytes: &[u8]) -> Vec<u8> {
    let (opcode, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (node, body) = rest.split_first().unwrap_or((&1, &[]));
    let header = InHeader {
        len: (HEAD + body.len()) as u32,
        opcode: (*opcode).into(),
        nodeid: (*node).into(),
        uid: 1000,
        gid: 1000,
        ..InHeader::new_zeroed()
    };
    [header.as_bytes(), body].concat()
}

/// Sets the request's unique number and a process number that belongs to no process, since the
/// server reads the memory of the calling process.
fn headed(mut message: Vec<u8>, unique: u64) -> Vec<u8> {
    if let Ok((mut header, _)) = InHeader::read_from_prefix(&message) {
        header.unique = unique;
        header.pid = 0;
        message[..HEAD].copy_from_slice(header.as_bytes());
    }
    message
}

fn run(input: &[u8]) -> u64 {
    let device = Arc::new(base().fork());
    let fs = open(device.clone()).expect("a good image opens");
    let wire = Arc::new(Wire::default());
    let how = input.first().copied().unwrap_or(0);
    let options = FuseOptions {
        writeback_cache: how & 2 != 0,
        no_open: how & 4 == 0,
        handle_killpriv: how & 8 == 0,
        ..FuseOptions::default()
    };
    // The server hands jobs that wait for the kernel to a receiver. There is no kernel here.
    // Without a receiver each job replies when it is dropped.
    let (server, jobs) =
        Server::new(Arc::new(fs.clone()), wire.clone(), options, Default::default(), Box::new(|| {}));
    drop(jobs);
    let mut out = IoBuf::zeroed(kedge_fuse::abi::MAX_IO / kedge_base::BLOCK_SIZE);
    let (mut expected, mut seen) = (0, Vec::new());
    for (n, message) in messages(input).into_iter().enumerate() {
        let message = headed(message, n as u64 + 1);
        let Some(request) = Request::parse(&message, 0) else { continue };
        let opcode = request.header.opcode;
        expected += usize::from(!matches!(opcode, op::FORGET | op::BATCH_FORGET));
        server.handle(&request, &mut out);
        if seen.len() < 16 {
            seen.push((opcode, wire.answers.lock().last().map(|answer| answer.1)));
        }
    }
    drop(server);
    // The sync also completes requests whose replies are asynchronous.
    let synced = fs.sync().is_ok();
    let closed = fs.close().is_ok();
    let answers = std::mem::take(&mut *wire.answers.lock());
    let numbers: BTreeSet<u64> = answers.iter().map(|answer| answer.0).collect();
    assert_eq!((answers.len(), numbers.len()), (expected, expected), "one reply each: {answers:?}");
    if closed && synced {
        let report = check(device, &CheckOptions::default());
        assert!(report.is_clean(), "{report}");
    }
    outcome((seen, closed))
}
