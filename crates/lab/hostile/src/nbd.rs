//! A server that sends arbitrary bytes to the real client on a real socket.
//!
//! The first byte of an input selects the server's behaviour: whether it negotiates correctly (bit
//! 0), with structured replies (bit 1), with several connections (bit 2). The messages follow, each
//! after one byte of length. Without correct negotiation the server sends all messages at once.
//! Otherwise it sends one message for each request of the client, so that a reply follows its
//! request. If no request comes, the client waits for the rest of a reply, and the server sends all
//! remaining messages. After the last message the server closes.

use crate::drive::{Target, outcome, words_of};
use kedge_base::{BLOCK_SIZE, IoBuf, spawn_named};
use kedge_device::location::{NbdAddress, NbdUri};
use kedge_device::{Device, Io, NbdDevice, Op, OpenOptions, run_batch};
use parking_lot::Mutex;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub const TARGET: Target = Target {
    name: "nbd",
    run,
    words: &[
        b"NBDMAGICIHAVEOPT\0\x03",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0e\0\x03",
        b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\x80\0\0\x01\0\0\0\0",
        b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\x66\x8e\x33\xef\0\x01\0\x00",
        b"\x66\x8e\x33\xef\0\x00\0\x01",
        b"\x66\x8e\x33\xef\0\x01\0\x02",
        b"\x66\x8e\x33\xef\0\x01\x80\x01",
        b"\0\0\0\0\0\0\x10\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    len_max: 20_000,
};

const B: u64 = BLOCK_SIZE as u64;
const SIZE: u64 = 1 << 20;
/// Limit of messages in an input, and so of requests that get a reply.
const MESSAGES_MAX: usize = 64;
/// If no request comes for this time, the server assumes that the client waits for a reply.
const PATIENCE: Duration = Duration::from_millis(2);
const RULES: u8 = 1;
const STRUCTURED: u8 = 2;
const SEVERAL: u8 = 4;

/// The server of this process; each connection gets the current content of [`Server::say`].
struct Server {
    uri: NbdUri,
    say: Arc<Mutex<Vec<u8>>>,
    _dir: tempfile::TempDir,
}

fn server() -> &'static Server {
    static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
    SERVER.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory for a socket");
        let socket: PathBuf = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let say: Arc<Mutex<Vec<u8>>> = Arc::default();
        let said = say.clone();
        let serve = move || {
            for stream in listener.incoming().flatten() {
                let input = said.lock().clone();
                // Each connection has its own thread, since a client may open several.
                let serve = move || drop(answer(stream, &input));
                spawn_named("hostile-server", serve).expect("a test can start a thread");
            }
        };
        spawn_named("hostile-listener", serve).expect("a test can start a thread");
        let uri = NbdUri {
            address: NbdAddress::Unix { socket },
            export: String::new(),
            connections: 2,
            timeout: Duration::from_secs(20),
        };
        Server { uri, say, _dir: dir }
    })
}

fn messages(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((&len, rest)) = bytes.split_first()
        && messages.len() < MESSAGES_MAX
    {
        // The length 255 stands for that of a simple reply to a read of two blocks.
        let len = if len == 255 { 2 * BLOCK_SIZE + 16 } else { len as usize };
        let (message, rest) = rest.split_at(len.min(rest.len()));
        messages.push(message);
        bytes = rest;
    }
    messages
}

fn answer(mut stream: UnixStream, input: &[u8]) -> io::Result<()> {
    let Some((&how, rest)) = input.split_first() else { return Ok(()) };
    let mut messages = messages(rest).into_iter();
    if how & RULES != 0 {
        stream.write_all(&negotiation(how))?;
        // The client's part of the negotiation: its flags, and two options with their data.
        stream.read_exact(&mut [0; 4 + 16 + 16 + 8])?;
    } else {
        for message in messages.by_ref() {
            stream.write_all(message)?;
        }
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = [0; 28];
    loop {
        match stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                for message in messages.by_ref() {
                    stream.write_all(message)?;
                }
                break;
            }
            Err(_) => break,
        }
        let (is_write, len) =
            (head[6..8] == [0, 1], u32::from_be_bytes([head[24], head[25], head[26], head[27]]));
        if is_write {
            io::copy(&mut (&mut stream).take(len.into()), &mut io::sink())?;
        }
        let Some(message) = messages.next() else { break };
        stream.write_all(message)?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(None)?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

/// Returns the bytes that a correct server sends in the negotiation.
fn negotiation(how: u8) -> Vec<u8> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        bytes.extend([option.to_be_bytes(), kind.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat());
        bytes.extend(data);
        bytes
    };
    let structured = if how & STRUCTURED != 0 { 1 } else { 1 << 31 | 1 };
    // The export's flags: flush, FUA, trim, zeroing.
    let flags = 0x6du16 | if how & SEVERAL != 0 { 1 << 8 } else { 0 };
    let info = [&[0, 0], &SIZE.to_be_bytes()[..], &flags.to_be_bytes()].concat();
    [&b"NBDMAGICIHAVEOPT\0\x03"[..], &reply(8, structured, &[]), &reply(7, 3, &info), &reply(7, 1, &[])]
        .concat()
}

fn run(input: &[u8]) -> u64 {
    let server = server();
    *server.say.lock() = input.to_vec();
    let options = OpenOptions { lock: false, ..OpenOptions::default() };
    let device = match NbdDevice::open(&server.uri, options) {
        Ok(device) => device,
        Err(e) => return outcome(words_of(&e.to_string())),
    };
    outcome(use_device(&*device))
}

/// Makes requests of all kinds. Whatever the server sends, each request completes and returns its
/// buffer.
fn use_device(device: &dyn Device) -> Vec<u8> {
    let mut seen = vec![device.geometry().size.leading_zeros() as u8];
    let end = device.geometry().size.saturating_sub(2 * B) / B * B;
    let mut buf = IoBuf::from_bytes(&[7; 2 * BLOCK_SIZE]);
    for offset in [B, 0, end] {
        seen.push(code(device.read(offset, &mut buf)));
        assert_eq!(buf.blocks(), 2, "the buffer comes back");
    }
    seen.push(code(device.write(B, &buf, true)));
    seen.push(code(device.flush()));
    let ios = vec![
        Io { offset: B, op: Op::Read(IoBuf::zeroed(2)) },
        Io { offset: 0, op: Op::Write { buf: IoBuf::zeroed(1), fua: false } },
        Io { offset: 0, op: Op::Flush },
        Io { offset: end, op: Op::Read(IoBuf::zeroed(1)) },
        Io { offset: 0, op: Op::WriteZeroes { len: B } },
    ];
    for done in run_batch(device, ios) {
        let blocks = match &done.op {
            Op::Read(buf) | Op::Write { buf, .. } => buf.blocks(),
            _ => 1,
        };
        assert!(blocks > 0, "the buffer comes back");
        seen.push(code(done.result));
    }
    seen.push(code(device.discard(0, B)));
    seen
}

fn code(result: kedge_base::Result<()>) -> u8 {
    use kedge_base::Error;
    match result {
        Ok(()) => 0,
        Err(Error::OutcomeUnknown) => 1,
        Err(Error::Io { errno, .. }) => errno as u8,
        Err(_) => 2,
    }
}
