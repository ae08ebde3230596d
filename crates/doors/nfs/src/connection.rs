//! One connection: one thread reads its requests, another writes its replies. So a peer that reads
//! no replies delays neither the workers nor other peers.

use crate::limits::Limits;
use kedge_base::Clock;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, TcpStream};

/// The replies of a connection that are not yet sent.
#[derive(Default)]
struct Outbox {
    replies: VecDeque<Vec<u8>>,
    /// Requests that were read and whose replies are not yet written.
    pending: usize,
    /// No further request will be read.
    is_read: bool,
    /// The peer accepts no more replies.
    is_broken: bool,
}

pub(crate) struct Connection {
    stream: TcpStream,
    outbox: Mutex<Outbox>,
    changed: Condvar,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Connection {
        Connection { stream, outbox: Mutex::default(), changed: Condvar::new() }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Waits until the connection may have one more request pending. Returns false if the
    /// connection has ended.
    pub(crate) fn admit(&self, limits: &Limits) -> bool {
        let mut outbox = self.outbox.lock();
        while outbox.pending >= limits.requests && !outbox.is_broken {
            self.changed.wait(&mut outbox);
        }
        !outbox.is_broken
    }

    /// Counts a request as pending.
    pub(crate) fn begin(&self) {
        self.outbox.lock().pending += 1;
    }

    /// Queues the reply of a request.
    pub(crate) fn answer(&self, reply: Vec<u8>) {
        self.outbox.lock().replies.push_back(reply);
        self.changed.notify_all();
    }

    /// Ends a request without a reply, and closes its connection: the request cannot be decoded, or
    /// the file system has failed.
    pub(crate) fn give_up(&self) {
        let mut outbox = self.outbox.lock();
        outbox.pending -= 1;
        self.end(&mut outbox);
    }

    /// Notes that no further request will be read.
    pub(crate) fn finish(&self) {
        self.outbox.lock().is_read = true;
        self.changed.notify_all();
    }

    /// Stops reading. Requests that were read still get their replies.
    pub(crate) fn stop_reading(&self) {
        // An error means that the peer has already closed the connection.
        let _closed_already = self.stream.shutdown(Shutdown::Read);
    }

    fn end(&self, outbox: &mut Outbox) {
        outbox.is_broken = true;
        let _closed_already = self.stream.shutdown(Shutdown::Both);
        self.changed.notify_all();
    }

    /// Writes replies until no request is pending and no further one will be read.
    pub(crate) fn write_replies(&self, limits: &Limits, clock: &dyn Clock) {
        let mut outbox = self.outbox.lock();
        loop {
            if outbox.is_broken {
                outbox.pending -= outbox.replies.len();
                outbox.replies.clear();
                self.changed.notify_all();
            }
            if let Some(reply) = outbox.replies.pop_front() {
                drop(outbox);
                let written = write(&self.stream, &reply, limits, clock);
                outbox = self.outbox.lock();
                outbox.pending -= 1;
                if let Err(e) = written {
                    tracing::debug!("a client takes no reply: {e}");
                    self.end(&mut outbox);
                }
                self.changed.notify_all();
            } else if outbox.is_read && outbox.pending == 0 {
                return;
            } else {
                self.changed.wait(&mut outbox);
            }
        }
    }
}

/// Writes a reply within the time limit. Each write returns after a time limit of the stream, so
/// that the limit of the reply is checked.
fn write(mut stream: &TcpStream, mut reply: &[u8], limits: &Limits, clock: &dyn Clock) -> io::Result<()> {
    let begun = clock.monotonic();
    while !reply.is_empty() {
        match stream.write(reply) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => reply = &reply[n..],
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
        if !reply.is_empty() && clock.since(begun) > limits.message_time {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}
