//! Recovery as a function of the medium: it chooses the slot, scans the log and replays the
//! records.

use crate::medium::{Cell, FILES, Medium, Record, Slot, Tree};
use crate::rule::Rule;

/// The state that recovery finds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Recovered {
    pub slot: Slot,
    /// The end of the log.
    pub head: u64,
    pub tree: Tree,
    /// By file: the log-resident content.
    pub overlay: [Option<u8>; FILES],
}

impl Recovered {
    /// The content of a file.
    pub fn file(&self, medium: &Medium, file: usize) -> u8 {
        let in_place = self.tree.blocks[file].map_or(0, |block| medium.blocks[block as usize].current);
        self.overlay[file].unwrap_or(in_place)
    }
}

/// Recovers a medium that a crash left. The error is the reason why it does not mount.
pub fn recover(medium: &Medium, without: Option<Rule>) -> Result<Recovered, &'static str> {
    let slots = medium.slots.iter().flatten();
    let slot = *slots.max_by_key(|slot| slot.generation).ok_or("no slot is valid")?;
    let node = medium.nodes[slot.node as usize].0.filter(|node| node.generation == slot.generation);
    let mut tree = node.ok_or("the slot points to a node of another generation")?.tree;
    let records = scan(medium, &slot, without)?;
    let head = slot.tail + records.len() as u64;
    if head < slot.cut {
        return Err("the log ends below the checkpoint");
    }
    let mut overlay = [None; FILES];
    for (lsn, (record, half)) in (slot.tail..).zip(records) {
        let half = half || without == Some(Rule::WholeRecords);
        replay_data(&mut overlay, record, half);
        if lsn >= slot.cut {
            apply(&mut tree, record, half);
        }
    }
    Ok(Recovered { slot, head, tree, overlay })
}

/// Returns the records from the tail on, and whether only half of each record is on the medium.
fn scan(medium: &Medium, slot: &Slot, without: Option<Rule>) -> Result<Vec<(Record, bool)>, &'static str> {
    let ring = medium.ring.len() as u64;
    let at = |lsn: u64| medium.ring[(lsn % ring) as usize].as_ref();
    let limit = slot.tail + ring;
    let mut found = Vec::new();
    let mut head = slot.tail;
    while head < limit {
        let Some(cell) = at(head) else { break };
        newer(cell, head, slot, ring)?;
        if cell.epoch != slot.epoch || cell.lsn != head || cell.start != head || cell.end > limit {
            break;
        }
        let cells: Vec<&Cell> = (head..cell.end).filter_map(at).collect();
        let same = |other: &&Cell| (other.epoch, other.start) == (cell.epoch, cell.start);
        let whole = cells.iter().all(|cell| !cell.torn) || without == Some(Rule::WholeWrites);
        if cells.len() as u64 != cell.end - head || !cells.iter().all(same) || !whole {
            break;
        }
        found.extend(cells.iter().map(|cell| (cell.record, cell.torn)));
        head = cell.end;
    }
    for lsn in head + 1..limit {
        let Some(cell) = at(lsn) else { continue };
        newer(cell, lsn, slot, ring)?;
        let expected = cell.epoch == slot.epoch && cell.lsn == lsn;
        if expected && cell.durable > head && !cell.torn {
            return Err("a log write that was durable is not valid");
        }
    }
    Ok(found)
}

/// Fails if a log write proves that a newer slot existed.
fn newer(cell: &Cell, lsn: u64, slot: &Slot, ring: u64) -> Result<(), &'static str> {
    let ahead = cell.lsn.checked_sub(lsn);
    let same = cell.epoch == slot.epoch && !cell.torn;
    let later = ahead.is_some_and(|ahead| ahead > 0 && ahead.is_multiple_of(ring));
    if cell.epoch > slot.epoch || same && (later || ahead == Some(0) && cell.tail > slot.tail) {
        return Err("a log write of a newer slot, which is lost");
    }
    Ok(())
}

/// Applies a record to the tree, or with `half` only its first edit. The running engine and replay
/// share this function.
pub fn apply(tree: &mut Tree, record: Record, half: bool) {
    match record {
        Record::Items(value) if half => tree.items[0] = value,
        Record::Items(value) => tree.items = [value; 2],
        Record::Data(_) => {}
        Record::Map { file, block, .. } => {
            if let Some(block) = block {
                tree.blocks[file as usize] = Some(block);
            }
        }
        Record::Remove { file } => tree.blocks[file as usize] = None,
    }
}

fn replay_data(overlay: &mut [Option<u8>; FILES], record: Record, half: bool) {
    match record {
        Record::Items(_) => {}
        Record::Data(values) => {
            let present = values.iter().flatten().count();
            let values = values.iter().enumerate().filter_map(|(file, value)| Some((file, (*value)?)));
            let taken = if half && present > 1 { 1 } else { present };
            values.take(taken).for_each(|(file, value)| overlay[file] = Some(value));
        }
        Record::Map { file, voids: true, .. } | Record::Remove { file } if !half => {
            overlay[file as usize] = None;
        }
        Record::Map { .. } | Record::Remove { .. } => {}
    }
}
