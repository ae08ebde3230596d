//! Reduces equivalent states to one. States are equivalent if they differ only in data to which
//! nothing refers, or in where numbers start.
//!
//! 1. Recovery never chooses a slot older than the newest valid one, and never reads a node to
//!    which no slot points or will point. A log write below the tail or of an older epoch ends its
//!    scan like an empty cell of the ring. All of these are removed.
//! 2. The content of a block that no tree and no record names may be anything, so it becomes
//!    unwritten.
//! 3. Log positions count from the tail, and the ring begins with the tail's cell. Generations
//!    count from the newest slot's. The newest slot is moved to index 0, and so is its node. Epochs
//!    count from one.
//!
//! Only the protocol with all its rules is explored in this way: a mutant may read what the missing
//! rule keeps the protocol from reading.

use crate::engine::{Checkpoint, Engine};
use crate::medium::{Block, Cell, LogWrite, Medium, Node, Record, Slot, Tree};
use crate::world::{Phase, World};
use std::collections::BTreeMap;

/// Replaces a state by the representative of all states that are equivalent to it.
pub fn canonical(world: &mut World) {
    let Some(newest) = forget_old_slots(&mut world.medium) else { return };
    forget_nodes(world, newest);
    let low = newest.tail;
    for cell in &mut world.medium.ring {
        *cell = cell.take().filter(|cell| cell.lsn >= low && cell.epoch >= newest.epoch);
    }
    forget_blocks(world);
    let shift = Shift {
        lsn: low,
        generation: newest.generation,
        epoch: newest.epoch - 1,
        place: (newest.generation % 2) as u8,
        node: newest.node,
    };
    shift.apply(world);
}

/// Removes all slots but the newest, and returns that.
fn forget_old_slots(medium: &mut Medium) -> Option<Slot> {
    let newest = medium.slots.iter().flatten().max_by_key(|slot| slot.generation).copied();
    for slot in &mut medium.slots {
        *slot = slot.filter(|_| *slot == newest);
    }
    newest
}

fn forget_nodes(world: &mut World, newest: Slot) {
    let coming = match &world.phase {
        Phase::Mounted(mounted) => mounted.frozen.map(|(_, node)| node),
        Phase::Recovering(recovering) => Some(recovering.slot.node),
        Phase::Down => None,
    };
    for (at, (durable, written)) in (0u8..).zip(&mut world.medium.nodes) {
        let is_read = at == newest.node;
        if !is_read && coming != Some(at) {
            *written = None;
        }
        if !is_read && (coming != Some(at) || written.is_some()) {
            *durable = None;
        }
    }
}

fn forget_blocks(world: &mut World) {
    let mut named = [false; crate::medium::BLOCKS];
    let mut name = |block: Option<u8>| {
        if let Some(block) = block {
            named[usize::from(block)] = true;
        }
    };
    let mut trees: Vec<Tree> = Vec::new();
    let mut records: Vec<Record> = Vec::new();
    match &world.phase {
        Phase::Mounted(mounted) => {
            trees.push(mounted.tree);
            trees.extend(mounted.frozen.map(|(tree, _)| tree));
            records.extend(mounted.open.iter().chain(mounted.sealed.iter().flatten()));
            mounted.files.iter().for_each(|file| name(file.put));
        }
        Phase::Recovering(recovering) => trees.push(recovering.tree),
        Phase::Down => {}
    }
    let medium = &world.medium;
    let nodes = medium.nodes.iter().flat_map(|(durable, written)| [durable, written]);
    trees.extend(nodes.flatten().map(|node| node.tree));
    records.extend(medium.ring.iter().flatten().map(|cell| cell.record));
    records.extend(medium.log_writes.iter().flat_map(|write| &write.records));
    trees.iter().flat_map(|tree| tree.blocks).for_each(&mut name);
    for record in records {
        if let Record::Map { block, .. } = record {
            name(block);
        }
    }
    for (block, named) in world.medium.blocks.iter_mut().zip(named) {
        if !named {
            *block = Block::EMPTY;
        }
    }
}

/// The amounts that are subtracted from numbers, and how the indexes of slots and nodes change: the
/// new first slot (`place`) and node.
struct Shift {
    lsn: u64,
    generation: u64,
    epoch: u64,
    place: u8,
    node: u8,
}

impl Shift {
    fn apply(&self, world: &mut World) {
        self.medium(&mut world.medium);
        match &mut world.phase {
            Phase::Mounted(mounted) => {
                self.engine(&mut mounted.engine);
                mounted.node ^= self.node;
                if let Some((_, node)) = &mut mounted.frozen {
                    *node ^= self.node;
                }
            }
            Phase::Recovering(recovering) => {
                self.lsn(&mut recovering.head);
                self.slot(&mut recovering.slot);
            }
            Phase::Down => {}
        }
        self.lsn(&mut world.history.durable);
        world.history.trees.iter_mut().for_each(|(end, _)| self.lsn(end));
    }

    fn lsn(&self, lsn: &mut u64) {
        *lsn = lsn.saturating_sub(self.lsn);
    }

    fn generation(&self, generation: &mut u64) {
        *generation = generation.saturating_sub(self.generation);
    }

    fn slot(&self, slot: &mut Slot) {
        self.generation(&mut slot.generation);
        slot.epoch -= self.epoch;
        self.lsn(&mut slot.cut);
        self.lsn(&mut slot.tail);
        slot.node ^= self.node;
    }

    fn medium(&self, medium: &mut Medium) {
        let ring = medium.ring.len() as u64;
        medium.ring.rotate_left((self.lsn % ring) as usize);
        for cell in medium.ring.iter_mut().flatten() {
            let Cell { epoch, start, end, lsn, tail, durable, .. } = cell;
            *epoch -= self.epoch;
            [start, end, lsn, tail, durable].into_iter().for_each(|at| self.lsn(at));
        }
        for LogWrite { epoch, start, tail, durable, .. } in &mut medium.log_writes {
            *epoch -= self.epoch;
            [start, tail, durable].into_iter().for_each(|at| self.lsn(at));
        }
        medium.slots.rotate_left(usize::from(self.place));
        medium.slots.iter_mut().flatten().for_each(|slot| self.slot(slot));
        if let Some((place, slot)) = &mut medium.slot_write {
            *place ^= self.place;
            self.slot(slot);
        }
        medium.nodes.rotate_left(usize::from(self.node));
        let nodes = medium.nodes.iter_mut().flat_map(|(durable, written)| [durable, written]);
        nodes.flatten().for_each(|Node { generation, .. }| self.generation(generation));
    }

    fn checkpoint(&self, checkpoint: &mut Checkpoint) {
        self.generation(&mut checkpoint.generation);
        self.lsn(&mut checkpoint.cut);
        self.lsn(&mut checkpoint.tail);
    }

    fn engine(&self, engine: &mut Engine) {
        engine.epoch -= self.epoch;
        let Engine { tail, durable, base, head, .. } = engine;
        [tail, durable, base, head].into_iter().for_each(|at| self.lsn(at));
        for flight in &mut engine.flight {
            self.lsn(&mut flight.start);
            self.lsn(&mut flight.end);
        }
        engine.quarantine.iter_mut().for_each(|(_, end)| self.lsn(end));
        for resident in &mut engine.residents {
            self.lsn(&mut resident.write_start);
            self.lsn(&mut resident.end);
        }
        engine.touched.values_mut().flatten().for_each(|end| self.lsn(end));
        let old = std::mem::take(&mut engine.old_nodes);
        let moved = old
            .into_iter()
            .map(|(addr, until)| (addr ^ u64::from(self.node), until.saturating_sub(self.generation)));
        engine.old_nodes = moved.collect::<BTreeMap<u64, u64>>();
        self.checkpoint(&mut engine.slot);
        engine.running.iter_mut().for_each(|running| self.checkpoint(running));
    }
}
