//! The end of a server that is replaced by another one.
//!
//! The server stops receiving, finishes the requests that it has received, makes everything
//! durable, frees the journal, releases the image, and its process ends. Requests that it has not
//! received stay in the kernel. Requests that it has not finished after [`PATIENCE`] are left to
//! the journal and the kernel, as after a death. So a handover gives the same guarantees as a
//! death, with a shorter pause: the next server finds an empty journal and a short log, and need
//! not wait for the end of this process.
//!
//! # Why the next server may begin before this process has ended
//! When the image is released, no worker runs, all replies are sent, no request of this process is
//! at the device, and none can begin. The journal is free, so its thread sleeps. So this process
//! changes neither the image nor the keeper's memory any more. A thread that notifies the kernel
//! may continue until the process ends: the kernel refuses its replies to resent requests.

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

/// Time limit for the received requests. A request that waits for its device may take longer.
const PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(1);

/// What the server waits for, in this order.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Requests,
    Journal,
    Replies,
    Device,
}

/// The last actions of a server.
pub struct Leave {
    /// Ends the use of the image by this process, and reports that the next server may begin.
    pub give_up: Box<dyn Fn() + Send + Sync>,
    /// Ends the process without running any other code.
    pub exit: fn() -> !,
}

/// The handover from one server to the next.
pub struct Handover {
    area: Arc<Area>,
    transport: Arc<dyn Transport>,
    begun: AtomicBool,
    /// Set when the session is being served.
    pool: OnceLock<Arc<WorkerPool>>,
    stage: Mutex<Stage>,
    leave: Leave,
}

impl Handover {
    pub(crate) fn new(area: Arc<Area>, transport: Arc<dyn Transport>, leave: Leave) -> Handover {
        let (begun, stage) = (AtomicBool::new(false), Mutex::new(Stage::Requests));
        Handover { area, transport, begun, pool: OnceLock::new(), stage, leave }
    }

    /// Sets the workers that must end.
    pub(crate) fn serves(&self, pool: &Arc<WorkerPool>) {
        // Fails only at a second call, but a session is served only once.
        let _first = self.pool.set(pool.clone());
    }

    /// Begins the handover and does not return. The caller has already made most changes durable.
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

    /// Completes the handover. Must be called after all workers have ended.
    pub(crate) fn complete(&self, kept: &Kept) -> ! {
        let begins = |stage| *self.stage.lock() = stage;
        begins(Stage::Journal);
        if let Err(errno) = kept.journal.barrier() {
            let why = io::Error::from_raw_os_error(errno);
            tracing::warn!("the next server makes changes again, which could not be synced: {why}");
        }
        // Threads other than workers send some of the replies.
        begins(Stage::Replies);
        while kept.owes_replies() {
            SystemClock::default().sleep(POLL);
        }
        begins(Stage::Device);
        (self.leave.give_up)();
        (self.leave.exit)()
    }
}
