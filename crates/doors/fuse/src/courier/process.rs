//! The courier's process.

use super::{Ask, MESSAGE_MAX, Sent, is_there};
use crate::abi;
use crate::devfuse::DevFuse;
use crate::transport::{Received, RequestBuf, Transport};
use kedge_base::{pause, spawn_named};
use rustix::event::{PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Limit for the threads, which equals the server's. Further notifications wait.
const THREADS_MAX: usize = 64;
/// The interval at which the threads are checked after the server's end.
const LOOK: Duration = Duration::from_millis(5);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Sends the notifications that arrive at `server` over `connection`. Returns when the server has
/// ended and no thread waits in the kernel any more. `keeper` is a pidfd.
pub fn run(server: OwnedFd, connection: OwnedFd, keeper: Option<OwnedFd>) -> io::Result<()> {
    let kernel = DevFuse::new(connection, 1..=1, false);
    let office = Arc::new(Office { server, kernel, idle: AtomicUsize::new(0), threads: AtomicUsize::new(0) });
    office.start_thread()?;
    // Without requested events, poll returns when the other end is closed.
    is_there(&office.server, PollFlags::empty(), None);
    let mut refuser = None;
    while office.threads.load(SeqCst) > 0 {
        if keeper.as_ref().is_none_or(|keeper| is_there(keeper, PollFlags::IN, Some(NOW))) {
            refuser.get_or_insert_with(|| Refuser::begin(&office.kernel)).refuse_all();
        }
        pause(LOOK);
    }
    Ok(())
}

/// The state that the threads share.
struct Office {
    server: OwnedFd,
    kernel: DevFuse,
    /// The number of threads that wait for a notification.
    idle: AtomicUsize,
    threads: AtomicUsize,
}

impl Office {
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let office = self.clone();
        self.threads.fetch_add(1, SeqCst);
        let started = spawn_named("kedge-courier", move || {
            office.work();
            office.threads.fetch_sub(1, SeqCst);
        });
        started.map(drop).inspect_err(|_| {
            self.threads.fetch_sub(1, SeqCst);
        })
    }

    /// Sends notifications until the server has ended.
    fn work(self: &Arc<Self>) {
        let mut buf = [0; MESSAGE_MAX];
        loop {
            self.idle.fetch_add(1, SeqCst);
            let read = rustix::io::read(&self.server, &mut buf);
            let others = self.idle.fetch_sub(1, SeqCst) - 1;
            let len = match read {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(len) if len > 0 => len,
                _ => return,
            };
            // All other threads may be waiting in the kernel, possibly for something that the next
            // notification triggers. If no thread can be started, that notification waits.
            if others == 0 && self.threads.load(SeqCst) < THREADS_MAX {
                let _later = self.start_thread();
            }
            let Ok((ask, body)) = Ask::read_from_prefix(&buf[..len]) else { return };
            let errno = match self.kernel.notify(ask.code, body) {
                Ok(()) => 0,
                Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
            };
            let sent = Sent { number: ask.number, errno, padding: 0 };
            if send(&self.server, sent.as_bytes(), SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    }
}

/// Replies with an error to requests that no server will serve.
struct Refuser<'a> {
    kernel: &'a DevFuse,
    buf: RequestBuf,
}

impl Refuser<'_> {
    fn begin(kernel: &DevFuse) -> Refuser<'_> {
        // Requests that the server received over its own channels are failed by the kernel.
        // Requests that it received over this channel are received again. Linux before 6.9 cannot
        // resend: then a request that the dead server received over a shared channel never gets a
        // reply.
        let _older_linux = kernel.notify(abi::NOTIFY_RESEND, &[]);
        Refuser { kernel, buf: RequestBuf::new() }
    }

    /// Replies to all requests that can be received now.
    fn refuse_all(&mut self) {
        while let Ok(Received::Request(request)) = self.kernel.receive(0, &mut self.buf) {
            // Fails for a FORGET, which has no reply.
            let _forgets = self.kernel.reply(request.token, request.header.unique, -libc::ENOTCONN, &[]);
        }
    }
}
