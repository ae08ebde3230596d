//! The end of a server that leaves its place to another one.
//!
//! It stops receiving, finishes what it has received, makes everything durable, frees the journal,
//! gives the image up, and its process ends. What it has not received stays with the kernel.
//! Whatever it has not finished after [`PATIENCE`] is left to the journal and to the kernel, as by
//! a death. So a handover promises what a death promises, and only its pause is shorter: the next
//! server finds an empty journal and a short log, and need not wait for the end of this process.
//!
//! # Why the next server may begin before this process has ended
//! Once the image is given up, no worker runs, each reply is sent, no request of this process is at
//! the device, and none can begin. The journal is free, so its thread sleeps. So nothing of this
//! process reaches the image or the keeper's memory any more. A thread that notifies the kernel may
//! go on until the process ends: the kernel refuses its replies to requests that were sent again.

use super::Kept;
use super::area::{Area, at, now_ns};
use crate::abi::op_name;
use crate::pool::WorkerPool;
use crate::transport::Transport;
use kedge_base::{Clock, SystemClock};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// For requests that were received. One that waits for its device may take longer.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(1);

/// What a server that leaves waits for, one after another.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Requests,
    Journal,
    Replies,
    Device,
}

/// The end of a server.
pub struct Leave {
    /// Ends the use of the image by this process, and says that the next server may begin.
    pub give_up: Box<dyn Fn() + Send + Sync>,
    /// Ends the process without running anything else.
    pub exit: fn() -> !,
}

/// The handover of one server.
pub struct Handover {
    area: Arc<Area>,
    transport: Arc<dyn Transport>,
    begun: AtomicBool,
    /// Set when the session is served.
    pool: OnceLock<Arc<WorkerPool>>,
    stage: Mutex<Stage>,
    leave: Leave,
}

impl Handover {
    pub(crate) fn new(area: Arc<Area>, transport: Arc<dyn Transport>, leave: Leave) -> Handover {
        let (begun, stage) = (AtomicBool::new(false), Mutex::new(Stage::Requests));
        Handover { area, transport, begun, pool: OnceLock::new(), stage, leave }
    }

    /// The workers that have to end.
    pub(crate) fn serves(&self, pool: &Arc<WorkerPool>) {
        // A session is served once.
        let _first = self.pool.set(pool.clone());
    }

    /// Leaves. The caller has made most of the file system durable, while it was served.
    pub fn begin(&self) -> ! {
        self.area.store(at!(handover_ns), now_ns());
        self.begun.store(true, SeqCst);
        if let Some(pool) = self.pool.get() {
            pool.hasten_end();
        }
        self.transport.stop();
        SystemClock::default().sleep(PATIENCE);
        let serves = self.pool.get().map(|pool| pool.serves()).unwrap_or_default();
        let requests: Vec<_> = serves.into_iter().map(op_name).collect();
        tracing::warn!(
            waits_for = ?*self.stage.lock(),
            ?requests,
            "the server does not leave in time; the next server begins again what has no reply"
        );
        (self.leave.exit)()
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.begun.load(SeqCst)
    }

    /// All workers have ended.
    pub(crate) fn complete(&self, kept: &Kept) -> ! {
        let begins = |stage| *self.stage.lock() = stage;
        begins(Stage::Journal);
        if let Err(errno) = kept.journal.barrier() {
            let why = io::Error::from_raw_os_error(errno);
            tracing::warn!("the next server makes changes again, which could not be synced: {why}");
        }
        // Threads other than workers send some replies.
        begins(Stage::Replies);
        while kept.owes_replies() {
            SystemClock::default().sleep(POLL);
        }
        begins(Stage::Device);
        (self.leave.give_up)();
        (self.leave.exit)()
    }
}
