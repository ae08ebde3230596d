use super::*;
use crate::sim::{Manners, NbdServer, VolatileDevice};
use crate::testing::SIZE;
use crate::{Io, Location, MemDevice, conformance, run_batch};
use kedge_base::{Clock, SystemClock};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub const B: u64 = BLOCK_SIZE as u64;

pub fn open(uri: &str, options: OpenOptions) -> Result<Arc<dyn Device>> {
    crate::open(&Location::parse(Path::new(uri)).unwrap(), options)
}

/// Servers that run as long as this value lives.
pub struct Servers {
    pub made: Mutex<Vec<NbdServer>>,
    dir: TempDir,
}

impl Servers {
    pub fn new() -> Servers {
        Servers { dir: tempfile::tempdir().unwrap(), made: Mutex::default() }
    }

    /// Serves a device. Returns its URI.
    pub fn serve(&self, device: Arc<dyn Device>, manners: Manners) -> String {
        let mut made = self.made.lock();
        let socket = self.dir.path().join(made.len().to_string());
        made.push(NbdServer::serve(&socket, device, manners).unwrap());
        made.last().unwrap().uri()
    }

    fn device(&self, device: Arc<dyn Device>, manners: Manners) -> Arc<dyn Device> {
        open(&self.serve(device, manners), OpenOptions::default()).unwrap()
    }
}

#[test]
fn the_contract_is_kept() {
    let honest = Manners::default();
    // The export's flags: has flags, flush, FUA, trim, write zeroes, several connections.
    for manners in [
        honest,
        Manners { structured: false, ..honest },
        Manners { pieces: true, payload_max: 16 << 10, ..honest },
        Manners { flags: 1 | 1 << 2, payload_max: 8192, ..honest },
        Manners { flags: 1 | 1 << 2 | 1 << 6, ..honest },
    ] {
        println!("{manners:?}");
        let servers = Servers::new();
        conformance::conform(&|size| servers.device(Arc::new(MemDevice::new(size)), manners));
    }
}

/// The same tests against other projects' servers, which were not written for this client.
#[test]
fn other_peoples_servers_keep_it() {
    for server in [&NBDKIT, &NBDKIT_OLD, &QEMU] {
        let Some(foreign) = Foreign::probe(server) else { continue };
        let made = Mutex::new(Vec::new());
        conformance::conform(&|size| {
            let (dir, process, uri) = foreign.serve(size);
            made.lock().push((dir, process));
            open(&uri, OpenOptions::default()).unwrap()
        });
    }
}

pub struct Server {
    program: &'static str,
    package: &'static str,
    /// The arguments of the command; SOCKET and IMAGE are replaced by paths.
    words: &'static str,
}

pub const NBDKIT: Server = Server {
    program: "nbdkit",
    package: "nbdkit",
    words: "--foreground --exit-with-parent --unix SOCKET file IMAGE",
};
/// A server without structured replies, FUA, trimming and zeroing, with a single connection.
const NBDKIT_OLD: Server = Server {
    program: "nbdkit",
    package: "nbdkit",
    words: "--foreground --exit-with-parent --no-sr --unix SOCKET --filter=fua --filter=nozero --filter=noextents \
            --filter=multi-conn file IMAGE multi-conn-mode=disable",
};
const QEMU: Server = Server {
    program: "qemu-nbd",
    package: "qemu-utils",
    words: "--persistent --format=raw --export-name= --shared=8 --discard=unmap --socket=SOCKET IMAGE",
};

pub struct Foreign(&'static Server);

pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself, so an error is ignored.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Foreign {
    /// Returns `None` if the server is not installed; the skip is then reported.
    #[track_caller]
    pub fn probe(server: &'static Server) -> Option<Foreign> {
        let found = Command::new(server.program).arg("--version").stdout(Stdio::null()).status().is_ok();
        if !found {
            let Server { program, package, .. } = server;
            kedge_base::skip::note(&format!("{program} is not installed (apt-get install {package})"));
        }
        found.then_some(Foreign(server))
    }

    /// Serves a new image of zeros.
    pub fn serve(&self, size: u64) -> (TempDir, Process, String) {
        let dir = tempfile::tempdir().unwrap();
        let (image, socket) = (dir.path().join("image"), dir.path().join("socket"));
        std::fs::File::create(&image).unwrap().set_len(size).unwrap();
        let words = self.0.words.split_whitespace().map(|word| {
            word.replace("SOCKET", socket.to_str().unwrap()).replace("IMAGE", image.to_str().unwrap())
        });
        let child = Command::new(self.0.program).args(words).stdin(Stdio::null()).spawn().unwrap();
        let process = Process(child);
        let there = (0..3000).any(|_| {
            kedge_base::pause(Duration::from_millis(10));
            UnixStream::connect(&socket).is_ok()
        });
        assert!(there, "{} listens", self.0.program);
        (dir, process, format!("nbd+unix:///?socket={}", socket.display()))
    }
}

#[test]
fn what_a_server_has_flushed_outlives_it() {
    durable(Manners::default());
    durable(Manners { flags: 1 | 1 << 2, ..Manners::default() });
}

/// The conformance tests detect a server that reports success for data that it has not made
/// durable.
#[test]
#[should_panic(expected = "blocks")]
fn a_server_that_lies_about_flushes_is_caught() {
    durable(Manners { ignores_flush: true, ..Manners::default() });
}

#[test]
#[should_panic(expected = "blocks")]
fn a_server_that_lies_about_fua_is_caught() {
    durable(Manners { ignores_fua: true, ..Manners::default() });
}

fn durable(manners: Manners) {
    let servers = Servers::new();
    let medium = Arc::new(MemDevice::new(SIZE));
    let volatile = || Arc::new(VolatileDevice::new(medium.clone()));
    let cut = |device: Arc<dyn Device>| {
        drop(device);
        servers.device(volatile(), Manners::default())
    };
    conformance::durable(&|_| servers.device(volatile(), manners), &cut);
}

#[test]
fn the_lock_keeps_others_out() {
    let servers = Servers::new();
    let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), Manners::default());
    conformance::one_writer(&|options| open(&uri, options));
    let location = Location::parse(Path::new(&format!("{uri}&timeout=7"))).unwrap();
    // A process that another test forks also holds the lock until it calls exec.
    let patient = OpenOptions { lock_wait: Duration::from_secs(60), ..OpenOptions::default() };
    let until_unlocked = std::iter::repeat_with(|| kedge_base::pause(Duration::from_millis(20)));
    assert!(until_unlocked.take(3000).any(|()| crate::is_unlocked(&location).unwrap()));
    let writer = open(&uri, patient).unwrap();
    assert!(!crate::is_unlocked(&location).unwrap(), "another way to write the same export");
    drop(writer);
}

#[test]
fn as_many_connections_as_both_want() {
    let servers = Servers::new();
    let connections = |flags, words: &str| {
        let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), Manners { flags, ..Manners::default() });
        let location = Location::parse(Path::new(&format!("{uri}{words}"))).unwrap();
        let Location::Nbd(uri) = location else { panic!("an NBD URI") };
        NbdDevice::open(&uri, OpenOptions::default()).unwrap().connections()
    };
    assert_eq!(connections(1 | 1 << 2 | 1 << 8, ""), 2);
    assert_eq!(connections(1 | 1 << 2 | 1 << 8, "&connections=5"), 5);
    assert_eq!(connections(1 | 1 << 2, "&connections=5"), 1);
}

#[test]
fn a_server_without_flush_or_write_access_is_for_reading() {
    let servers = Servers::new();
    for (flags, word) in [(1, "no flush"), (1 | 1 << 1 | 1 << 2, "exports this read-only")] {
        let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), Manners { flags, ..Manners::default() });
        let e = open(&uri, OpenOptions::default()).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains(word) && e.contains(&uri), "{e}");
        let device = open(&uri, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        device.read(0, &mut IoBuf::zeroed(1)).unwrap();
        device.flush().unwrap();
    }
}

/// One failed request gives one error; all other requests succeed.
#[test]
fn errors_of_the_server_reach_those_whom_they_concern() {
    use crate::sim::{FaultPlan, OpKind, SimDevice};
    for structured in [true, false] {
        let servers = Servers::new();
        let sim = Arc::new(SimDevice::new(MemDevice::new(SIZE)));
        let device = servers.device(sim.clone(), Manners { structured, ..Manners::default() });
        sim.set_plan(FaultPlan::new(1).fail(OpKind::Write, 1, libc::ENOSPC).fail(OpKind::Read, 1, libc::EIO));
        let buf = IoBuf::from_bytes(&[7; BLOCK_SIZE]);
        device.write(0, &buf, false).unwrap();
        let e = device.write(B, &buf, false).unwrap_err();
        assert!(matches!(e, Error::Io { op: "write", offset: B, len: B, errno: libc::ENOSPC }), "{e}");
        let ios = (0..3).map(|i| Io { offset: i * B, op: Op::Read(IoBuf::zeroed(1)) }).collect();
        let done = run_batch(&*device, ios);
        assert_eq!(done.iter().filter(|one| one.result.is_err()).count(), 1);
        assert!(done.iter().all(|one| matches!(&one.op, Op::Read(buf) if buf.blocks() == 1)));
        device.write(B, &buf, true).unwrap();
        device.flush().unwrap();
    }
}

/// After a cut connection, or with a server that stops replying, no thread waits forever, each
/// buffer is returned, and every later request fails.
#[test]
fn a_lost_server_ends_the_device() {
    let honest = Manners::default();
    for manners in [Manners { cut_after: 40, ..honest }, Manners { mute_after: 40, ..honest }] {
        for several in [true, false] {
            let servers = Servers::new();
            let flags = if several { honest.flags } else { 1 | 1 << 2 };
            let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), Manners { flags, ..manners });
            let device = open(&format!("{uri}&timeout=1"), OpenOptions::default()).unwrap();
            let ios = (0..90).map(|i| match i % 3 {
                0 => Io { offset: i * B, op: Op::Read(IoBuf::zeroed(1)) },
                1 => Io { offset: i * B, op: Op::Write { buf: IoBuf::zeroed(1), fua: true } },
                _ => Io { offset: 0, op: Op::Flush },
            });
            let done = run_batch(&*device, ios.collect());
            let lost = done.iter().filter(|one| matches!(one.result, Err(Error::OutcomeUnknown))).count();
            let well = done.iter().filter(|one| one.result.is_ok()).count();
            assert_eq!(lost + well, 90);
            assert!(lost >= 1 && well <= 40, "{lost} lost, {well} well");
            let back = |one: &Completion| match &one.op {
                Op::Read(buf) | Op::Write { buf, .. } => buf.blocks() == 1,
                _ => true,
            };
            assert!(done.iter().all(back));
            let mut buf = IoBuf::zeroed(3);
            assert!(matches!(device.read(0, &mut buf), Err(Error::OutcomeUnknown)));
            assert_eq!(buf.blocks(), 3, "the buffer comes back with the error");
            assert!(matches!(device.write(0, &buf, false), Err(Error::OutcomeUnknown)));
            assert!(matches!(device.flush(), Err(Error::OutcomeUnknown)));
            assert!(matches!(device.write_zeroes(0, B), Err(Error::OutcomeUnknown)));
        }
    }
}

/// The server keeps replying to other requests, and forgets one.
#[test]
fn a_request_that_is_forgotten_ends_the_device() {
    let servers = Servers::new();
    // The server allows a single connection.
    let manners = Manners { forgets: 1, flags: 1 | 1 << 2, ..Manners::default() };
    let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), manners);
    let device = open(&format!("{uri}&timeout=1"), OpenOptions::default()).unwrap();
    let other = device.clone();
    let flush = spawn_named("flush", move || other.flush()).unwrap();
    while servers.made.lock()[0].requests() == 0 {
        kedge_base::pause(Duration::from_millis(2));
    }
    let until = SystemClock::default();
    let mut buf = IoBuf::zeroed(1);
    while until.monotonic() < Duration::from_secs(60) && device.read(0, &mut buf).is_ok() {}
    assert!(matches!(device.read(0, &mut buf), Err(Error::OutcomeUnknown)));
    assert!(matches!(flush.join().unwrap(), Err(Error::OutcomeUnknown)));
}

/// A server that runs `act` for each client.
struct Rogue {
    _dir: TempDir,
    uri: String,
}

fn rogue(act: impl Fn(&mut UnixStream) -> std::io::Result<()> + Send + 'static) -> Rogue {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let serve = move || {
        // The thread is detached; it ends with the process.
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = act(&mut stream);
            // The server sends nothing more and keeps the connection open.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    };
    spawn_named("rogue", serve).unwrap();
    Rogue { uri: format!("nbd+unix:///?socket={}&timeout=1", socket.display()), _dir: dir }
}

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn export_info(size: u64, flags: u16) -> Vec<u8> {
    let mut info = vec![0, 0];
    info.extend(size.to_be_bytes());
    info.extend(flags.to_be_bytes());
    option_reply(OPT_GO, REP_INFO, &info)
}

fn size_info(min: u32, max: u32) -> Vec<u8> {
    let mut info = vec![0, 3];
    [min, 4096, max].iter().for_each(|size| info.extend(size.to_be_bytes()));
    option_reply(OPT_GO, REP_INFO, &info)
}

const HELLO: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// The client refuses any nonsense that a server sends in the negotiation, with a message and
/// within the time limit.
#[test]
fn a_server_that_negotiates_nonsense_is_refused() {
    let structured = option_reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]);
    let go = |infos: &[Vec<u8>]| [HELLO, &structured, &infos.concat()].concat();
    let ack = option_reply(OPT_GO, REP_ACK, &[]);
    let good = export_info(1 << 20, 1 | 1 << 2);
    let error = |number: u32, text: &[u8]| go(&[option_reply(OPT_GO, REP_ERROR | number, text)]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("time", Vec::new()),
        ("no NBD server", b"SSH-2.0-OpenSSH_9.2 and so".to_vec()),
        ("old style", b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0".to_vec()),
        ("fixed new style", b"NBDMAGICIHAVEOPT\0\x02".to_vec()),
        ("time", HELLO.to_vec()),
        ("that was not sent", [HELLO, &[0; 20]].concat()),
        ("that was not sent", [HELLO, &option_reply(77, REP_ACK, &[])].concat()),
        ("replies to an option with", [HELLO, &option_reply(8, REP_ACK, &vec![0; 5000])].concat()),
        ("unknown kind 9", [HELLO, &option_reply(8, 9, &[])].concat()),
        ("does not state the size", go(std::slice::from_ref(&ack))),
        ("does not stop describing", go(&vec![good.clone(); 100])),
        ("malformed", go(&[option_reply(OPT_GO, REP_INFO, &[0, 0, 1])])),
        ("malformed", go(&[option_reply(OPT_GO, REP_INFO, &[0, 3, 1])])),
        ("unknown kind 3", go(&[option_reply(OPT_GO, REP_INFO, &[0])])),
        ("no size of an image", go(&[export_info(4095, 5), ack.clone()])),
        ("no size of an image", go(&[export_info(u64::MAX, 5), ack.clone()])),
        ("multiples of 8192", go(&[good.clone(), size_info(8192, 1 << 20), ack.clone()])),
        ("multiples of 0", go(&[good.clone(), size_info(0, 1 << 20), ack.clone()])),
        ("at most 512", go(&[good.clone(), size_info(1, 512), ack.clone()])),
        ("demands TLS", error(5, b"")),
        ("there is no export \"\" (gone fishing)", error(6, b"gone\nfishing")),
        ("shutting down", error(7, b"")),
        ("too old", error(1, b"")),
        ("with error 99", error(99, b"")),
        ("no flush", go(&[export_info(1 << 20, 1), ack])),
    ];
    for (word, bytes) in cases {
        let rogue = rogue(move |stream| stream.write_all(&bytes));
        let e = open(&rogue.uri, OpenOptions::default()).map(|_| ()).expect_err(word).to_string();
        assert!(e.contains(word) && e.contains(&rogue.uri), "{word}: {e}");
        assert_eq!(e.lines().count(), 1);
    }
}

#[test]
fn a_server_that_trickles_is_given_up() {
    let slow = rogue(|stream| {
        for byte in HELLO.iter().cycle() {
            stream.write_all(&[*byte])?;
            kedge_base::pause(Duration::from_millis(120));
        }
        Ok(())
    });
    let e = open(&slow.uri, OpenOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(e.contains("in time"), "{e}");
}

#[test]
fn an_export_that_nobody_serves_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let uri = format!("nbd+unix:///?socket={}", dir.path().join("none").display());
    let e = open(&uri, OpenOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(e.contains(&uri) && e.contains("No such file"), "{e}");
}

/// Makes a server that negotiates correctly, reads one request of a device, and replies with these
/// bytes.
fn answers(structured: bool, bytes: Vec<u8>) -> Rogue {
    rogue(move |stream| {
        let first = match structured {
            true => option_reply(OPT_STRUCTURED_REPLY, REP_ACK, &[]),
            false => option_reply(OPT_STRUCTURED_REPLY, REP_ERR_UNSUP, &[]),
        };
        let ack = option_reply(OPT_GO, REP_ACK, &[]);
        stream.write_all(&[HELLO, &first, &export_info(1 << 20, 1 | 1 << 2), &ack].concat())?;
        // Reads the client's flags, two options with their data, and the header of the request.
        stream.read_exact(&mut [0; 4 + 16 + 16 + 8 + 28])?;
        stream.write_all(&bytes)
    })
}

fn simple(error: u32, cookie: u64, data: usize) -> Vec<u8> {
    let mut bytes = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(vec![9; data]);
    bytes
}

fn chunk(flags: u16, kind: u16, len: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(0u64.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(content);
    bytes
}

fn data(offset: u64, len: usize) -> Vec<u8> {
    [offset.to_be_bytes().as_slice(), &vec![9; len]].concat()
}

fn hole(offset: u64, len: u32) -> Vec<u8> {
    [offset.to_be_bytes().as_slice(), &len.to_be_bytes()].concat()
}

/// Each reply that violates the protocol ends the device, without a panic, without a hang, and
/// without writing bytes of the reply outside of the read's range. The request is a read of two
/// blocks at block 1.
#[test]
fn a_server_that_answers_nonsense_is_given_up() {
    let done = chunk(1, 0, 0, &[]);
    let whole = |bytes: &[Vec<u8>]| (true, bytes.concat());
    let cases: Vec<(bool, Vec<u8>)> = vec![
        (true, vec![0xff; 64]),
        (false, simple(0, 1, 8192)),
        (true, simple(0, 0, 8192)),
        (false, chunk(1, 1, 8200, &data(4096, 8192))),
        (false, simple(0, 0, 100)),
        whole(&[chunk(1, 1, 8200, &data(0, 8192))]),
        whole(&[chunk(1, 1, 8200, &data(8192, 8192))]),
        whole(&[chunk(1, 1, 8200, &data(u64::MAX, 8192))]),
        whole(&[chunk(1, 1, u32::MAX, &data(4096, 8192))]),
        whole(&[chunk(1, 1, 8, &data(4096, 0))]),
        whole(&[chunk(1, 1, 4, &[0; 4])]),
        whole(&[chunk(0, 1, 4104, &data(4096, 4096)), chunk(0, 1, 4104, &data(4096, 4096))]),
        whole(&[chunk(0, 2, 12, &hole(4096, 4096)), chunk(1, 1, 8200, &data(4096, 8192))]),
        whole(&[chunk(0, 2, 12, &hole(4096, 4096)), done.clone()]),
        whole(&[chunk(1, 2, 12, &hole(4096, u32::MAX))]),
        whole(&[chunk(1, 2, 12, &hole(4096, 0))]),
        whole(&[chunk(1, 2, 11, &hole(4096, 4096))]),
        whole(std::slice::from_ref(&done)),
        whole(&[chunk(0, 0, 0, &[])]),
        whole(&[chunk(1, 0, 4, &[0; 4])]),
        whole(&[chunk(1, 5, 12, &[0; 12])]),
        whole(&[chunk(1, 77, 0, &[])]),
        whole(&[chunk(1, CHUNK_ERROR | 1, 5, &[0; 5])]),
        whole(&[chunk(1, CHUNK_ERROR | 1, 1 << 20, &[0; 64])]),
        whole(&vec![chunk(0, CHUNK_ERROR | 1, 6, &[0, 0, 0, 5, 0, 0]); 1000]),
    ];
    for (i, (structured, bytes)) in cases.into_iter().enumerate() {
        let rogue = answers(structured, bytes);
        let device = open(&rogue.uri, OpenOptions::default()).unwrap();
        let mut buf = IoBuf::zeroed(2);
        let outcome = device.read(B, &mut buf);
        assert!(matches!(outcome, Err(Error::OutcomeUnknown)), "case {i}: {outcome:?}");
        assert_eq!(buf.blocks(), 2, "case {i}");
        assert!(matches!(device.flush(), Err(Error::OutcomeUnknown)), "case {i}");
    }
}

/// Replies that the protocol allows, though they are unusual.
#[test]
fn odd_answers_are_understood() {
    let text = [0u8, 0, 0, 28, 0xff, 0xff].iter().copied().chain(*b"no \x1b room").collect::<Vec<_>>();
    let parts = [chunk(0, 1, 4104, &data(8192, 4096)), chunk(1, 2, 12, &hole(4096, 4096))];
    let cases = [
        (true, parts.concat(), Ok(())),
        (true, chunk(1, CHUNK_ERROR | 1, text.len() as u32, &text), Err(libc::ENOSPC)),
        (true, chunk(1, CHUNK_ERROR | 99, 6, &[0, 0, 9, 9, 0, 0]), Err(libc::EIO)),
        (true, simple(5, 0, 0), Err(libc::EIO)),
        (false, simple(22, 0, 0), Err(libc::EINVAL)),
        (false, simple(0, 0, 8192), Ok(())),
    ];
    for (i, (structured, bytes, want)) in cases.into_iter().enumerate() {
        let rogue = answers(structured, bytes);
        let device = open(&rogue.uri, OpenOptions::default()).unwrap();
        let mut buf = IoBuf::from_bytes(&[0xee; 8192]);
        match (device.read(B, &mut buf), want) {
            (Ok(()), Ok(())) => {
                let hole = if structured { 0 } else { 9 };
                assert!(buf.as_bytes()[..4096].iter().all(|byte| *byte == hole), "case {i}");
                assert!(buf.as_bytes()[4096..].iter().all(|byte| *byte == 9), "case {i}");
            }
            (Err(Error::Io { op: "read", offset: B, errno, .. }), Err(want)) => assert_eq!(errno, want),
            (outcome, _) => panic!("case {i}: {outcome:?}"),
        }
    }
}

/// A device whose first flush fails.
struct FailsOnce(MemDevice, std::sync::atomic::AtomicBool);

impl FailsOnce {
    fn new() -> Arc<FailsOnce> {
        Arc::new(FailsOnce(MemDevice::new(SIZE), true.into()))
    }
}

impl Device for FailsOnce {
    crate::delegate!(0: geometry, submit, read, write, discard, write_zeroes, stats, name);

    fn flush(&self) -> Result<()> {
        match self.1.swap(false, Relaxed) {
            true => Err(Error::Io { op: "flush", offset: 0, len: 0, errno: libc::EIO }),
            false => self.0.flush(),
        }
    }
}

/// The server's kernel may have dropped bytes, and report that to one flush only.
#[test]
fn a_failed_flush_of_the_server_is_final() {
    let is_lost = |result: Result<()>| matches!(result, Err(Error::Io { op: "flush", errno: libc::EIO, .. }));
    let block = || IoBuf::zeroed(1);
    let batch = |device: &Arc<dyn Device>, op| -> Vec<Result<()>> {
        // A batch of one request would use the synchronous interface.
        let read = Io { offset: 0, op: Op::Read(block()) };
        run_batch(&**device, vec![Io { offset: 0, op }, read]).into_iter().map(|done| done.result).collect()
    };
    // With FUA, and without it: then a FUA write is followed by a flush.
    for flags in [1 | 1 << 2 | 1 << 3, 1 | 1 << 2] {
        let manners = Manners { flags, ..Manners::default() };
        let has_fua = flags & 1 << 3 != 0;
        for first in 0..4 {
            let servers = Servers::new();
            let device = servers.device(FailsOnce::new(), manners);
            device.write(0, &block(), false).unwrap();
            let failed = match first {
                0 => device.flush(),
                1 => batch(&device, Op::Flush)[0].clone(),
                2 if !has_fua => device.write(0, &block(), true),
                3 if !has_fua => batch(&device, Op::Write { buf: block(), fua: true })[0].clone(),
                _ => continue,
            };
            assert!(is_lost(failed), "{flags} {first}");
            assert!(is_lost(device.flush()), "{flags} {first}");
            assert!(is_lost(device.write(0, &block(), true)), "{flags} {first}");
            let results = batch(&device, Op::Flush);
            assert!(is_lost(results[0].clone()) && results[1].is_ok(), "{flags} {first}: {results:?}");
            let results = batch(&device, Op::Write { buf: block(), fua: true });
            assert!(is_lost(results[0].clone()) && results[1].is_ok(), "{flags} {first}: {results:?}");
            device.write(0, &block(), false).unwrap();
        }
    }
}

/// A server that announces its shutdown does not recover.
#[test]
fn a_server_that_shuts_down_ends_the_device() {
    let rogue = answers(false, simple(108, 0, 0));
    let device = open(&rogue.uri, OpenOptions::default()).unwrap();
    let e = device.read(B, &mut IoBuf::zeroed(2)).unwrap_err();
    assert!(matches!(e, Error::Io { errno: libc::ESHUTDOWN, .. }), "{e}");
    assert!(matches!(device.flush(), Err(Error::OutcomeUnknown)));
}

/// A server may refuse a write before it has read the whole write. The client must not complete the
/// write before all of it is sent. The payload is larger than the socket buffers.
#[test]
fn a_write_that_is_answered_early_is_sent_to_its_end() {
    for (error, want) in [(28, Some(libc::ENOSPC)), (0, None)] {
        let rogue = answers(false, simple(error, 0, 0));
        let device = open(&rogue.uri.replace("timeout=1", "timeout=60"), OpenOptions::default()).unwrap();
        match (device.write(0, &IoBuf::zeroed(256), false), want) {
            (Ok(()), None) => {}
            (Err(Error::Io { op: "write", errno, .. }), Some(want)) => assert_eq!(errno, want),
            (outcome, _) => panic!("error {error}: {outcome:?}"),
        }
    }
}

/// A reply to a write that the server never reads does not count as success.
#[test]
fn a_write_that_is_answered_and_never_read_is_no_success() {
    let rogue = rogue(move |stream| {
        let hello = option_reply(OPT_STRUCTURED_REPLY, REP_ERR_UNSUP, &[]);
        let ack = option_reply(OPT_GO, REP_ACK, &[]);
        stream.write_all(&[HELLO, &hello, &export_info(1 << 20, 1 | 1 << 2), &ack].concat())?;
        stream.read_exact(&mut [0; 4 + 16 + 16 + 8 + 28])?;
        stream.write_all(&simple(0, 0, 0))?;
        // Sleeps longer than the client's time limit.
        kedge_base::pause(Duration::from_secs(20));
        Ok(())
    });
    let device = open(&rogue.uri, OpenOptions::default()).unwrap();
    let outcome = device.write(0, &IoBuf::zeroed(256), true);
    assert!(matches!(outcome, Err(Error::OutcomeUnknown)), "{outcome:?}");
}

/// A reader holds a lock while it reads, because a writer would change the image during the reads.
#[test]
fn readers_keep_writers_out_while_they_read() {
    let servers = Servers::new();
    let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), Manners::default());
    // A process that another test forks also holds the locks until it calls exec.
    let patient = OpenOptions { lock_wait: Duration::from_secs(60), ..OpenOptions::default() };
    let read_only = OpenOptions { read_only: true, ..patient };
    let (first, second) = (open(&uri, read_only).unwrap(), open(&uri, read_only).unwrap());
    let writer = |options| open(&uri, options).map(|device| device.name().to_owned());
    assert!(matches!(writer(OpenOptions::default()), Err(Error::Busy(_))));
    drop(first);
    assert!(matches!(writer(OpenOptions::default()), Err(Error::Busy(_))), "one still reads");
    second.read(0, &mut IoBuf::zeroed(1)).unwrap();
    drop(second);
    // The refused writer must have released the names that it had taken.
    let device = open(&uri, patient).unwrap();
    assert!(matches!(writer(OpenOptions { read_only: true, ..OpenOptions::default() }), Err(Error::Busy(_))));
    drop(device);
    open(&uri, read_only).unwrap();
}
