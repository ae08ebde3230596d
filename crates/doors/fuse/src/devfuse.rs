//! The transport over `/dev/fuse`: one read per request, one gathering write per reply.
//!
//! Each worker has its own channel (a cloned descriptor) if possible. When a reply arrives, the
//! kernel then searches only the requests of that channel. A rootless mount has its descriptor from
//! fusermount3 and may not open `/dev/fuse`, so its workers share one channel.
//!
//! A server that hands its mount over stops receiving, but the connection continues. To wake its
//! workers, which sleep in poll(2), it signals a *bell*: an eventfd polled together with the
//! connection.
//!
//! The descriptors are non-blocking. A worker that finds no request polls again, or sleeps in
//! poll(2).

use crate::courier::Courier;
use crate::sys;
use crate::transport::{Received, Request, RequestBuf, Transport, out_header};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use zerocopy::IntoBytes;

/// The most parts of a reply, including the header.
const PARTS_MAX: usize = 4;

pub struct DevFuse {
    /// One or more channels; worker `w` uses channel `w % len`.
    channels: Vec<OwnedFd>,
    workers: RangeInclusive<usize>,
    /// Wakes sleeping workers when the server stops; `None` if the connection ends with this
    /// server.
    bell: Option<OwnedFd>,
    stopped: AtomicBool,
    /// Sends notifications that may wait; `None` if this process sends all of them.
    courier: Option<Courier>,
}

impl DevFuse {
    /// Serves the connection of `fd`, which belongs to a mount, with at least `workers.start()`
    /// workers.
    pub fn new(fd: OwnedFd, workers: RangeInclusive<usize>, clone: bool) -> DevFuse {
        let mut channels = vec![fd];
        while clone && channels.len() < *workers.start() {
            match sys::clone_fuse_channel(&channels[0]) {
                Ok(channel) => channels.push(channel),
                Err(e) => {
                    tracing::debug!("workers share a channel: {e}");
                    break;
                }
            }
        }
        for channel in &channels {
            let set = fcntl_getfl(channel).and_then(|flags| fcntl_setfl(channel, flags | OFlags::NONBLOCK));
            if let Err(e) = set {
                // Then `receive` blocks. The worker cannot poll, but no request is lost.
                tracing::warn!("reads from /dev/fuse wait: {e}");
            }
        }
        DevFuse { channels, workers, bell: None, stopped: AtomicBool::new(false), courier: None }
    }

    /// Serves the connection of `fd`, which all workers share, until it ends or is stopped.
    pub(crate) fn stoppable(fd: OwnedFd, workers: RangeInclusive<usize>) -> io::Result<DevFuse> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // The workers share one channel. A cloned channel would end with this server, and so would
        // the requests received on it, although the connection continues with the next server.
        Ok(DevFuse { bell: Some(bell), ..DevFuse::new(fd, workers, false) })
    }

    /// Sets the courier that sends notifications which may wait.
    pub(crate) fn with(self, courier: Option<Courier>) -> DevFuse {
        DevFuse { courier, ..self }
    }

    /// The first channel.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.channels[0]
    }

    fn send(&self, channel: usize, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        assert!(parts.len() < PARTS_MAX, "replies have a few parts");
        let header = out_header(unique, error, parts);
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        slices[0] = IoSlice::new(header.as_bytes());
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let sent = rustix::io::writev(&self.channels[channel], &slices[..=parts.len()])?;
        // The kernel accepts a message completely or not at all.
        debug_assert_eq!(sent, header.len as usize);
        Ok(())
    }
}

impl Transport for DevFuse {
    fn name(&self) -> &'static str {
        "dev"
    }

    fn workers(&self) -> usize {
        (*self.workers.start()).max(1)
    }

    fn workers_max(&self) -> usize {
        self.workers().max(*self.workers.end())
    }

    fn receive<'a>(&'a self, worker: usize, buf: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        if self.stopped.load(SeqCst) {
            return Ok(Received::Ended);
        }
        let channel = worker % self.channels.len();
        let buf = buf.as_mut_bytes();
        let len = loop {
            match rustix::io::read(&self.channels[channel], &mut *buf) {
                Ok(len) if Request::parse(&buf[..len], channel as u32).is_some() => break len,
                Ok(len) => tracing::error!("{len} bytes from the kernel are no request"),
                // ENOENT: the request was interrupted while it was copied.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(Received::Nothing),
                Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNABORTED) => {
                    return Ok(Received::Ended);
                }
                Err(e) => return Err(e.into()),
            }
        };
        let request = Request::parse(&buf[..len], channel as u32);
        Ok(request.map_or(Received::Nothing, Received::Request))
    }

    fn wait(&self, worker: usize) -> io::Result<()> {
        // An ended connection is readable too; `receive` then returns the error.
        let channel = &self.channels[worker % self.channels.len()];
        let bell = self.bell.as_ref().unwrap_or(channel);
        let mut both = [PollFd::new(channel, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        let polled = if self.bell.is_some() { &mut both[..] } else { &mut both[..1] };
        match poll(polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn stop(&self) {
        let Some(bell) = &self.bell else { return };
        self.stopped.store(true, SeqCst);
        // The eventfd is never read, so it wakes each worker that polls it later.
        if let Err(e) = rustix::io::write(bell, &1u64.to_ne_bytes()) {
            tracing::error!("workers that wait for a request do not see the end: {e}");
        }
    }

    fn has_request(&self) -> bool {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
        // All channels read from the same queue, so any of them can be polled.
        poll(&mut [PollFd::new(&self.channels[0], PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn reply(&self, token: u32, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send(token as usize, unique, error, parts)
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let carried = self.courier.as_ref().and_then(|c| c.notify(&self.channels[0], code, body));
        carried.unwrap_or_else(|| self.send(0, 0, code, &[body]))
    }
}
