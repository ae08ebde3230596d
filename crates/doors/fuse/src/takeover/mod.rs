//! The work of a server with a keeper: it replaces a server that died, notes each change in the
//! memory of [`crate::keep`], and lets no request take effect twice.
//!
//! [`class`] decides which requests are journaled. Changes that are not are made durable before
//! their reply ([`forced`]), or refused. [`redo`] redoes changes.

mod class;
mod content;
mod forced;
mod redo;

use crate::abi::{self, UNIQUE_RESEND, op, op_name};
use crate::args::Args;
use crate::keep::answers::Answered;
use crate::keep::area::{Area, Deaths, Head, PAUSES, Suspect, at, now_ns};
use crate::keep::journal::{DONE, Journal, Outcome, Place, REFUSED};
use crate::keep::steps::{self, Broken, Step};
use crate::keep::{Kept, Life};
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::{Reply, Request};
use class::{Class, Rule};
use kedge_base::witness::{self, OnCommit, Witness};
use kedge_base::{Clock, Ino, IoBuf, SystemClock};
use kedgefs::RecordOp;
use serde_json::{Value, json};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::IntoBytes;

/// After this many deaths, the request that causes them is refused.
const DEATHS_MAX: u32 = 3;

impl<O: Ops> Server<O> {
    /// Replaces the server that died, if there was one. Afterwards the image and this server are in
    /// a state in which all changes that had a reply are made. Then the caller makes the kernel
    /// resend the requests that had none.
    pub(crate) fn resume(self, life: &Life) -> io::Result<Server<O>> {
        let head: Head = life.area.read(0);
        let mut server = self;
        server.kept = Some(Arc::new(Kept::start(life)?));
        server.writeback.store(head.negotiated.writeback != 0, Relaxed);
        server.acls.store(head.negotiated.acls != 0, Relaxed);
        server.flags_checked.store(head.negotiated.flags_checked != 0, Relaxed);
        let mut redone = 0;
        if life.is_second() {
            redone = server.redo()?;
        }
        let deaths = life.area.deaths();
        let history = note_pause(&life.area, &deaths, redone, life);
        let kept = server.kept.as_mut().and_then(Arc::get_mut).expect("not shared yet");
        kept.journal.clear();
        kept.history = history;
        Ok(server)
    }

    /// Frees the halves of the journal that are no longer needed, until the server ends.
    pub(crate) fn recycle(kept: &Kept, ops: &O) {
        // Changes continue meanwhile. A store to a page that is not mapped yet causes a page fault.
        if let Err(e) = kept.area.populate() {
            tracing::debug!("the pages of the journal are mapped one by one: {e}");
        }
        kept.journal.recycle(|| {
            ops.sync().map_err(|e| {
                tracing::error!("changes cannot be made durable, and wait in the keeper's memory: {e}");
                e.errno()
            })
        });
    }

    /// Serves a request of a mount that has a keeper.
    pub(crate) fn serve_kept(&self, kept: &Arc<Kept>, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        if request.header.unique & UNIQUE_RESEND == 0 {
            return self.serve_unless_frozen(kept, request, reply, out);
        }
        let unique = request.header.unique & !UNIQUE_RESEND;
        if steps::is_broken(Broken::UnforcedIsDurable) && request.header.opcode == op::FSYNC {
            return reply.ok(&[]);
        }
        let answered = kept.answers.lock().take(unique).filter(|_| !steps::is_broken(Broken::AnswerRepeated));
        if let Some(answered) = answered {
            return self.answer_again(&answered, reply);
        }
        let Some(reply) = self.forced_again(kept, request, reply) else { return };
        if !kept.crashed {
            return self.serve_unless_frozen(kept, request, reply, out);
        }
        let _alone = kept.alone.lock();
        let deaths = if kept.suspect.unique == unique { kept.suspect.deaths } else { 0 };
        let (node, opcode) = (request.header.nodeid, request.header.opcode);
        // The request's first death was before it was served alone, and so is not in `deaths`.
        if deaths + 1 >= DEATHS_MAX {
            tracing::error!(
                op = op_name(opcode),
                node,
                "the request has killed {DEATHS_MAX} servers, and is refused"
            );
            let head: Head = kept.area.read(0);
            kept.area.store(at!(poisoned), head.poisoned + 1);
            return reply.err(libc::EIO);
        }
        let mark = |under_way| kept.suspects(Suspect { unique, node, opcode, deaths, under_way });
        mark(1);
        self.serve_unless_frozen(kept, request, reply, out);
        mark(0);
    }

    /// A change that waits for a thaw has no entry in the journal. After a death it is resent.
    fn serve_unless_frozen(&self, kept: &Arc<Kept>, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        self.unless_frozen(request, reply, |reply| self.serve_classed(kept, request, reply, out));
    }

    fn serve_classed(&self, kept: &Arc<Kept>, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        match self.class(request) {
            Class::Free => self.dispatch(request, reply, out),
            Class::Refused(errno) => reply.err(errno),
            Class::Forced => self.force(kept, request, reply, out),
            Class::Journaled(rule) => self.journal(kept, rule, request, reply, out),
        }
    }

    fn journal(&self, kept: &Arc<Kept>, rule: Rule, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        // The kernel may write a page of a file concurrently with a write(2) to it. Their order in
        // the journal must be the order of their effects.
        let ordered = !matches!(rule, Rule::Record(_));
        let _order = ordered.then(|| kept.stripe(request.header.nodeid).lock());
        let now = SystemClock::default().now();
        let place = match kept.journal.begin(request, now, kept.worker()) {
            Ok(place) => place,
            Err(errno) => return reply.err(errno),
        };
        let (ops, node, opcode) = (self.ops.clone(), request.header.nodeid, request.header.opcode);
        steps::at(Step::Begun, opcode);
        let committed = marking(kept, place, rule, opcode);
        let clears = may_clear_bits(request);
        let noted = kept.clone();
        let finish = move |error: i32, parts: &[&[u8]]| {
            steps::at(Step::Made, opcode);
            let result = match (opcode, parts.first()) {
                (op::WRITE, Some(part)) => u32::from_ne_bytes(part[..4].try_into().expect("a WriteOut")),
                _ => 0,
            };
            let mode = match clears && error == 0 {
                true => ops.getattr(Ino(node)).map_or(0, |attr| (attr.mode & 0o7777) + 1),
                false => 0,
            };
            let state = if error == 0 { DONE } else { REFUSED };
            noted.journal.finish(place, Outcome { state, result, mode, padding: 0 });
            steps::at(Step::Finished, opcode);
            error
        };
        let witness = Witness { time: Some(now), number: None, committed };
        let reply = reply.after(Box::new(finish)).holding(Box::new(kept.owe(Some(place))));
        witness::during(witness, || self.dispatch(request, reply, out));
    }

    /// Replies to a request whose change an earlier server has made.
    fn answer_again(&self, answered: &Answered, reply: Reply) {
        use crate::errno::Errno;
        let ino = Ino(answered.ino);
        let attr = |ino| self.ops.getattr(ino).map_err(Errno::from);
        match answered.opcode {
            op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK => reply.finish(attr(ino).and_then(|attr| {
                // With an outcome, the inode has its pin already, because the pin is noted before
                // the outcome.
                if answered.done != 0 { Ok(self.entry(&attr)) } else { self.pinned_entry(&attr) }
            })),
            op::TMPFILE => reply.finish(attr(ino).map(|attr| {
                let open = abi::OpenOut {
                    fh: 0,
                    open_flags: abi::fopen::KEEP_CACHE | abi::fopen::NOFLUSH,
                    padding: 0,
                };
                abi::CreateOut { entry: self.entry(&attr), open }
            })),
            op::SETATTR => reply.finish(attr(Ino(answered.node)).map(|attr| self.attr_out(&attr))),
            op::WRITE => {
                reply.finish(Ok::<_, Errno>(abi::WriteOut { size: answered.result, padding: 0 }));
            }
            _ => reply.finish(Ok::<_, Errno>(())),
        }
    }
}

/// Returns the callback that notes an entry's record: the first record of its kind, or for an
/// allocation, which may need several records, the last.
fn marking(kept: &Kept, place: Place, rule: Rule, opcode: u32) -> Option<OnCommit> {
    let (kind, each) = match (rule, opcode) {
        (Rule::Record(kind), _) => (kind, false),
        (Rule::Data, op::SETATTR) => (RecordOp::Truncate, false),
        (Rule::Data, op::FALLOCATE) => (RecordOp::Fallocate, true),
        _ => return None,
    };
    let (area, life, marked) = (kept.area.clone(), kept.life, Cell::new(false));
    Some(Box::new(move |found, end, ino| {
        if found == kind as u8 && (!marked.replace(true) || each) {
            Journal::mark(&area, place, life, end, ino);
            steps::at(Step::Marked, opcode);
        }
    }))
}

/// Whether the change may clear set-user-id bits, which depends on its caller at that time.
fn may_clear_bits(request: &Request<'_>) -> bool {
    let mut args = Args::new(request.body);
    match request.header.opcode {
        op::WRITE => {
            args.take::<abi::WriteIn>().is_ok_and(|asked| asked.write_flags & abi::WRITE_KILL_SUIDGID != 0)
        }
        op::SETATTR => {
            args.take::<abi::SetattrIn>().is_ok_and(|asked| asked.valid & abi::fattr::KILL_SUIDGID != 0)
        }
        op::FALLOCATE => true,
        _ => false,
    }
}

/// The index of a pause's class: up to 1 ms, 2 ms, 4 ms and so on.
fn class_of(pause_ns: u64) -> usize {
    (pause_ns.div_ceil(1_000_000).max(1).next_power_of_two().ilog2() as usize).min(PAUSES - 1)
}

/// The number of pauses in each class that has any.
fn counted(pauses: &[u64; PAUSES]) -> Value {
    let classes = pauses.iter().enumerate().filter(|(_, count)| **count > 0);
    Value::Object(classes.map(|(class, count)| (format!("{}ms", 1u64 << class), json!(count))).collect())
}

/// Records the pause since the death or the handover. Returns the history for
/// `system.kedgefs.info`.
fn note_pause(area: &Area, deaths: &Deaths, redone: u64, life: &Life) -> Value {
    let mut head: Head = area.read(0);
    if life.is_second() && head.is_handed_over(deaths) {
        let pause = now_ns().saturating_sub(head.handover_ns);
        head.handover_pauses[class_of(pause)] += 1;
        head.handovers += 1;
        head.handover_last_ns = pause;
        head.handover_max_ns = head.handover_max_ns.max(pause);
        area.put(at!(handover_pauses), head.handover_pauses.as_bytes());
        area.store(at!(handover_last_ns), head.handover_last_ns);
        area.store(at!(handover_max_ns), head.handover_max_ns);
        // Stored last, because the keeper waits for this number and then reads the others.
        area.store(at!(handovers), head.handovers);
        tracing::info!(pause_ms = pause / 1_000_000, redone, "another server goes on after a handover");
    } else if life.is_second() && deaths.deaths > 0 {
        let pause = now_ns().saturating_sub(deaths.at_ns);
        head.pauses[class_of(pause)] += 1;
        head.pause_last_ns = pause;
        head.pause_max_ns = head.pause_max_ns.max(pause);
        head.redone += redone;
        area.put(at!(pauses), head.pauses.as_bytes());
        area.store(at!(pause_max_ns), head.pause_max_ns);
        area.store(at!(pause_last_ns), head.pause_last_ns);
        area.store(at!(redone), head.redone);
        tracing::warn!(
            pause_ms = pause / 1_000_000,
            redone,
            signal = deaths.signal,
            "another server goes on in place of one that died"
        );
    }
    json!({
        "life": life.number,
        "deaths": deaths.deaths,
        "last_signal": deaths.signal,
        "pause_last_ms": head.pause_last_ns / 1_000_000,
        "pause_max_ms": head.pause_max_ns / 1_000_000,
        "pauses": counted(&head.pauses),
        "redone": head.redone,
        "refused": head.poisoned,
        "failed_starts": deaths.failed_starts,
        "handovers": head.handovers,
        "handover_last_ms": head.handover_last_ns / 1_000_000,
        "handover_max_ms": head.handover_max_ns / 1_000_000,
        "handover_pauses": counted(&head.handover_pauses),
    })
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "power_tests.rs"]
mod power;
