//! Replays a trace of the engine against the transition relation: each event must be allowed in the
//! state to which the earlier events have led.

use crate::engine::Engine;
use crate::event::{Appended, Event, Kind, Range, Span};
use crate::rule::Rule;
use kedge_base::Extent;
use kedge_base::trace::{self, Bytes, Commits, Noted};
use std::collections::BTreeMap;
use std::fmt;

/// Number of events that a violation shows before its own.
const SHOWN: usize = 12;

/// An event that a rule forbids.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    /// The index of the event in the trace.
    pub at: usize,
    /// The last events up to this one, with their threads.
    pub events: Vec<Noted>,
    pub state: Engine,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "event {} is against {:?}", self.at, self.rule)?;
        for (thread, event) in &self.events {
            writeln!(f, "  thread {thread}: {event:?}")?;
        }
        write!(f, "{:?}", self.state)
    }
}

/// What a trace contained.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub events: u64,
    pub mounts: u64,
    pub records: u64,
    pub log_writes: u64,
    pub checkpoints: u64,
    pub acks: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.events += other.events;
        self.mounts += other.mounts;
        self.records += other.records;
        self.log_writes += other.log_writes;
        self.checkpoints += other.checkpoints;
        self.acks += other.acks;
    }
}

/// The state of a replay. Before the first recovery of the trace there is no engine, and nothing is
/// checked.
#[derive(Default)]
struct Replay {
    engine: Option<Engine>,
    /// The epoch of the slot from which the last recovery started.
    before: u64,
    /// By thread: the content of the record that it appends next, and the number of edits of its
    /// current atomic write.
    commits: BTreeMap<u64, Commits>,
    atomic: BTreeMap<u64, usize>,
    counts: Counts,
}

/// Checks a trace: events in the order in which they were noted.
pub fn check(events: &[Noted]) -> Result<Counts, Box<Violation>> {
    let mut replay = Replay::default();
    for (at, (thread, noted)) in events.iter().enumerate() {
        replay.counts.events += 1;
        let Some(event) = replay.model_event(*thread, noted) else { continue };
        let Some(engine) = &mut replay.engine else { continue };
        if let Some(rule) = engine.forbids(&event, None) {
            let events = events[at.saturating_sub(SHOWN)..=at].to_vec();
            return Err(Box::new(Violation { rule, at, events, state: engine.clone() }));
        }
        engine.apply(&event);
    }
    Ok(replay.counts)
}

fn span(extent: Extent) -> Span {
    Span { start: extent.start.0, len: extent.blocks }
}

fn range(bytes: Bytes) -> Range {
    Range { file: bytes.ino.0, from: bytes.from, to: bytes.to }
}

impl Replay {
    /// Returns the model's event for a noted one, or `None` if it only prepares a later event.
    fn model_event(&mut self, thread: u64, noted: &trace::Event) -> Option<Event> {
        let event = match noted {
            trace::Event::Recovers { epoch, generation } => {
                self.before = epoch.0;
                // The head of the log follows in `Replayed`, the size of the ring in `Opened`.
                self.engine = Some(Engine::new(epoch.0, generation.0, 0, u64::MAX));
                self.commits.clear();
                self.atomic.clear();
                return None;
            }
            trace::Event::Replayed { head } => {
                let engine = self.engine.as_mut()?;
                *engine = Engine {
                    old_nodes: std::mem::take(&mut engine.old_nodes),
                    ..Engine::new(engine.epoch, engine.slot.generation, head.0, u64::MAX)
                };
                return None;
            }
            trace::Event::Commits(commits) => {
                self.commits.insert(thread, commits.clone());
                return None;
            }
            trace::Event::Atomic { edits } => {
                self.atomic.insert(thread, *edits);
                return None;
            }
            trace::Event::Opened { epoch, generation, head, ring } => {
                self.counts.mounts += 1;
                if let Some(engine) = &mut self.engine {
                    engine.ring = *ring;
                }
                let (epoch, generation, head) = (epoch.0, generation.0, head.0);
                Event::Opened { before: self.before, epoch, generation, head }
            }
            trace::Event::Append { start, end } => {
                self.counts.records += 1;
                let commits = self.commits.remove(&thread).unwrap_or_default();
                Event::Append { thread, record: self.appended(thread, commits, start.0, end.0) }
            }
            trace::Event::Placed(extent) => Event::Placed(span(*extent)),
            trace::Event::Unplaced(extent) => Event::Unplaced(span(*extent)),
            trace::Event::Wrote(extent) => Event::Wrote(span(*extent)),
            trace::Event::InPlace(bytes) => Event::InPlace { thread, range: range(*bytes) },
            trace::Event::Written { seq } => Event::Written { seq: *seq },
            trace::Event::Flushed { seq } => Event::Flushed { seq: *seq },
            trace::Event::Sealed { end } => Event::Sealed { end: end.0 },
            trace::Event::LogWrite { end } => {
                self.counts.log_writes += 1;
                Event::LogWrite { end: end.0 }
            }
            trace::Event::LogDone { end } => Event::LogDone { end: end.0 },
            trace::Event::Durable { lsn } => Event::Durable { lsn: lsn.0 },
            trace::Event::Ack { ino, called, seq } => {
                self.counts.acks += 1;
                Event::Ack { file: ino.0, called: called.0, seq: *seq, clean: true }
            }
            trace::Event::Discards(extent) => Event::Discard(span(*extent)),
            trace::Event::Cut { generation, lsn, tail } => {
                Event::Cut { generation: generation.0, lsn: lsn.0, tail: tail.0 }
            }
            trace::Event::NodeTaken(addr) => Event::NodeTaken { addr: addr.0 },
            trace::Event::NodeFreed { addr, born, current } => {
                Event::NodeFreed { addr: addr.0, born: born.0, generation: current.0 }
            }
            trace::Event::NodesWritten(generation) => Event::NodesWritten { generation: generation.0 },
            trace::Event::NodesFlushed(generation) => Event::NodesFlushed { generation: generation.0 },
            trace::Event::SlotWrite { generation, cut, tail } => {
                Event::SlotWrite { generation: generation.0, cut: cut.0, tail: tail.0 }
            }
            trace::Event::SlotDone(generation) => {
                self.counts.checkpoints += 1;
                Event::SlotDone { generation: generation.0 }
            }
            trace::Event::Copies(generation) => Event::Copies { generation: generation.0 },
            trace::Event::Tail(lsn) => Event::Tail { lsn: lsn.0 },
        };
        Some(event)
    }

    fn appended(&mut self, thread: u64, commits: Commits, start: u64, end: u64) -> Appended {
        // When an atomic write makes room for itself, records of writeback may precede its own
        // record. The number of edits stays until that one.
        let atomic =
            if commits.write_back || commits.data.is_empty() { None } else { self.atomic.remove(&thread) };
        let kind = match (commits.write_back, atomic) {
            (true, _) => Kind::WriteBack,
            (false, Some(_)) => Kind::Atomic,
            (false, None) => Kind::Change,
        };
        Appended {
            kind,
            whole: atomic.is_none_or(|edits| commits.data.len() >= edits),
            refers: commits.refers,
            start,
            end,
            touches: commits.inodes.iter().map(|ino| ino.0).collect(),
            data: commits.data.into_iter().map(range).collect(),
            voids: commits.voids.into_iter().map(range).collect(),
            takes: commits.takes.into_iter().map(span).collect(),
            frees: commits.frees.into_iter().map(span).collect(),
        }
    }
}
