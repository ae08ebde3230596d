//! An NBD server for tests, on a Unix socket. It serves any device, and lies and fails on request.
//!
//! It was written from the protocol, independently of the client, so that an error of the client is
//! not repeated here. Do not use it for other purposes: it trusts its client.

use crate::Device;
use kedge_base::JoinHandle;
use kedge_base::{BLOCK_SIZE, IoBuf, spawn_named};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Transmission flags: has flags, flush, FUA, trim, write zeroes, several connections.
const ALL: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;

/// How a server behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// Transmission flags of the export.
    pub flags: u16,
    /// Whether the server supports structured replies.
    pub structured: bool,
    /// Whether the server replies to reads in several chunks, the last one first.
    pub pieces: bool,
    /// Whether the server reports success for a flush and does nothing.
    pub ignores_flush: bool,
    /// Whether the server treats FUA writes as plain writes.
    pub ignores_fua: bool,
    /// Number of requests after which all connections are cut, without a reply to the last request.
    pub cut_after: u64,
    /// Number of requests after which no request gets a reply.
    pub mute_after: u64,
    /// The number of the one request that gets no reply.
    pub forgets: u64,
    /// Largest payload in bytes that the server accepts.
    pub payload_max: u32,
}

impl Default for Manners {
    /// An honest server with all capabilities.
    fn default() -> Manners {
        Manners {
            flags: ALL,
            structured: true,
            pieces: false,
            ignores_flush: false,
            ignores_fua: false,
            cut_after: u64::MAX,
            mute_after: u64::MAX,
            forgets: u64::MAX,
            payload_max: 32 << 20,
        }
    }
}

/// A server that runs until it is dropped.
pub struct NbdServer {
    socket: PathBuf,
    listener: Arc<UnixListener>,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    device: Arc<dyn Device>,
    manners: Manners,
    requests: AtomicU64,
    streams: parking_lot::Mutex<(bool, Vec<UnixStream>)>,
    held: parking_lot::Mutex<bool>,
    released: parking_lot::Condvar,
}

impl NbdServer {
    /// Serves `device` on a new socket at the path `socket`.
    pub fn serve(socket: &Path, device: Arc<dyn Device>, manners: Manners) -> io::Result<NbdServer> {
        let listener = Arc::new(UnixListener::bind(socket)?);
        let shared = Arc::new(Shared {
            device,
            manners,
            requests: AtomicU64::new(0),
            streams: parking_lot::Mutex::default(),
            held: parking_lot::Mutex::new(false),
            released: parking_lot::Condvar::new(),
        });
        let (mine, listens) = (shared.clone(), listener.clone());
        let accepts = Some(spawn_named("nbd-accept", move || mine.accept(&listens))?);
        Ok(NbdServer { socket: socket.to_owned(), listener, shared, accepts })
    }

    /// Returns the number of requests received, without handshakes.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Relaxed)
    }

    /// Returns the URI of the default export.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Stops serving, like a server that hangs: requests and new connections wait.
    pub fn hold(&self) {
        *self.shared.held.lock() = true;
    }

    /// Continues after [`NbdServer::hold`].
    pub fn release(&self) {
        *self.shared.held.lock() = false;
        self.shared.released.notify_all();
    }

    /// Cuts all connections, like a server that is killed.
    pub fn cut(&self) {
        self.shared.cut(false);
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.release();
        self.shared.cut(true);
        // The shutdown wakes the accepting thread, even if the socket's file has been removed.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.accepts.take() {
            drop(thread.join());
        }
        drop(std::fs::remove_file(&self.socket));
    }
}

impl Shared {
    fn cut(&self, for_good: bool) {
        let mut streams = self.streams.lock();
        streams.0 |= for_good;
        for stream in streams.1.drain(..) {
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
    }

    fn wait_while_held(&self) {
        let mut held = self.held.lock();
        while *held {
            self.released.wait(&mut held);
        }
    }

    fn accept(self: &Arc<Shared>, listener: &UnixListener) {
        let mut threads = Vec::new();
        for stream in listener.incoming() {
            let Ok(stream) = stream else { break };
            let mut streams = self.streams.lock();
            if streams.0 {
                break;
            }
            let Ok(copy) = stream.try_clone() else { break };
            streams.1.push(copy);
            drop(streams);
            let mine = self.clone();
            // The client must report a broken connection, so the server ignores the error.
            let serve = move || drop(mine.talk(stream));
            match spawn_named("nbd-serve", serve) {
                Ok(thread) => threads.push(thread),
                Err(_) => break,
            }
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn talk(&self, mut stream: UnixStream) -> io::Result<()> {
        self.wait_while_held();
        let structured = self.negotiate(&mut stream)?;
        loop {
            let mut head = [0; 28];
            stream.read_exact(&mut head)?;
            let number = |at: usize, len: usize| {
                head[at..at + len].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
            };
            let (flags, command, cookie) = (number(4, 2), number(6, 2), number(8, 8));
            let (offset, len) = (number(16, 8), number(24, 4));
            if command == 2 {
                return Ok(());
            }
            let mut payload = vec![0; if command == 1 { len as usize } else { 0 }];
            stream.read_exact(&mut payload)?;
            let request = self.requests.fetch_add(1, Relaxed) + 1;
            if request > self.manners.mute_after || request == self.manners.forgets {
                continue;
            }
            self.wait_while_held();
            let done = self.perform(flags & 1 != 0, command, offset, len, &payload);
            if request > self.manners.cut_after {
                self.cut(false);
                return Ok(());
            }
            let answer = match (done, structured && command == 0) {
                (Ok(bytes), false) => simple(cookie, 0, &bytes),
                (Err(error), false) => simple(cookie, error, &[]),
                (Ok(bytes), true) => self.chunks(cookie, offset, &bytes),
                (Err(error), true) => failure(cookie, error),
            };
            stream.write_all(&answer)?;
        }
    }

    /// Returns whether structured replies were agreed on.
    fn negotiate(&self, stream: &mut UnixStream) -> io::Result<bool> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        stream.read_exact(&mut [0; 4])?;
        let mut structured = false;
        loop {
            let mut head = [0; 16];
            stream.read_exact(&mut head)?;
            let option = u32::from_be_bytes(head[8..12].try_into().expect("four bytes"));
            let len = u32::from_be_bytes(head[12..].try_into().expect("four bytes"));
            let mut data = vec![0; len.min(1 << 16) as usize];
            stream.read_exact(&mut data)?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut bytes = 0x3e889045565a9u64.to_be_bytes().to_vec();
                bytes.extend(option.to_be_bytes());
                bytes.extend(kind.to_be_bytes());
                bytes.extend((data.len() as u32).to_be_bytes());
                bytes.extend(data);
                stream.write_all(&bytes)
            };
            match option {
                7 => {
                    let mut info = vec![0, 0];
                    info.extend(self.device.geometry().size.to_be_bytes());
                    info.extend(self.manners.flags.to_be_bytes());
                    reply(3, &info)?;
                    let mut sizes = vec![0, 3];
                    for size in [1, BLOCK_SIZE as u32, self.manners.payload_max] {
                        sizes.extend(size.to_be_bytes());
                    }
                    reply(3, &sizes)?;
                    reply(1, &[])?;
                    return Ok(structured);
                }
                8 if self.manners.structured => {
                    structured = true;
                    reply(1, &[])?;
                }
                _ => reply(1 << 31 | 1, &[])?,
            }
        }
    }

    /// Performs a request. Returns the bytes of a read, or the protocol's error number.
    fn perform(
        &self,
        fua: bool,
        command: u64,
        offset: u64,
        len: u64,
        payload: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let (device, manners) = (&self.device, &self.manners);
        let fua = fua && !manners.ignores_fua;
        if len > u64::from(manners.payload_max) && command < 2 {
            return Err(75);
        }
        let done = match command {
            0 => {
                let mut buf = IoBuf::zeroed(len as usize / BLOCK_SIZE);
                return match device.read(offset, &mut buf) {
                    Ok(()) => Ok(buf.as_bytes().to_vec()),
                    Err(e) => Err(number(&e)),
                };
            }
            1 => device.write(offset, &IoBuf::from_bytes(payload), fua),
            3 if manners.ignores_flush => Ok(()),
            3 => device.flush(),
            4 => device.discard(offset, len),
            6 => device.write_zeroes(offset, len),
            _ => return Err(22),
        };
        done.map(|()| Vec::new()).map_err(|e| number(&e))
    }

    fn chunks(&self, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let size = if self.manners.pieces { 2 * BLOCK_SIZE } else { bytes.len().max(1) };
        let mut answer = Vec::new();
        for (i, piece) in bytes.chunks(size).enumerate().collect::<Vec<_>>().into_iter().rev() {
            let at = (offset + (i * size) as u64).to_be_bytes();
            if self.manners.pieces && piece.iter().all(|byte| *byte == 0) {
                let len = (piece.len() as u32).to_be_bytes();
                answer.extend(chunk(0, 2, cookie, &[at.as_slice(), len.as_slice()].concat()));
            } else {
                answer.extend(chunk(0, 1, cookie, &[at.as_slice(), piece].concat()));
            }
        }
        answer.extend(chunk(1, 0, cookie, &[]));
        answer
    }
}

fn number(e: &kedge_base::Error) -> u32 {
    match e {
        kedge_base::Error::Io { errno, .. } => *errno as u32,
        e => e.errno() as u32,
    }
}

fn simple(cookie: u64, error: u32, bytes: &[u8]) -> Vec<u8> {
    let mut answer = 0x6744_6698u32.to_be_bytes().to_vec();
    answer.extend(error.to_be_bytes());
    answer.extend(cookie.to_be_bytes());
    answer.extend(bytes);
    answer
}

fn failure(cookie: u64, error: u32) -> Vec<u8> {
    let mut content = error.to_be_bytes().to_vec();
    content.extend(4u16.to_be_bytes());
    content.extend(b"sour");
    chunk(1, 1 << 15 | 1, cookie, &content)
}

fn chunk(flags: u16, kind: u16, cookie: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((content.len() as u32).to_be_bytes());
    bytes.extend(content);
    bytes
}
