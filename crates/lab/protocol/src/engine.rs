//! The state of the protocol while an image is mounted, and its transition relation: an event is a
//! transition if no rule forbids it in the state.

use crate::event::{Appended, Event, Kind, Range, Span};
use crate::rule::Rule;
use std::collections::BTreeMap;

/// Limit of log writes in flight.
const IN_FLIGHT_MAX: usize = 4;

/// A sealed batch of the log that is not yet part of the durable prefix.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Flight {
    pub start: u64,
    pub end: u64,
    /// The number of the last data write that had completed when the batch was sealed, if a record
    /// of the batch may refer to data; 0 otherwise.
    pub needs: u64,
    pub stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    Sealed,
    Writing,
    Done,
}

/// A range of log-resident data.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resident {
    pub range: Range,
    /// Start of the log write that holds the record.
    pub write_start: u64,
    /// End of the record that holds the data.
    pub end: u64,
    pub atomic: bool,
}

/// A checkpoint, from its cut on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Checkpoint {
    pub generation: u64,
    pub cut: u64,
    pub tail: u64,
    pub stage: CheckpointStage,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CheckpointStage {
    Cut,
    Written,
    Flushed,
    SlotWriting,
    Durable,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Engine {
    pub epoch: u64,
    pub tail: u64,
    pub durable: u64,
    /// Start of the open batch.
    pub base: u64,
    pub head: u64,
    /// Whether a record of the open batch may refer to data in place.
    pub refers: bool,
    /// Limit of the bytes between the tail and the head.
    pub ring: u64,
    pub flight: Vec<Flight>,
    pub written: u64,
    pub flushed: u64,
    /// Blocks that a record freed, and the end of that record. They stay here until the record is
    /// durable.
    pub quarantine: Vec<(Span, u64)>,
    /// Blocks that are allocated for a data write and that no record names yet, and whether the
    /// write has completed.
    pub placed: BTreeMap<u64, bool>,
    pub residents: Vec<Resident>,
    /// By thread: ranges written in place. The thread's next record must void what is resident of
    /// them.
    pub in_place: BTreeMap<u64, Vec<Range>>,
    /// By file: ends of the records that touched it: the last durable one, and all later ones.
    pub touched: BTreeMap<u64, Vec<u64>>,
    /// By address of a freed node slot: the generation whose checkpoint makes the slot free.
    pub old_nodes: BTreeMap<u64, u64>,
    /// The last durable checkpoint.
    pub slot: Checkpoint,
    pub running: Option<Checkpoint>,
}

impl Engine {
    pub fn new(epoch: u64, generation: u64, head: u64, ring: u64) -> Engine {
        Engine {
            epoch,
            tail: head,
            durable: head,
            base: head,
            head,
            refers: false,
            ring,
            flight: Vec::new(),
            written: 0,
            flushed: 0,
            quarantine: Vec::new(),
            placed: BTreeMap::new(),
            residents: Vec::new(),
            in_place: BTreeMap::new(),
            touched: BTreeMap::new(),
            old_nodes: BTreeMap::new(),
            slot: Checkpoint { generation, cut: head, tail: head, stage: CheckpointStage::Durable },
            running: None,
        }
    }

    /// The oldest log position at which log-resident data holds the tail.
    pub fn oldest_resident(&self) -> Option<u64> {
        self.residents.iter().map(|resident| resident.write_start).min()
    }

    pub fn is_resident(&self, range: &Range) -> bool {
        self.residents.iter().any(|resident| resident.range.overlaps(range))
    }

    /// The end of the last record that touched the file.
    pub fn last_touch(&self, file: u64) -> Option<u64> {
        self.touched.get(&file).and_then(|ends| ends.last().copied())
    }

    /// Returns the rule that forbids the event in this state. The rule `without` is not checked.
    pub fn forbids(&self, event: &Event, without: Option<Rule>) -> Option<Rule> {
        let rule = |rule: Rule, holds: bool| (!holds && without != Some(rule)).then_some(rule);
        match event {
            Event::Opened { before, epoch, .. } => rule(Rule::NewEpoch, epoch > before),
            Event::Placed(span) => {
                rule(Rule::BlockQuarantine, !self.quarantine.iter().any(|(freed, _)| freed.overlaps(*span)))
            }
            Event::Discard(span) => {
                rule(Rule::DiscardQuarantine, !self.quarantine.iter().any(|(freed, _)| freed.overlaps(*span)))
            }
            Event::InPlace { range, .. } => rule(
                Rule::AtomicHeldBack,
                !self.residents.iter().any(|r| r.atomic && r.end > self.durable && r.range.overlaps(range)),
            ),
            Event::Append { thread, record } => self.forbids_record(*thread, record, without),
            Event::LogWrite { end } => {
                let at = self.flight.iter().position(|flight| flight.end == *end)?;
                rule(Rule::FlushBeforeLogWrite, self.flushed >= self.flight[at].needs)
                    .or(rule(Rule::BoundedFlight, at < IN_FLIGHT_MAX))
            }
            Event::Durable { lsn } => rule(
                Rule::DurableIsPrefix,
                self.flight.iter().all(|flight| flight.end > *lsn || flight.stage == Stage::Done)
                    && *lsn <= self.base,
            ),
            Event::Ack { file, called, seq, clean } => {
                let ends = self.touched.get(file).map_or(&[][..], |ends| ends);
                let last = ends.iter().rev().find(|end| *end <= called);
                rule(Rule::WritebackBeforeAck, *clean)
                    .or(rule(Rule::ForceBeforeAck, last.is_none_or(|end| *end <= self.durable)))
                    .or(rule(Rule::FlushBeforeAck, *seq <= self.flushed))
            }
            Event::Cut { lsn, tail, .. } => rule(Rule::CutIsExact, *lsn == self.head && *lsn == self.base)
                .or(rule(
                    Rule::ResidentsHoldTail,
                    *tail <= *lsn && self.oldest_resident().is_none_or(|oldest| *tail <= oldest),
                )),
            Event::NodeTaken { addr } => rule(Rule::NodeQuarantine, !self.old_nodes.contains_key(addr)),
            Event::SlotWrite { generation, cut, tail } => {
                let running = self.running.as_ref()?;
                let same = running.generation == *generation && running.cut == *cut && running.tail == *tail;
                rule(Rule::FlushBeforeSlot, same && running.stage >= CheckpointStage::Flushed)
                    .or(rule(Rule::ForceBeforeSlot, *cut <= self.durable))
                    .or(rule(Rule::SlotFlip, generation % 2 != self.slot.generation % 2))
            }
            Event::Copies { generation } => rule(Rule::SlotBeforeCopies, *generation <= self.slot.generation),
            Event::Tail { lsn } => rule(Rule::SlotBeforeTail, *lsn <= self.slot.tail),
            _ => None,
        }
    }

    fn forbids_record(&self, thread: u64, record: &Appended, without: Option<Rule>) -> Option<Rule> {
        let rule = |rule: Rule, holds: bool| (!holds && without != Some(rule)).then_some(rule);
        let is_written = |block: u64| self.placed.get(&block) == Some(&true);
        let written = || record.takes.iter().flat_map(|span| span.blocks()).all(is_written);
        let in_place = self.in_place.get(&thread).map_or(&[][..], |ranges| ranges);
        let voided = || {
            let resident = in_place.iter().filter(|range| self.is_resident(range));
            resident.clone().all(|range| covers(&record.voids, range))
        };
        let names_data = record.kind == Kind::WriteBack;
        rule(Rule::OneOrder, record.start >= self.head && record.end > record.start)
            .or(rule(Rule::TailBoundsHead, record.end - self.tail <= self.ring))
            .or(rule(Rule::AtomicInOneRecord, record.whole))
            .or_else(|| rule(Rule::DataBeforeRecord, !names_data || written()))
            .or_else(|| rule(Rule::VoidResidents, !names_data || voided()))
    }

    /// Applies an event, even if a rule forbids it.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Opened { epoch, generation, head, .. } => {
                *self = Engine::new(*epoch, *generation, *head, self.ring);
            }
            Event::Placed(span) => self.placed.extend(span.blocks().map(|block| (block, false))),
            Event::Unplaced(span) => self.take(*span),
            Event::Wrote(span) => {
                for block in span.blocks() {
                    if let Some(written) = self.placed.get_mut(&block) {
                        *written = true;
                    }
                }
            }
            Event::InPlace { thread, range } if self.is_resident(range) => {
                self.in_place.entry(*thread).or_default().push(*range);
            }
            Event::Written { seq } => self.written = self.written.max(*seq),
            Event::Flushed { seq } => self.flushed = self.flushed.max(*seq),
            Event::Append { thread, record } => self.append(*thread, record),
            Event::Sealed { end } => self.seal(*end),
            Event::LogWrite { end } => self.stage(*end, Stage::Writing),
            Event::LogDone { end } => self.stage(*end, Stage::Done),
            Event::Durable { lsn } => self.durable_to(*lsn),
            Event::Cut { generation, lsn, tail } => {
                let (generation, stage) = (*generation, CheckpointStage::Cut);
                self.running = Some(Checkpoint { generation, cut: *lsn, tail: *tail, stage });
            }
            Event::NodeFreed { addr, born, generation } if born != generation => {
                self.old_nodes.insert(*addr, *generation);
            }
            Event::NodesWritten { .. } => self.checkpoint_at(CheckpointStage::Written),
            Event::NodesFlushed { .. } => self.checkpoint_at(CheckpointStage::Flushed),
            Event::SlotWrite { .. } => self.checkpoint_at(CheckpointStage::SlotWriting),
            Event::SlotDone { generation } => {
                if let Some(running) = self.running.take() {
                    self.slot = Checkpoint { stage: CheckpointStage::Durable, ..running };
                }
                self.old_nodes.retain(|_, until| *until > *generation);
            }
            Event::Tail { lsn } => self.tail = self.tail.max(*lsn),
            Event::InPlace { .. }
            | Event::NodeFreed { .. }
            | Event::NodeTaken { .. }
            | Event::Ack { .. }
            | Event::Discard(_)
            | Event::Copies { .. } => {}
        }
    }

    fn append(&mut self, thread: u64, record: &Appended) {
        let end = record.end;
        record.takes.iter().for_each(|span| self.take(*span));
        self.quarantine.extend(record.frees.iter().map(|span| (*span, end)));
        for range in record.voids.iter().chain(&record.data) {
            self.void(range);
        }
        let (write_start, atomic) = (self.base, record.kind == Kind::Atomic);
        let residents = record.data.iter().map(|range| Resident { range: *range, write_start, end, atomic });
        self.residents.extend(residents);
        self.residents.sort_by_key(|resident| resident.range);
        if record.kind == Kind::WriteBack {
            self.in_place.remove(&thread);
        }
        for file in &record.touches {
            let ends = self.touched.entry(*file).or_default();
            ends.push(end);
        }
        self.head = end;
        self.refers |= record.refers;
    }

    /// Removes blocks from `placed`: a record names them, or they were given back.
    fn take(&mut self, span: Span) {
        for block in span.blocks() {
            self.placed.remove(&block);
        }
    }

    /// Removes a range from the log-resident ones.
    fn void(&mut self, range: &Range) {
        let (hit, mut kept): (Vec<_>, Vec<_>) =
            self.residents.drain(..).partition(|resident| resident.range.overlaps(range));
        for resident in hit {
            let Range { file, from, to } = resident.range;
            if from < range.from {
                kept.push(Resident { range: Range { file, from, to: range.from }, ..resident.clone() });
            }
            if to > range.to {
                kept.push(Resident { range: Range { file, from: range.to, to }, ..resident });
            }
        }
        self.residents = kept;
    }

    fn seal(&mut self, end: u64) {
        if self.head > self.base {
            let (start, needs) = (self.base, if self.refers { self.written } else { 0 });
            self.flight.push(Flight { start, end, needs, stage: Stage::Sealed });
            self.base = end;
            self.head = end;
            self.refers = false;
        }
    }

    fn stage(&mut self, end: u64, stage: Stage) {
        if let Some(flight) = self.flight.iter_mut().find(|flight| flight.end == end) {
            flight.stage = stage;
        }
    }

    fn durable_to(&mut self, lsn: u64) {
        self.durable = self.durable.max(lsn);
        let durable = self.durable;
        self.flight.retain(|flight| flight.end > durable || flight.stage != Stage::Done);
        self.quarantine.retain(|(_, end)| *end > durable);
        for ends in self.touched.values_mut() {
            // The last durable end is kept, since it shows that there was a record at all.
            let durable_ones = ends.iter().filter(|end| **end <= durable).count();
            ends.drain(..durable_ones.saturating_sub(1));
        }
    }

    fn checkpoint_at(&mut self, stage: CheckpointStage) {
        if let Some(running) = &mut self.running {
            running.stage = stage;
        }
    }
}

/// Whether the ranges together cover `range`.
fn covers(ranges: &[Range], range: &Range) -> bool {
    let mut inside: Vec<&Range> = ranges.iter().filter(|other| other.overlaps(range)).collect();
    inside.sort();
    let mut at = range.from;
    for other in inside {
        if other.from > at {
            return false;
        }
        at = at.max(other.to);
    }
    at >= range.to
}
