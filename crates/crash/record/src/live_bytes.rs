//! A live crash test in which names are durable at once. Bytes and sizes become durable with the
//! next fsync of their file.
//!
//! LazyFS simulates this. A loss here needs no new tree: each file with changes that no fsync
//! covers gets back the bytes and the size at its last fsync, in place. So inodes keep their
//! numbers, and open files stay usable.

use super::{Inner, Live, World, nameless};
use crate::lazy::Kept;
use crate::tree::{set_size, write_all};
use kedge_crash::state::{Body, FileBody};
use kedge_crash::{Call, History, Model, Pick, Recipe, Trace};
use kedgefs::{Error, FileSystem, Ino, Result};
use std::collections::BTreeMap;

/// A file with bytes that no fsync covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsynced {
    /// The path relative to the mount. A file whose name was removed has its last path.
    pub path: Vec<u8>,
    /// The number of bytes written since the last fsync; zero if only the size changed.
    pub bytes: u64,
}

/// The result of a loss of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostBytes {
    pub files: Vec<Unsynced>,
    /// The paths of files that do not exist, although parts of writes to them should have survived.
    pub missing: Vec<Vec<u8>>,
    /// Why the loss could not be made. Every operation fails from then on.
    pub error: Option<String>,
}

impl Live {
    /// Loses the bytes and sizes that no fsync covers, except `kept`. Calls `then` before any other
    /// operation.
    pub fn lose_bytes(&self, kept: &[Kept], then: &dyn Fn(&LostBytes)) -> LostBytes {
        let mut world = self.0.gate.write();
        let mut lost = LostBytes::default();
        if world.failed.is_none() {
            let reverted = self.revert(&mut world, kept, &mut lost);
            world.failed = reverted.err().map(|e| e.to_string());
        }
        lost.error = world.failed.clone();
        then(&lost);
        lost
    }

    /// The files with bytes or a size that no fsync covers.
    pub fn unsynced(&self) -> Vec<Unsynced> {
        let world = self.0.gate.read_recursive();
        let mut files = BTreeMap::new();
        world.log.look(|events| {
            let trace = Trace { events: std::mem::take(events) };
            files = Pending::of(&trace).files;
            *events = trace.events;
        });
        files.into_iter().map(|(ino, bytes)| Unsynced { path: self.path(Ino(ino), None), bytes }).collect()
    }

    /// Counts all calls so far as durable.
    pub fn checkpoint(&self) -> Result<()> {
        let mut world = self.0.gate.write();
        let full = world.log.clone();
        self.0.fs.sync()?;
        self.0.begin(&mut world)?;
        full.settle();
        Ok(())
    }

    fn revert(&self, world: &mut World, kept: &[Kept], lost: &mut LostBytes) -> Result<()> {
        let inner = &self.0;
        let trace = Trace { events: world.log.cut() };
        let nameless = nameless(&trace.events);
        let pending = Pending::of(&trace);
        let disk = pending.history.state(&pending.durable);
        for (ino, bytes) in &pending.files {
            let synced = disk.node(*ino).and_then(|node| match &node.body {
                Body::File(file) => Some(file.clone()),
                _ => None,
            });
            match put_back(&inner.fs, Ino(*ino), &synced.unwrap_or_default()) {
                // The file was removed since, so there is nothing to lose.
                Err(Error::NotFound) => continue,
                put => put?,
            }
            lost.files.push(Unsynced { path: self.path(Ino(*ino), None), bytes: *bytes });
        }
        keep(inner, kept, &mut lost.missing)?;
        inner.fs.sync()?;
        inner.begin_with(world, &nameless)
    }
}

/// The changes that no fsync covers.
struct Pending {
    history: History,
    durable: Recipe,
    /// For each file number, the number of bytes written since its last fsync.
    files: BTreeMap<u64, u64>,
}

impl Pending {
    fn of(trace: &Trace) -> Pending {
        // This model promises least: an fsync covers only its own file, and nothing else covers it.
        // The names of this model are not used here.
        let posix = Model::by_name("posix").expect("this model exists");
        let history = History::new(trace, posix);
        let durable = Recipe::new(*history.points().end(), Pick::Durable);
        let mut events: Vec<u32> =
            history.lost(&durable).into_iter().map(|n| history.micros[n as usize].event).collect();
        events.sort_unstable();
        events.dedup();
        let mut files = BTreeMap::new();
        for event in events {
            let (ino, bytes) = match &trace.events[event as usize].call {
                Call::Write { ino, data, .. } => (*ino, data.len() as u64),
                Call::Truncate { ino, .. } | Call::Allocate { ino, .. } => (*ino, 0),
                _ => continue,
            };
            *files.entry(ino).or_default() += bytes;
        }
        Pending { history, durable, files }
    }
}

fn put_back(fs: &FileSystem, ino: Ino, file: &FileBody) -> Result<()> {
    set_size(fs, ino, 0)?;
    file.pieces().try_for_each(|(at, bytes)| write_all(fs, ino, at, bytes))?;
    set_size(fs, ino, file.size)
}

/// Writes the parts of writes that survive. Adds the paths of files that do not exist to `missing`.
pub(super) fn keep(inner: &Inner, kept: &[Kept], missing: &mut Vec<Vec<u8>>) -> Result<()> {
    for part in kept {
        let mut ino = Some(Ino::ROOT);
        for name in part.path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            ino = match ino.map(|dir| inner.fs.lookup(dir, name)) {
                Some(Ok(attr)) => Some(attr.ino),
                Some(Err(Error::NotFound)) | None => None,
                Some(Err(e)) => return Err(e),
            };
        }
        match ino {
            Some(ino) => write_all(&inner.fs, ino, part.offset, &part.bytes)?,
            None => missing.push(part.path.clone()),
        }
    }
    Ok(())
}
