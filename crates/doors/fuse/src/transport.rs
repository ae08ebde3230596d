//! The interface to the kernel's connection: receives requests and sends replies.
//!
//! Each request has one [`Reply`], which any thread may send at any time. So an fsync that waits
//! for the log blocks no worker: the worker passes the reply on and receives the next request.
//! Dropping a reply sends EIO, so every system call gets a result, even on error paths.

use crate::abi::{InHeader, OutHeader, op_name};
use crate::failures::Failures;
use crate::handoff;
use kedge_base::IoBuf;
use std::io;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// One request, in the worker's buffer or the transport's memory.
#[derive(Debug)]
pub struct Request<'a> {
    pub header: InHeader,
    /// The bytes after the header.
    pub body: &'a [u8],
    /// The channel on which the transport must send the reply.
    pub token: u32,
}

impl<'a> Request<'a> {
    /// Parses `message`. `None` if it is not a request; then it has no `unique` either, to which a
    /// reply could refer.
    pub fn parse(message: &'a [u8], token: u32) -> Option<Request<'a>> {
        let (header, body) = InHeader::read_from_prefix(message).ok()?;
        (header.len as usize == message.len()).then_some(Request { header, body, token })
    }
}

/// The result of [`Transport::receive`].
#[derive(Debug)]
pub enum Received<'a> {
    Request(Request<'a>),
    /// There is no request now.
    Nothing,
    /// The connection has ended.
    Ended,
}

/// A connection to the kernel.
///
/// One thread for each worker number calls `receive`; any thread may call the other methods.
pub trait Transport: Send + Sync + 'static {
    /// The name in `system.kedgefs.info` and statistics.
    fn name(&self) -> &'static str;
    /// The number of workers at the start.
    fn workers(&self) -> usize;
    /// Limit for the number of workers. More are started while all of them wait.
    fn workers_max(&self) -> usize {
        self.workers()
    }
    /// Receives a request if there is one.
    fn receive<'a>(&'a self, worker: usize, buf: &'a mut RequestBuf) -> io::Result<Received<'a>>;
    /// Waits until there may be a request, or the connection has ended.
    fn wait(&self, worker: usize) -> io::Result<()>;
    /// Stops receiving: `receive` then returns [`Received::Ended`], although the connection
    /// continues. Does nothing if the connection cannot outlive this server.
    fn stop(&self) {}
    /// Whether there are [`Transport::lanes`], which INIT must negotiate.
    fn has_lanes(&self) -> bool {
        false
    }
    /// Additional channels through which requests arrive, each with its own workers. This transport
    /// may send their replies as well.
    fn lanes(self: Arc<Self>) -> Vec<Arc<dyn Transport>> {
        Vec::new()
    }
    /// Called after the reply to INIT, with which the kernel begins to use the lanes.
    fn negotiated(&self) {}
    /// Whether a worker that finds no request may poll for a short time.
    fn polls(&self) -> bool {
        true
    }
    /// Called once by each worker on its own thread.
    fn adopt_thread(&self) {}
    /// Sends the replies that are deferred to the worker's next call. `is_done`: the worker has no
    /// request any more.
    fn flush(&self, _worker: usize, _is_done: bool) -> io::Result<()> {
        Ok(())
    }
    /// Whether a request waits to be received. True if the transport does not know.
    fn has_request(&self) -> bool {
        true
    }
    /// Sends the reply to request `unique`: `error` (0 or a negative errno) and the `parts` in
    /// sequence.
    fn reply(&self, token: u32, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()>;
    /// Sends a notification to the kernel.
    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()>;
}

/// A buffer for the largest request, aligned so that the data of a WRITE begins at a page boundary.
/// So the copy in the kernel and the copy into the page cache are aligned, and the data could be
/// written to an O_DIRECT device without another copy.
#[derive(Debug)]
pub struct RequestBuf(IoBuf);

impl RequestBuf {
    const DATA_AT: usize = kedge_base::BLOCK_SIZE;
    const WRITE_HEAD: usize = size_of::<InHeader>() + size_of::<crate::abi::WriteIn>();

    pub fn new() -> RequestBuf {
        RequestBuf(IoBuf::zeroed((Self::DATA_AT + crate::abi::MAX_IO).div_ceil(kedge_base::BLOCK_SIZE)))
    }

    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.0.as_mut_bytes()[Self::DATA_AT - Self::WRITE_HEAD..]
    }
}

impl Default for RequestBuf {
    fn default() -> RequestBuf {
        RequestBuf::new()
    }
}

/// Called with error and parts before a reply is sent. Returns the error to send, which may differ
/// only if the reply has no parts.
pub(crate) type Before = Box<dyn FnOnce(i32, &[&[u8]]) -> i32 + Send>;

/// A value that is dropped after the reply was sent.
pub(crate) type Owed = Box<dyn std::any::Any + Send>;

/// The right and the duty to reply to one request. Dropping it sends EIO.
#[must_use]
pub struct Reply {
    transport: Arc<dyn Transport>,
    failures: Arc<Failures>,
    opcode: u32,
    node: u64,
    unique: u64,
    token: u32,
    open: bool,
    before: Option<Before>,
    owed: Option<Owed>,
}

impl Reply {
    /// The reply to `request`. If it is an error, it is counted in `failures`.
    pub fn new(transport: Arc<dyn Transport>, failures: Arc<Failures>, request: &Request<'_>) -> Reply {
        let InHeader { opcode, nodeid: node, unique, .. } = request.header;
        let token = request.token;
        Reply { transport, failures, opcode, node, unique, token, open: true, before: None, owed: None }
    }

    /// Keeps `owed` until the reply is sent.
    pub(crate) fn holding(mut self, owed: Owed) -> Reply {
        self.owed = Some(owed);
        self
    }

    /// Sets a function that is called just before the reply is sent.
    pub(crate) fn after(mut self, before: Before) -> Reply {
        self.before = Some(before);
        self
    }

    pub fn ok(self, parts: &[&[u8]]) {
        self.send(0, parts);
    }

    /// Replies with an error. `errno` is positive, as in `errno.h`.
    pub fn err(self, errno: i32) {
        self.send(-errno, &[]);
    }

    /// Replies with a struct, or with an errno.
    pub fn finish<T: IntoBytes + Immutable, E: Into<i32>>(self, result: Result<T, E>) {
        match result {
            Ok(value) => self.ok(&[value.as_bytes()]),
            Err(errno) => self.err(errno.into()),
        }
    }

    /// Ends a request that has no reply (FORGET).
    pub fn none(mut self) {
        self.open = false;
    }

    fn send(mut self, mut error: i32, parts: &[&[u8]]) {
        self.open = false;
        if let Some(before) = self.before.take() {
            error = before(error, parts);
        }
        let parts = if error == 0 { parts } else { &[] };
        if error != 0 {
            self.failures.note(self.opcode, self.node, -error);
        }
        handoff::answering();
        report(self.transport.reply(self.token, self.unique, error, parts), self.unique);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.open && self.before.is_some() && std::thread::panicking() {
            // This server ends, and its successor will serve the request.
            return;
        }
        if self.open {
            tracing::error!(
                op = op_name(self.opcode),
                node = self.node,
                unique = self.unique,
                "request was dropped unanswered"
            );
            if let Some(before) = self.before.take() {
                before(-libc::EIO, &[]);
            }
            self.failures.note(self.opcode, self.node, libc::EIO);
            report(self.transport.reply(self.token, self.unique, -libc::EIO, &[]), self.unique);
        }
    }
}

fn report(sent: io::Result<()>, unique: u64) {
    match sent {
        Ok(()) => {}
        // ENOENT: the caller was killed before the reply. The other errors mean that the mount has
        // ended, and with it the caller's request.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM)
            ) => {}
        Err(e) => tracing::error!(unique, "the kernel refused a reply: {e}"),
    }
}

/// The head of a message to the kernel.
pub(crate) fn out_header(unique: u64, error: i32, parts: &[&[u8]]) -> OutHeader {
    let len = size_of::<OutHeader>() + parts.iter().map(|p| p.len()).sum::<usize>();
    OutHeader { len: u32::try_from(len).expect("replies are at most a mebibyte"), error, unique }
}
