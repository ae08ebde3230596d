//! The exploration's state: medium, engine and power, and the possible next steps.

use crate::engine::{CheckpointStage, Engine, Stage};
use crate::event::{Appended, Event, Kind, Range, Span};
use crate::history::{Done, History, content};
use crate::medium::{BLOCKS, FILES, LogWrite, Medium, NODES, Node, Record, Slot, Tree};
use crate::recovery::{Recovered, apply, recover};
use crate::rule::{Guarantee, Rule};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of crash states that were judged, in all explorations of the process.
pub static CRASH_STATES: AtomicU64 = AtomicU64::new(0);

/// The file number in records that touch only metadata.
const ITEMS: u64 = 100;

/// A file in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct File {
    pub value: u8,
    pub dirty: bool,
    /// The number of the last data write to the file.
    pub seq: u64,
    /// The block to which the content was written, until a record names it.
    pub put: Option<u8>,
}

/// An open image.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mounted {
    pub engine: Engine,
    pub files: [File; FILES],
    pub tree: Tree,
    /// The records of the open batch, and of sealed batches whose log write has not begun.
    pub open: Vec<Record>,
    pub sealed: Vec<Vec<Record>>,
    /// The tree that the running checkpoint writes, and the address of its node.
    pub frozen: Option<(Tree, u8)>,
    /// The address of the last durable checkpoint's node.
    pub node: u8,
    /// The second value of an atomic write whose first of two records is appended.
    pub half: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecoveryStage {
    Written,
    SlotWriting,
}

/// A recovery that has begun to write to the medium.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recovering {
    pub files: [u8; FILES],
    pub head: u64,
    pub tree: Tree,
    /// The slot that the recovery writes.
    pub slot: Slot,
    pub stage: RecoveryStage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Mounted(Box<Mounted>),
    /// Power has failed.
    Down,
    Recovering(Box<Recovering>),
}

/// How many more operations, checkpoints, crashes and discards may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    pub operations: u8,
    pub checkpoints: u8,
    pub crashes: u8,
    pub discards: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub phase: Phase,
    pub medium: Medium,
    pub history: History,
    pub left: Left,
    /// Number of operations so far.
    pub number: u8,
    /// The guarantee that the state after the last crash breaks.
    pub broken: Option<Guarantee>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    // Operations.
    Write(u8),
    Items,
    Remove(u8),
    Atomic,
    AtomicRest,
    // Writeback of their data.
    LogData(u8),
    Put(u8),
    Name { file: u8, voids: bool },
    NameFirst(u8),
    Discard(u8),
    // The log and the device.
    Flush,
    LogWrite,
    LogDone(u64),
    // Checkpoints.
    Cut { generation: u64, lsn: u64, tail: u64, node: u8 },
    SlotWrite,
    SlotDone,
    Tail(u64),
    // Power and recovery.
    Crash(Box<Medium>),
    RecoveryWrites { node: u8, overlay: bool, epoch: u64 },
    RecoverySlot,
    RecoveryDone,
}

/// The range of a whole file.
fn whole(file: u8) -> Range {
    Range { file: u64::from(file), from: 0, to: 1 }
}

fn block(number: u8) -> Span {
    Span { start: u64::from(number), len: 1 }
}

fn record(kind: Kind, engine: &Engine, touches: &[u64]) -> Appended {
    let (start, end) = (engine.head, engine.head + 1);
    let touches = touches.to_vec();
    Appended {
        kind,
        whole: true,
        refers: true,
        start,
        end,
        touches,
        data: Vec::new(),
        voids: Vec::new(),
        takes: Vec::new(),
        frees: Vec::new(),
    }
}

impl Mounted {
    fn new(epoch: u64, generation: u64, head: u64, ring: u64, tree: Tree, node: u8) -> Mounted {
        Mounted {
            engine: Engine::new(epoch, generation, head, ring),
            files: Default::default(),
            tree,
            open: Vec::new(),
            sealed: Vec::new(),
            frozen: None,
            node,
            half: None,
        }
    }

    fn is_resident(&self, file: u8) -> bool {
        self.engine.is_resident(&whole(file))
    }

    /// Returns the events and the record of an action that appends one, or `None` for other
    /// actions.
    fn appends(&self, action: &Action, value: u8) -> Option<(Vec<Event>, Record)> {
        let engine = &self.engine;
        let (record, appended, mut before) = match *action {
            Action::Items => {
                // It stands for the records of the engine that refer to no data, too.
                let appended = Appended { refers: false, ..record(Kind::Change, engine, &[ITEMS]) };
                (Record::Items(value), appended, vec![])
            }
            Action::Remove(file) => {
                let mut appended = record(Kind::Change, engine, &[u64::from(file)]);
                appended.voids.push(whole(file));
                appended.frees.extend(self.tree.blocks[usize::from(file)].map(block));
                (Record::Remove { file }, appended, vec![])
            }
            Action::Atomic | Action::AtomicRest => {
                let mut appended = record(Kind::Atomic, engine, &[0, 1]);
                let rest = matches!(action, Action::AtomicRest);
                let both = std::array::from_fn(|file| Some(content(file as u8, value)));
                let values = if rest { [None, self.half] } else { both };
                let present = (0..FILES as u8).filter(|file| values[usize::from(*file)].is_some());
                appended.data.extend(present.map(whole));
                (Record::Data(values), appended, vec![])
            }
            Action::LogData(file) => {
                let mut appended = record(Kind::Change, engine, &[u64::from(file)]);
                appended.data.push(whole(file));
                let mut values = [None; FILES];
                values[usize::from(file)] = Some(self.files[usize::from(file)].value);
                (Record::Data(values), appended, vec![])
            }
            Action::Name { file, voids } => {
                let mut appended = record(Kind::WriteBack, engine, &[u64::from(file)]);
                let mapped = self.tree.blocks[usize::from(file)].is_some();
                let put = self.files[usize::from(file)].put?;
                appended.takes.extend((!mapped).then_some(block(put)));
                appended.voids.extend(voids.then_some(whole(file)));
                (Record::Map { file, block: (!mapped).then_some(put), voids }, appended, vec![])
            }
            Action::NameFirst(file) => {
                let place = self.place(None)?;
                let mut appended = record(Kind::WriteBack, engine, &[u64::from(file)]);
                appended.takes.push(block(place));
                let named = Record::Map { file, block: Some(place), voids: false };
                (named, appended, vec![Event::Placed(block(place))])
            }
            _ => return None,
        };
        let thread = appended.touches[0];
        before.push(Event::Append { thread, record: appended });
        Some((before, record))
    }

    /// The first block that may be allocated for data.
    fn place(&self, without: Option<Rule>) -> Option<u8> {
        let owned = |number: &u8| self.tree.blocks.contains(&Some(*number));
        let placed = |number: &u8| self.files.iter().any(|file| file.put == Some(*number));
        (0..BLOCKS as u8).find(|number| {
            !owned(number)
                && !placed(number)
                && self.engine.forbids(&Event::Placed(block(*number)), without).is_none()
        })
    }

    fn push(&mut self, events: &[Event], record: Record) {
        events.iter().for_each(|event| self.engine.apply(event));
        apply(&mut self.tree, record, false);
        self.open.push(record);
    }

    fn seal(&mut self) {
        if !self.open.is_empty() {
            self.engine.apply(&Event::Sealed { end: self.engine.head });
            self.sealed.push(std::mem::take(&mut self.open));
        }
    }
}

/// Whether the rules allow the events, one after another. The rule `without` is not checked.
fn allowed(engine: &Engine, events: &[Event], without: Option<Rule>) -> bool {
    let mut engine = std::borrow::Cow::Borrowed(engine);
    for (i, event) in events.iter().enumerate() {
        if engine.forbids(event, without).is_some() {
            return false;
        }
        if i + 1 < events.len() {
            engine.to_mut().apply(event);
        }
    }
    true
}

impl World {
    /// A new image, mounted.
    pub fn new(ring: usize, left: Left) -> World {
        let tree = Tree::default();
        let mounted = Mounted::new(1, 0, 0, ring as u64, tree, 0);
        let mut medium = Medium::new(ring);
        medium.slots[0] = medium.slots[0].map(|slot| Slot { epoch: 1, ..slot });
        let history = History::new([0; FILES], 0, tree);
        World { phase: Phase::Mounted(Box::new(mounted)), medium, history, left, number: 0, broken: None }
    }

    /// Lists the possible next steps of the protocol, in which the rule `without` is missing.
    pub fn actions(&self, without: Option<Rule>, out: &mut Vec<Action>) {
        if self.broken.is_some() {
            return;
        }
        match &self.phase {
            Phase::Mounted(mounted) => {
                self.operations(mounted, without, out);
                self.writes(mounted, without, out);
                self.checkpoint(mounted, without, out);
                self.crash(without, out);
            }
            Phase::Down if self.left.crashes > 0 => self.recovery(without, out),
            Phase::Down => {}
            Phase::Recovering(recovering) => {
                out.push(match recovering.stage {
                    RecoveryStage::Written => Action::RecoverySlot,
                    RecoveryStage::SlotWriting => Action::RecoveryDone,
                });
                self.crash(without, out);
            }
        }
    }

    /// Lists the crashes. Nothing follows the last crash, so of its states only those are listed
    /// that break a guarantee.
    fn crash(&self, without: Option<Rule>, out: &mut Vec<Action>) {
        if self.left.crashes == 0 {
            return;
        }
        let media = self.medium.crashes();
        CRASH_STATES.fetch_add(media.len() as u64, Ordering::Relaxed);
        let last = self.left.crashes == 1;
        let is_step = |medium: &Medium| !last || self.judge(medium, without).is_some();
        out.extend(media.into_iter().filter(is_step).map(|medium| Action::Crash(Box::new(medium))));
    }

    /// The guarantee that a state after a crash breaks.
    fn judge(&self, medium: &Medium, without: Option<Rule>) -> Option<Guarantee> {
        self.history.judge(medium, &recover(medium, without)).err()
    }

    /// Whether a record of metadata can be appended now, or the log is full.
    pub fn takes_metadata(&self, without: Option<Rule>) -> bool {
        let Phase::Mounted(mounted) = &self.phase else { return true };
        let engine = &mounted.engine;
        let full = engine.head + 1 - engine.tail > engine.ring;
        full || self.may_append(mounted, &Action::Items, without)
    }

    fn may_append(&self, mounted: &Mounted, action: &Action, without: Option<Rule>) -> bool {
        // Only without this rule does a record of metadata wait for dirty data.
        let waits = without == Some(Rule::NoWaitForData) && matches!(action, Action::Items);
        if waits && mounted.files.iter().any(|file| file.dirty) {
            return false;
        }
        let Some((events, _)) = mounted.appends(action, self.number + 1) else { return false };
        allowed(&mounted.engine, &events, without)
    }

    fn operations(&self, mounted: &Mounted, without: Option<Rule>, out: &mut Vec<Action>) {
        let files = 0..FILES as u8;
        let file = |number: u8| &mounted.files[usize::from(number)];
        let mut append = |action: Action| {
            if self.may_append(mounted, &action, without) {
                out.push(action);
            }
        };
        if mounted.half.is_some() {
            append(Action::AtomicRest);
        }
        for number in files.clone() {
            let is_new = mounted.tree.blocks[usize::from(number)].is_none() || mounted.is_resident(number);
            if file(number).put.is_some() {
                append(Action::Name { file: number, voids: mounted.is_resident(number) });
                if mounted.is_resident(number) {
                    append(Action::Name { file: number, voids: false });
                }
            } else if file(number).dirty && mounted.half.is_none() {
                if is_new {
                    append(Action::LogData(number));
                }
                if is_new && !mounted.is_resident(number) {
                    append(Action::NameFirst(number));
                }
            }
        }
        if self.left.operations > 0 && mounted.half.is_none() {
            append(Action::Items);
            let idle = |number: u8| file(number).put.is_none();
            if files.clone().all(idle) {
                append(Action::Atomic);
            }
            for number in files.clone().filter(|number| idle(*number) && file(*number).value != 0) {
                append(Action::Remove(number));
            }
            out.extend(files.map(Action::Write));
        }
    }

    fn writes(&self, mounted: &Mounted, without: Option<Rule>, out: &mut Vec<Action>) {
        let engine = &mounted.engine;
        for number in 0..FILES as u8 {
            let file = &mounted.files[usize::from(number)];
            let range = whole(number);
            let waits = file.dirty || mounted.is_resident(number);
            let in_place = Event::InPlace { thread: u64::from(number), range };
            let placed = mounted.tree.blocks[usize::from(number)].or_else(|| mounted.place(without));
            if file.put.is_none()
                && waits
                && placed.is_some()
                && mounted.half.is_none()
                && engine.forbids(&in_place, without).is_none()
            {
                out.push(Action::Put(number));
            }
        }
        if self.medium.has_unflushed() {
            out.push(Action::Flush);
        }
        if self.left.discards > 0 {
            let owned = |number: &u8| {
                mounted.tree.blocks.contains(&Some(*number))
                    || mounted.files.iter().any(|file| file.put == Some(*number))
            };
            let free = (0..BLOCKS as u8).filter(|number| !owned(number));
            let may = |number: &u8| engine.forbids(&Event::Discard(block(*number)), without).is_none();
            out.extend(free.filter(may).map(Action::Discard));
        }
        let mut next = mounted.clone();
        if next.sealed.is_empty() {
            next.seal();
        }
        if let Some(flight) = next.engine.flight.iter().find(|flight| flight.stage == Stage::Sealed) {
            let event = Event::LogWrite { end: flight.end };
            let room = self.medium.log_writes.len() < 2;
            if room && next.engine.forbids(&event, without).is_none() {
                out.push(Action::LogWrite);
            }
        }
        let writing = engine.flight.iter().filter(|flight| flight.stage == Stage::Writing);
        out.extend(writing.map(|flight| Action::LogDone(flight.end)));
    }

    fn checkpoint(&self, mounted: &Mounted, without: Option<Rule>, out: &mut Vec<Action>) {
        let engine = &mounted.engine;
        let Some(running) = &engine.running else {
            if self.left.checkpoints > 0 {
                self.cuts(mounted, without, out);
            }
            return;
        };
        let tail = Event::Tail { lsn: running.tail };
        if running.tail > engine.tail && engine.forbids(&tail, without).is_none() {
            out.push(Action::Tail(running.tail));
        }
        if running.stage == CheckpointStage::SlotWriting {
            out.push(Action::SlotDone);
        }
        let (generation, cut, tail) = (running.generation, running.cut, running.tail);
        let slot = Event::SlotWrite { generation, cut, tail };
        let written = (CheckpointStage::Written..CheckpointStage::SlotWriting).contains(&running.stage);
        if written && engine.forbids(&slot, without).is_none() {
            out.push(Action::SlotWrite);
        }
    }

    fn cuts(&self, mounted: &Mounted, without: Option<Rule>, out: &mut Vec<Action>) {
        let mut sealed = mounted.clone();
        sealed.seal();
        let generation = mounted.engine.slot.generation + 1;
        let mut candidates = vec![(generation, &sealed, sealed.engine.head)];
        if mounted.engine.head > mounted.engine.base {
            // A cut below the head, although the tree already contains the records above the cut.
            // `CutIsExact` forbids it.
            candidates.push((generation, mounted, mounted.engine.base));
        }
        if without == Some(Rule::SlotFlip) {
            candidates.push((generation + 1, &sealed, sealed.engine.head));
        }
        for (generation, at, lsn) in candidates {
            let held = at.engine.oldest_resident().map_or(lsn, |oldest| oldest.min(lsn));
            let tails = if held == lsn { vec![lsn] } else { vec![held, lsn] };
            for tail in tails {
                for node in 0..NODES as u8 {
                    let addr = u64::from(mounted.node);
                    let born = mounted.engine.slot.generation;
                    let events = [
                        Event::NodeFreed { addr, born, generation },
                        Event::NodeTaken { addr: u64::from(node) },
                        Event::Cut { generation, lsn, tail },
                    ];
                    if allowed(&at.engine, &events, without) {
                        out.push(Action::Cut { generation, lsn, tail, node });
                    }
                }
            }
        }
    }

    fn recovery(&self, without: Option<Rule>, out: &mut Vec<Action>) {
        let Ok(Recovered { slot, overlay, .. }) = recover(&self.medium, without) else { return };
        for epoch in [slot.epoch + 1, slot.epoch] {
            let opened =
                Event::Opened { before: slot.epoch, epoch, generation: slot.generation + 1, head: 0 };
            if Engine::new(0, 0, 0, 0).forbids(&opened, without).is_some() {
                continue;
            }
            for node in 0..NODES as u8 {
                if node == slot.node && without != Some(Rule::NodeQuarantine) {
                    continue;
                }
                out.push(Action::RecoveryWrites { node, overlay: true, epoch });
                if without == Some(Rule::OverlayBeforeSlot) && overlay.iter().any(Option::is_some) {
                    out.push(Action::RecoveryWrites { node, overlay: false, epoch });
                }
            }
        }
    }

    /// Returns the state after an action.
    pub fn after(&self, action: Action, without: Option<Rule>) -> World {
        let mut world = self.clone();
        match action {
            Action::Crash(medium) => world.fail(*medium, without),
            Action::RecoveryWrites { node, overlay, epoch } => {
                world.recovery_writes(node, overlay, epoch, without);
            }
            Action::RecoverySlot => {
                // The flush and the begin of the slot write are one step: a crash between them
                // leaves only states that a crash before the flush may leave, too.
                if without != Some(Rule::FlushBeforeSlot) {
                    world.medium.flush();
                }
                if let Phase::Recovering(recovering) = &world.phase {
                    let slot = recovering.slot;
                    world.medium.slot_write = Some(((slot.generation % 2) as u8, slot));
                }
                world.set_recovery(RecoveryStage::SlotWriting);
            }
            Action::RecoveryDone => world.mount(without),
            action => {
                if let Phase::Mounted(mounted) = &self.phase {
                    let mut mounted = mounted.clone();
                    world.step(&mut mounted, action, without);
                    world.settle(&mut mounted, without);
                    world.phase = Phase::Mounted(mounted);
                }
            }
        }
        world
    }

    fn set_recovery(&mut self, stage: RecoveryStage) {
        if let Phase::Recovering(recovering) = &mut self.phase {
            recovering.stage = stage;
        }
    }

    fn fail(&mut self, medium: Medium, without: Option<Rule>) {
        self.medium = medium;
        self.phase = Phase::Down;
        self.left.crashes -= 1;
        self.broken = self.judge(&self.medium, without);
    }

    /// Writes log-resident data in place, and the node of the recovery's checkpoint.
    fn recovery_writes(&mut self, node: u8, overlay: bool, epoch: u64, without: Option<Rule>) {
        let Ok(found) = recover(&self.medium, without) else { return };
        let files = std::array::from_fn(|file| found.file(&self.medium, file));
        let mut tree = found.tree;
        let values = found.overlay.iter().enumerate().filter_map(|(file, value)| Some((file, (*value)?)));
        for (file, value) in values.filter(|_| overlay) {
            let free = (0..BLOCKS as u8).find(|number| !tree.blocks.contains(&Some(*number)));
            let place = tree.blocks[file].or(free).expect("there is a block for each file");
            self.medium.blocks[usize::from(place)].write(value);
            tree.blocks[file] = Some(place);
        }
        let (generation, head) = (found.slot.generation + 1, found.head);
        // If this recovery is interrupted, the next must find the same state, from the old slot or
        // the new.
        self.history = History::new(files, head, found.tree);
        self.history.trees.push((head, tree));
        self.medium.nodes[usize::from(node)].1 = Some(Node { generation, tree });
        let slot = Slot { generation, epoch, cut: head, tail: head, node };
        let recovering = Recovering { files, head, tree, slot, stage: RecoveryStage::Written };
        self.phase = Phase::Recovering(Box::new(recovering));
    }

    /// Mounts the image after the recovery's slot is durable. Removes data to which nothing refers
    /// and restarts the numbers, so that equivalent states compare equal.
    fn mount(&mut self, without: Option<Rule>) {
        let Phase::Recovering(recovering) = &self.phase else { return };
        let Recovering { files, head, tree, slot, .. } = (**recovering).clone();
        self.medium.slot_done();
        let ring = self.medium.ring.len() as u64;
        let (mut head, mut slot) = (head, slot);
        if without != Some(Rule::NewEpoch) {
            self.medium.ring.fill(None);
            head %= ring;
            slot = Slot { generation: slot.generation % 2, epoch: 1, cut: head, tail: head, node: slot.node };
        }
        self.medium.slots = [None; 2];
        self.medium.slots[(slot.generation % 2) as usize] = Some(slot);
        for (at, (durable, written)) in self.medium.nodes.iter_mut().enumerate() {
            let node = Node { generation: slot.generation, tree };
            *durable = durable.filter(|_| at == usize::from(slot.node)).map(|_| node);
            *written = written.filter(|_| at == usize::from(slot.node)).map(|_| node);
        }
        for (at, block) in self.medium.blocks.iter_mut().enumerate() {
            if !tree.blocks.contains(&Some(at as u8)) {
                *block = crate::medium::Block::EMPTY;
            }
        }
        let mut mounted = Mounted::new(slot.epoch, slot.generation, head, ring, tree, slot.node);
        for (file, value) in mounted.files.iter_mut().zip(files) {
            file.value = value;
        }
        self.history = History::new(files, head, tree);
        self.phase = Phase::Mounted(Box::new(mounted));
    }

    fn step(&mut self, mounted: &mut Mounted, action: Action, without: Option<Rule>) {
        let value = self.number + 1;
        let appends = mounted.appends(&action, value);
        match action {
            Action::Write(number) => {
                let file = &mut mounted.files[usize::from(number)];
                (file.value, file.dirty) = (content(number, value), true);
                self.operation(Done::Write { file: number, number: value });
            }
            Action::Items => self.operation(Done::Items),
            Action::Remove(number) => {
                mounted.files[usize::from(number)] = File::default();
                self.operation(Done::Remove { file: number });
            }
            Action::Atomic => {
                for (number, file) in (0..).zip(&mut mounted.files) {
                    (file.value, file.dirty) = (content(number, value), false);
                }
                self.operation(Done::Atomic { number: value });
            }
            Action::AtomicRest => mounted.half = None,
            Action::LogData(number) => mounted.files[usize::from(number)].dirty = false,
            Action::Put(number) => self.put(mounted, number, without),
            Action::Name { file, .. } => mounted.files[usize::from(file)].put = None,
            Action::NameFirst(_) => {}
            Action::Discard(number) => {
                self.left.discards -= 1;
                self.medium.blocks[usize::from(number)].write(crate::medium::GARBAGE);
            }
            Action::Flush => {
                self.medium.flush();
                let seq = mounted.engine.written;
                mounted.engine.apply(&Event::Flushed { seq });
                let running = mounted.engine.running.as_ref();
                if let Some(running) = running.filter(|running| running.stage == CheckpointStage::Written) {
                    let generation = running.generation;
                    mounted.engine.apply(&Event::NodesFlushed { generation });
                }
            }
            Action::LogWrite => self.log_write(mounted),
            Action::LogDone(end) => self.log_done(mounted, end, without),
            action => self.step_checkpoint(mounted, action),
        }
        if let Some((events, record)) = appends {
            let (events, record) = self.in_parts(mounted, events, record, without);
            mounted.push(&events, record);
            self.history.trees.push((mounted.engine.head, mounted.tree));
        }
    }

    /// Without [`Rule::AtomicInOneRecord`], splits an atomic write: returns the record of its first
    /// half and notes the second in `half`.
    fn in_parts(
        &self,
        mounted: &mut Mounted,
        mut events: Vec<Event>,
        record: Record,
        without: Option<Rule>,
    ) -> (Vec<Event>, Record) {
        let Record::Data([Some(first), Some(second)]) = record else { return (events, record) };
        if without != Some(Rule::AtomicInOneRecord) {
            return (events, record);
        }
        if let Some(Event::Append { record, .. }) = events.last_mut() {
            record.data.truncate(1);
            record.whole = false;
        }
        mounted.half = Some(second);
        (events, Record::Data([Some(first), None]))
    }

    fn operation(&mut self, done: Done) {
        self.number += 1;
        self.left.operations -= 1;
        self.history.done.push(done);
    }

    fn put(&mut self, mounted: &mut Mounted, number: u8, without: Option<Rule>) {
        let mapped = mounted.tree.blocks[usize::from(number)];
        let place = mapped.or_else(|| mounted.place(without)).expect("a block was found for the action");
        let named = mapped.is_some() && !mounted.is_resident(number);
        let (thread, range) = (u64::from(number), whole(number));
        let seq = mounted.engine.written + 1;
        if mapped.is_none() {
            mounted.engine.apply(&Event::Placed(block(place)));
        }
        mounted.engine.apply(&Event::Wrote(block(place)));
        if !named {
            mounted.engine.apply(&Event::InPlace { thread, range });
        }
        mounted.engine.apply(&Event::Written { seq });
        let file = &mut mounted.files[usize::from(number)];
        (file.dirty, file.seq) = (false, seq);
        file.put = (!named).then_some(place);
        self.medium.blocks[usize::from(place)].write(file.value);
    }

    fn log_write(&mut self, mounted: &mut Mounted) {
        if mounted.sealed.is_empty() {
            mounted.seal();
        }
        let records = mounted.sealed.remove(0);
        let engine = &mut mounted.engine;
        let sealed = engine.flight.iter().find(|flight| flight.stage == Stage::Sealed);
        let (start, end) = sealed.map(|flight| (flight.start, flight.end)).expect("a batch is sealed");
        let (epoch, tail, durable) = (engine.epoch, engine.tail, engine.durable);
        self.medium.log_writes.push(LogWrite { epoch, start, records, tail, durable });
        engine.apply(&Event::LogWrite { end });
    }

    fn log_done(&mut self, mounted: &mut Mounted, end: u64, without: Option<Rule>) {
        let engine = &mut mounted.engine;
        let start = engine.flight.iter().find(|flight| flight.end == end).map(|flight| flight.start);
        self.medium.log_done(start.expect("the log write is in flight"));
        engine.apply(&Event::LogDone { end });
        let done = engine.flight.iter().filter(|flight| flight.stage == Stage::Done);
        let mut ends: Vec<u64> = done.map(|flight| flight.end).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let last =
            ends.into_iter().find(|lsn| engine.forbids(&Event::Durable { lsn: *lsn }, without).is_none());
        if let Some(lsn) = last {
            engine.apply(&Event::Durable { lsn });
        }
    }

    fn step_checkpoint(&mut self, mounted: &mut Mounted, action: Action) {
        match action {
            Action::Cut { generation, lsn, tail, node } => {
                if lsn == mounted.engine.head {
                    mounted.seal();
                }
                self.left.checkpoints -= 1;
                let (addr, born) = (u64::from(mounted.node), mounted.engine.slot.generation);
                mounted.engine.apply(&Event::NodeFreed { addr, born, generation });
                mounted.engine.apply(&Event::NodeTaken { addr: u64::from(node) });
                mounted.engine.apply(&Event::Cut { generation, lsn, tail });
                // The checkpoint's node is written in the same step. Until the flush a crash may
                // leave it or not.
                mounted.engine.apply(&Event::NodesWritten { generation });
                mounted.frozen = Some((mounted.tree, node));
                self.medium.nodes[usize::from(node)].1 = Some(Node { generation, tree: mounted.tree });
            }
            Action::SlotWrite => {
                let running = mounted.engine.running.clone().expect("a checkpoint runs");
                let (_, node) = mounted.frozen.expect("a checkpoint runs");
                let (generation, cut, tail) = (running.generation, running.cut, running.tail);
                let slot = Slot { generation, epoch: mounted.engine.epoch, cut, tail, node };
                self.medium.slot_write = Some(((generation % 2) as u8, slot));
                mounted.engine.apply(&Event::SlotWrite { generation, cut, tail });
            }
            Action::SlotDone => {
                let (_, node) = mounted.frozen.take().expect("a checkpoint runs");
                let generation = mounted.engine.running.as_ref().map_or(0, |running| running.generation);
                self.medium.slot_done();
                mounted.engine.apply(&Event::SlotDone { generation });
                mounted.node = node;
                mounted.engine.apply(&Event::Tail { lsn: mounted.engine.slot.tail });
            }
            Action::Tail(lsn) => mounted.engine.apply(&Event::Tail { lsn }),
            _ => {}
        }
    }

    /// Gives the promises that the rules allow. Resets the numbers of data writes once all are
    /// flushed, and drops those of durable records, so that equivalent states compare equal.
    fn settle(&mut self, mounted: &mut Mounted, without: Option<Rule>) {
        let engine = &mut mounted.engine;
        let clean = |file: &File| !file.dirty && file.put.is_none();
        let done = self.history.done.len();
        for (number, file) in mounted.files.iter().enumerate() {
            let (called, seq, clean) = (engine.head, file.seq, clean(file) && mounted.half.is_none());
            let ack = Event::Ack { file: number as u64, called, seq, clean };
            if engine.forbids(&ack, without).is_none() {
                self.history.fsynced[number] = done;
            }
        }
        self.history.promise(engine.durable);
        let written = mounted.files.iter().all(clean) || without == Some(Rule::WritebackBeforeSync);
        let still = engine.durable == engine.head && engine.flushed == engine.written;
        if written && still && mounted.half.is_none() {
            self.history.synced = done;
        }
        self.history.forget();
        if engine.flushed == engine.written {
            (engine.flushed, engine.written) = (0, 0);
            mounted.files.iter_mut().for_each(|file| file.seq = 0);
            engine.flight.iter_mut().for_each(|flight| flight.needs = 0);
        }
        let durable = engine.durable;
        engine.touched.retain(|_, ends| ends.last().is_some_and(|end| *end > durable));
    }
}
