//! A server that another one replaces when it dies, without any program noticing
//! (docs/rfcs/0038).
//!
//! The keeper, another process, holds the connection to the kernel, the lock on the image and an
//! [`Area`] of memory. The server notes in the area what a next one needs: each change of a program
//! ([`journal`]), how often the kernel knows each inode ([`pins`]), and what INIT negotiated. When
//! it dies, the keeper starts another one, which recovers the image, makes the changes again that
//! the log has lost ([`redo`]), and lets the kernel send again what has no reply
//! (FUSE_NOTIFY_RESEND). Of these requests, those whose change is made get their reply without
//! another change.
//!
//! [`class`] says which requests are journaled. What is not is made durable before its reply, or
//! refused.

mod answers;
pub mod area;
mod class;
mod journal;
mod pins;
mod redo;
mod steps;

pub use area::{Area, Deaths};

use crate::abi::{self, UNIQUE_RESEND, op, op_name};
use crate::args::Args;
use crate::ops::Ops;
use crate::server::Server;
use crate::transport::{Reply, Request};
use answers::{Answered, Answers};
use area::{Head, Negotiated, PAUSES, Suspect, at, now_ns};
use class::{Class, Rule};
use journal::{DONE, Journal, Outcome, Place, REFUSED};
use kedge_base::witness::{self, Witness};
use kedge_base::{Clock, Ino, IoBuf, Lsn, SystemClock};
use parking_lot::Mutex;
use pins::Pins;
use serde_json::{Value, json};
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use steps::{Broken, Step};
use zerocopy::IntoBytes;

/// Deaths after which the request that causes them is refused.
const DEATHS_MAX: u32 = 3;
/// Locks that order the changes of one file.
const STRIPES: usize = 256;

/// The life of one server.
#[derive(Clone)]
pub struct Life {
    area: Arc<Area>,
    number: u64,
}

impl Life {
    /// Begins a life in the area that the keeper has made.
    pub fn begin(area: Area) -> io::Result<Life> {
        let head: Head = area.read(0)?;
        let number = head.life + 1;
        area.put(cutoff_at(number), &0u64.to_ne_bytes())?;
        area.put(at!(life), &number.to_ne_bytes())?;
        Ok(Life { area: Arc::new(area), number })
    }

    /// Whether there was a server before.
    pub fn is_second(&self) -> bool {
        self.number > 1
    }

    /// Recovery found that the log ends at `end`, and nothing was appended to it yet. That is the
    /// cut-off of the last life, and of lives that ended before they appended anything.
    pub fn recovered(&self, end: Lsn) -> io::Result<()> {
        let head: Head = self.area.read(0)?;
        for life in self.number.saturating_sub(area::LIVES as u64 - 1).max(1)..self.number {
            if head.cutoffs[slot_of(life)] == 0 {
                self.area.put(cutoff_at(life), &end.0.to_ne_bytes())?;
            }
        }
        Ok(())
    }
}

fn slot_of(life: u64) -> usize {
    (life % area::LIVES as u64) as usize
}

fn cutoff_at(life: u64) -> u64 {
    at!(cutoffs) + slot_of(life) as u64 * 8
}

/// What a server has to keep.
pub(crate) struct Kept {
    area: Arc<Area>,
    life: u64,
    journal: Journal,
    pins: Mutex<Pins>,
    answers: Mutex<Answers>,
    stripes: Vec<Mutex<()>>,
    /// Held by a request that may have killed its server.
    alone: Mutex<()>,
    /// The last death was none that a user asks for, so that a request may be its cause.
    crashed: bool,
    /// The request that was served alone when its server died.
    suspect: Suspect,
    /// Changes are being made again.
    redoing: AtomicBool,
    workers: AtomicU32,
    /// For `system.kedgefs.info`.
    history: Value,
}

thread_local! {
    static WORKER: Cell<u32> = const { Cell::new(0) };
}

impl Kept {
    fn start(life: &Life) -> io::Result<Kept> {
        let Life { area, number } = life.clone();
        let head: Head = area.read(0)?;
        let deaths = area.deaths()?;
        let crashed = !matches!(deaths.signal.cast_signed(), 0 | libc::SIGKILL | libc::SIGTERM);
        let suspect = match head.suspect {
            Suspect { under_way: 1, deaths, .. } if crashed => Suspect { deaths: deaths + 1, ..head.suspect },
            suspect => suspect,
        };
        let pins = Pins::load(&area)?;
        let answers = Answers::load(&area)?;
        Ok(Kept {
            journal: Journal::new(area.clone(), number),
            area,
            life: number,
            pins: Mutex::new(pins),
            answers: Mutex::new(answers),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            alone: Mutex::new(()),
            crashed,
            suspect,
            redoing: AtomicBool::new(false),
            workers: AtomicU32::new(0),
            history: Value::Null,
        })
    }

    /// The number of the calling thread.
    fn worker(&self) -> u32 {
        WORKER.with(|worker| {
            if worker.get() == 0 {
                worker.set(self.workers.fetch_add(1, Relaxed) + 1);
            }
            worker.get()
        })
    }

    pub(crate) fn negotiated(&self, now: Negotiated) -> io::Result<()> {
        self.area.put(at!(negotiated), now.as_bytes())
    }

    pub(crate) fn history(&self) -> &Value {
        &self.history
    }

    /// Notes a pin. The caller has the engine make it.
    pub(crate) fn pin(&self, ino: Ino) -> io::Result<()> {
        if self.redoing.load(Relaxed) { Ok(()) } else { self.pins.lock().add(&self.area, ino) }
    }

    pub(crate) fn is_redoing(&self) -> bool {
        self.redoing.load(Relaxed)
    }

    pub(crate) fn unpin(&self, ino: Ino, count: u64) {
        if let Err(e) = self.pins.lock().release(&self.area, ino, count) {
            tracing::error!("the keeper's memory cannot be written: {e}");
            std::process::abort();
        }
    }

    pub(crate) fn end(&self) {
        self.journal.end();
    }

    fn stripe(&self, ino: u64) -> &Mutex<()> {
        &self.stripes[ino as usize % STRIPES]
    }
}

impl<O: Ops> Server<O> {
    /// Takes the place of the server that died, if there was one: after that the image and this
    /// server are in a state in which all changes were made that had a reply. Then the caller lets
    /// the kernel send again what had none.
    pub(crate) fn resume(self, life: &Life) -> io::Result<Server<O>> {
        let head: Head = life.area.read(0)?;
        let mut server = self;
        server.kept = Some(Arc::new(Kept::start(life)?));
        server.writeback.store(head.negotiated.writeback != 0, Relaxed);
        server.acls.store(head.negotiated.acls != 0, Relaxed);
        server.flags_checked.store(head.negotiated.flags_checked != 0, Relaxed);
        let mut redone = 0;
        if life.is_second() {
            redone = server.redo()?;
        }
        let deaths = life.area.deaths()?;
        let history = note_pause(&life.area, &deaths, redone, life)?;
        let kept = server.kept.as_mut().and_then(Arc::get_mut).expect("not shared yet");
        kept.journal.clear()?;
        kept.history = history;
        Ok(server)
    }

    /// Frees what the journal no longer needs, until the server ends.
    pub(crate) fn recycle(kept: &Kept, ops: &O) {
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
            return self.serve_classed(kept, request, reply, out);
        }
        let unique = request.header.unique & !UNIQUE_RESEND;
        let answered = kept.answers.lock().take(unique).filter(|_| !steps::is_broken(Broken::AnswerRepeated));
        if let Some(answered) = answered {
            return self.answer_again(&answered, reply);
        }
        if !kept.crashed {
            return self.serve_classed(kept, request, reply, out);
        }
        let _alone = kept.alone.lock();
        let deaths = if kept.suspect.unique == unique { kept.suspect.deaths } else { 0 };
        let (node, opcode) = (request.header.nodeid, request.header.opcode);
        // The first death was before the request was served alone.
        if deaths + 1 >= DEATHS_MAX {
            tracing::error!(
                op = op_name(opcode),
                node,
                "the request has killed {DEATHS_MAX} servers, and is refused"
            );
            let head: io::Result<Head> = kept.area.read(0);
            let counted =
                head.and_then(|head| kept.area.put(at!(poisoned), &(head.poisoned + 1).to_ne_bytes()));
            if let Err(e) = counted {
                tracing::error!("the keeper's memory cannot be written: {e}");
            }
            return reply.err(libc::EIO);
        }
        let mark = |under_way| {
            let suspect = Suspect { unique, node, opcode, deaths, under_way };
            if let Err(e) = kept.area.put(at!(suspect), suspect.as_bytes()) {
                tracing::error!("the keeper's memory cannot be written: {e}");
            }
        };
        mark(1);
        self.serve_classed(kept, request, reply, out);
        mark(0);
    }

    fn serve_classed(&self, kept: &Arc<Kept>, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        match self.class(request) {
            Class::Free => self.dispatch(request, reply, out),
            Class::Refused(errno) => reply.err(errno),
            Class::Forced => {
                // What the journal holds must not be made again after this change.
                if let Err(errno) = kept.journal.barrier() {
                    return reply.err(errno);
                }
                let kept = kept.clone();
                let durable = move |error: i32, _: &[&[u8]]| match error {
                    0 => kept.journal.barrier().map_or_else(|errno| -errno, |()| 0),
                    error => error,
                };
                self.dispatch(request, reply.after(Box::new(durable)), out);
            }
            Class::Journaled(rule) => self.journal(kept, rule, request, reply, out),
        }
    }

    fn journal(&self, kept: &Arc<Kept>, rule: Rule, request: &Request<'_>, reply: Reply, out: &mut IoBuf) {
        // The kernel may write a page of a file beside a write(2). Their order in the journal must
        // be that of their effects.
        let ordered = !matches!(rule, Rule::Record(_));
        let _order = ordered.then(|| kept.stripe(request.header.nodeid).lock());
        let now = SystemClock::default().now();
        let place = match kept.journal.begin(request, now, kept.worker()) {
            Ok(place) => place,
            Err(errno) => return reply.err(errno),
        };
        steps::at(Step::Begun);
        let committed = match rule {
            Rule::Record(kind) => Some(marking(kept.area.clone(), place, kept.life, kind as u8)),
            _ => None,
        };
        let (ops, node, opcode) = (self.ops.clone(), request.header.nodeid, request.header.opcode);
        let clears = may_clear_bits(request);
        let noted = kept.clone();
        let finish = move |error: i32, parts: &[&[u8]]| {
            steps::at(Step::Made);
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
            steps::at(Step::Finished);
            error
        };
        let witness = Witness { time: Some(now), number: None, committed };
        let reply = reply.after(Box::new(finish));
        witness::during(witness, || self.dispatch(request, reply, out));
    }

    /// Replies to a request whose change was made by a server that died.
    fn answer_again(&self, answered: &Answered, reply: Reply) {
        use crate::errno::Errno;
        let ino = Ino(answered.ino);
        let attr = |ino| self.ops.getattr(ino).map_err(Errno::from);
        match answered.opcode {
            op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK => reply.finish(attr(ino).and_then(|attr| {
                // The pin precedes the outcome.
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

/// Notes the first record of this kind as that of the entry.
fn marking(area: Arc<Area>, place: Place, life: u64, kind: u8) -> Box<dyn Fn(u8, Lsn, Option<Ino>)> {
    let marked = Cell::new(false);
    Box::new(move |found, end, ino| {
        if found == kind && !marked.replace(true) {
            Journal::mark(&area, place, life, end, ino);
            steps::at(Step::Marked);
        }
    })
}

/// Whether the change may clear set-user-id bits, which depends on the caller of that moment.
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

/// Counts the pause since the death, and returns the history for `system.kedgefs.info`.
fn note_pause(area: &Area, deaths: &Deaths, redone: u64, life: &Life) -> io::Result<Value> {
    let mut head: Head = area.read(0)?;
    if life.is_second() && deaths.deaths > 0 {
        let pause = now_ns().saturating_sub(deaths.at_ns);
        let class = (pause.div_ceil(1_000_000).max(1).next_power_of_two().ilog2() as usize).min(PAUSES - 1);
        head.pauses[class] += 1;
        head.pause_last_ns = pause;
        head.pause_max_ns = head.pause_max_ns.max(pause);
        head.redone += redone;
        area.put(at!(pauses), head.pauses.as_bytes())?;
        area.put(at!(pause_max_ns), &head.pause_max_ns.to_ne_bytes())?;
        area.put(at!(pause_last_ns), &head.pause_last_ns.to_ne_bytes())?;
        area.put(at!(redone), &head.redone.to_ne_bytes())?;
        tracing::warn!(
            pause_ms = pause / 1_000_000,
            redone,
            signal = deaths.signal,
            "another server goes on in place of one that died"
        );
    }
    let classes = head.pauses.iter().enumerate().filter(|(_, count)| **count > 0);
    let pauses: serde_json::Map<String, Value> =
        classes.map(|(class, count)| (format!("{}ms", 1u64 << class), json!(count))).collect();
    Ok(json!({
        "life": life.number,
        "deaths": deaths.deaths,
        "last_signal": deaths.signal,
        "pause_last_ms": head.pause_last_ns / 1_000_000,
        "pause_max_ms": head.pause_max_ns / 1_000_000,
        "pauses": pauses,
        "redone": head.redone,
        "refused": head.poisoned,
    }))
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
