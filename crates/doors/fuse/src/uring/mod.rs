//! The transport over io_uring: the kernel has a queue for each processor, and puts a request into
//! the queue of the processor on which its caller runs.
//!
//! For each processor that this process may use there is a *lane*: a ring with workers that run on
//! that processor. So a caller and the worker that serves it run alternately on one processor, and
//! callers on different processors share no queue and no lock. A lane also serves the queues of
//! processors that this process may not use.
//!
//! The kernel still sends FORGET and INTERRUPT through `/dev/fuse`, and accepts notifications
//! there. INIT arrives there, too; the rings are used from its reply on.
//!
//! # If the process dies
//! The kernel cancels the process's commands and closes its rings and the connection. Then all
//! requests fail with ECONNABORTED or ENOTCONN, including those that a ring had received.

mod entry;
mod lane;
mod wire;

use crate::devfuse::DevFuse;
use crate::transport::{Received, RequestBuf, Transport, out_header};
use lane::Lane;
use std::io;
use std::sync::Arc;

/// Contains `Y` if the kernel's module accepts rings.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// [`Request::token`](crate::transport::Request::token) of a request that came through a ring: this
/// bit, the number of the lane, and the number of the entry.
const RING: u32 = 1 << 31;
const LANE_AT: u32 = 16;
const ENTRY_MASK: u32 = (1 << LANE_AT) - 1;

/// The reason for which FUSE over io_uring cannot be used here; `None` if it can.
pub fn why_not() -> Option<String> {
    why_not_by(ENABLED)
}

fn why_not_by(path: &str) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() == "Y" => None,
        Ok(_) => Some(format!("it is off in this kernel: `echo Y > {path}` as root turns it on")),
        Err(e) => Some(format!("this kernel has none (Linux 6.14 is the first): {path}: {e}")),
    }
}

/// The rings of a connection, together with its `/dev/fuse`.
pub struct OverUring {
    // Dropped before `device`, because the lanes use its descriptor.
    lanes: Vec<Arc<Lane>>,
    device: DevFuse,
}

impl OverUring {
    /// Adds rings to a connection that is not negotiated yet.
    pub(crate) fn new(device: DevFuse) -> io::Result<OverUring> {
        let possible = std::fs::read_to_string(POSSIBLE)?;
        let all = processors(&possible).ok_or_else(|| io::Error::other(format!("{POSSIBLE}: {possible}")))?;
        let set = rustix::thread::sched_getaffinity(None)?;
        let (own, others): (Vec<u16>, Vec<u16>) =
            (0..all).partition(|processor| set.is_set(*processor as usize));
        let lanes = own.iter().enumerate().map(|(i, processor)| {
            let others = others.iter().copied().skip(i).step_by(own.len()).collect();
            Ok(Arc::new(Lane::new(device.descriptor(), *processor, others)?))
        });
        Ok(OverUring { lanes: lanes.collect::<io::Result<_>>()?, device })
    }
}

/// The number of processors in a list of the kernel: `0-3,6` has five.
fn processors(list: &str) -> Option<u16> {
    list.trim().split(',').try_fold(0u16, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

impl Transport for OverUring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn workers(&self) -> usize {
        self.device.workers()
    }

    fn workers_max(&self) -> usize {
        self.device.workers_max()
    }

    fn receive<'a>(&'a self, worker: usize, buf: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        self.device.receive(worker, buf)
    }

    fn wait(&self, worker: usize) -> io::Result<()> {
        self.device.wait(worker)
    }

    fn stop(&self) {
        self.device.stop();
        self.lanes.iter().for_each(|lane| lane.stop());
    }

    fn has_request(&self) -> bool {
        self.device.has_request()
    }

    fn reply(&self, token: u32, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        if token & RING == 0 {
            return self.device.reply(token, unique, error, parts);
        }
        let lane = &self.lanes[((token & !RING) >> LANE_AT) as usize];
        lane.reply(token & ENTRY_MASK, out_header(unique, error, parts), parts)
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        self.device.notify(code, body)
    }

    fn has_lanes(&self) -> bool {
        true
    }

    fn lanes(self: Arc<Self>) -> Vec<Arc<dyn Transport>> {
        let lanes = (0..self.lanes.len())
            .map(|lane| -> Arc<dyn Transport> { Arc::new(OneLane { whole: self.clone(), lane }) });
        lanes.collect()
    }

    fn negotiated(&self) {
        self.lanes.iter().for_each(|lane| lane.start());
    }
}

/// The transport of one lane's workers.
struct OneLane {
    whole: Arc<OverUring>,
    lane: usize,
}

impl OneLane {
    fn lane(&self) -> &Lane {
        &self.whole.lanes[self.lane]
    }
}

impl Transport for OneLane {
    fn name(&self) -> &'static str {
        self.whole.name()
    }

    fn workers(&self) -> usize {
        2
    }

    fn workers_max(&self) -> usize {
        self.whole.workers_max()
    }

    fn receive<'a>(&'a self, worker: usize, buf: &'a mut RequestBuf) -> io::Result<Received<'a>> {
        let token = RING | (self.lane as u32) << LANE_AT;
        self.lane().receive(worker, buf, token)
    }

    fn wait(&self, _worker: usize) -> io::Result<()> {
        self.lane().wait()
    }

    fn stop(&self) {
        self.whole.stop();
    }

    fn polls(&self) -> bool {
        // Polling would keep the callers on the same processor from running.
        false
    }

    fn adopt_thread(&self) {
        self.lane().adopt_thread();
    }

    fn flush(&self, worker: usize, is_done: bool) -> io::Result<()> {
        self.lane().flush(worker, is_done)
    }

    fn reply(&self, token: u32, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.whole.reply(token, unique, error, parts)
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        self.whole.notify(code, body)
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
