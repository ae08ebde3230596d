//! Handles, which are indices of slots in a table.
//!
//! ```text
//! bit 63         32 31                 8 7    4 3     0
//!     generation    |  index of the slot  | kind | zeros
//! ```
//! The generation counts how often a slot was used. A handle is valid only while its slot has the
//! same generation. A slot whose generation has reached its largest value is not used again, so no
//! handle becomes valid a second time. The zeros make the handle look like an aligned pointer.

use parking_lot::RwLock;
use std::sync::Arc;

const KIND_SHIFT: u32 = 4;
const PLACE_SHIFT: u32 = 8;
const GENERATION_SHIFT: u32 = 32;
const KIND_MASK: usize = 0xf;
const PLACE_MASK: usize = 0xff_ffff;

/// The number of handles of one kind that may be open at the same time.
pub(crate) const OPEN_MAX: usize = 1 << 20;

const _: () = assert!(size_of::<usize>() == 8, "a handle needs 64 bits");
const _: () = assert!(OPEN_MAX <= PLACE_MASK);

/// The kind of a handle. It is never zero, so no handle is NULL.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Kind {
    FileSystem = 1,
    File = 2,
    Dir = 3,
}

struct Place<T> {
    generation: u32,
    held: Option<Arc<T>>,
}

struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<usize>,
}

/// The open handles of one kind.
///
/// The lock has no rank, since no other lock is taken while it is held: objects are dropped after
/// the lock is released.
pub(crate) struct Table<T> {
    kind: Kind,
    places: RwLock<Places<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Table<T> {
        Table { kind, places: RwLock::new(Places { all: Vec::new(), free: Vec::new() }) }
    }

    /// Makes a handle. Returns `None` if [`OPEN_MAX`] handles are open.
    pub(crate) fn insert(&self, held: Arc<T>) -> Option<usize> {
        let mut places = self.places.write();
        let at = match places.free.pop() {
            Some(at) => at,
            None if places.all.len() < OPEN_MAX => {
                places.all.push(Place { generation: 0, held: None });
                places.all.len() - 1
            }
            None => return None,
        };
        let place = &mut places.all[at];
        place.held = Some(held);
        Some(self.handle(at, place.generation))
    }

    fn handle(&self, at: usize, generation: u32) -> usize {
        (generation as usize) << GENERATION_SHIFT | at << PLACE_SHIFT | (self.kind as usize) << KIND_SHIFT
    }

    /// The index of a handle's slot; `None` if the handle is of another kind or malformed.
    fn place(&self, handle: usize) -> Option<usize> {
        let kind = handle >> KIND_SHIFT & KIND_MASK;
        let is_ours = kind == self.kind as usize && handle.trailing_zeros() >= KIND_SHIFT;
        is_ours.then_some(handle >> PLACE_SHIFT & PLACE_MASK)
    }

    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        let at = self.place(handle)?;
        let places = self.places.read();
        let place = places.all.get(at)?;
        place.held.clone().filter(|_| self.handle(at, place.generation) == handle)
    }

    /// Removes a handle. Of several threads that remove it, only one gets the object.
    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let at = self.place(handle)?;
        let mut places = self.places.write();
        let place = places.all.get(at)?;
        if self.handle(at, place.generation) != handle {
            return None;
        }
        places.end(at)
    }

    /// Removes the handles of all objects for which `is_meant` returns true.
    pub(crate) fn remove_all(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut places = self.places.write();
        let of = |place: &Place<T>| place.held.as_ref().is_some_and(|held| is_meant(held));
        let meant: Vec<usize> = (0..places.all.len()).filter(|at| of(&places.all[*at])).collect();
        meant.into_iter().filter_map(|at| places.end(at)).collect()
    }
}

impl<T> Places<T> {
    fn end(&mut self, at: usize) -> Option<Arc<T>> {
        let place = &mut self.all[at];
        let held = place.held.take()?;
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(at);
        }
        Some(held)
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
