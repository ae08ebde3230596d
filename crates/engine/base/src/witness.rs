//! Per-thread hooks by which a server observes the changes that its thread makes, and prescribes
//! their time and inode number.
//!
//! When another process replaces a dead server, it repeats the changes that the log has lost
//! ("Keeper" in the FUSE server). For that, the dead server must have noted the LSN of each change
//! before the log could make the change durable, and the repeated change must use the same inode
//! number and the same time. The engine calls [`committed`] and [`numbered`] to report a change,
//! and asks [`time`] and [`number`] for prescribed values before it chooses its own. Outside of
//! [`during`] none of these calls has an effect.
//!
//! The rejected alternative is a parameter of every operation, which all callers except the server
//! would leave empty.

use crate::{Ino, Lsn, Timespec};
use std::cell::{Cell, RefCell};

/// Called before a record can become durable, with the record's kind, the LSN at which it ends, and
/// the number of the last new inode. The function must not wait or call the engine.
pub type OnCommit = Box<dyn Fn(u8, Lsn, Option<Ino>)>;

/// The hooks and prescribed values for the changes of a thread inside of [`during`].
#[derive(Default)]
pub struct Witness {
    /// The wall-clock time that the changes use; `None` for the engine's clock.
    pub time: Option<Timespec>,
    /// The number of the next new inode; `None` if the engine chooses it.
    pub number: Option<Ino>,
    /// Called for each record that the thread commits.
    pub committed: Option<OnCommit>,
}

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static WITNESS: RefCell<Witness> = const { RefCell::new(Witness { time: None, number: None, committed: None }) };
    static MADE: Cell<Option<Ino>> = const { Cell::new(None) };
}

/// Removes the thread's witness when dropped, so that a panic removes it, too.
struct Disarm;

impl Drop for Disarm {
    fn drop(&mut self) {
        ARMED.set(false);
        WITNESS.take();
    }
}

/// Runs `body` with `witness` in force for the changes that this thread makes in it.
pub fn during<R>(witness: Witness, body: impl FnOnce() -> R) -> R {
    WITNESS.replace(witness);
    MADE.set(None);
    ARMED.set(true);
    let _disarm = Disarm;
    body()
}

/// Called by the engine when it has appended a record that ends at `end` and is not yet durable.
#[inline]
pub fn committed(kind: u8, end: Lsn) {
    if ARMED.get() {
        WITNESS.with_borrow(|witness| {
            if let Some(call) = &witness.committed {
                call(kind, end, MADE.get());
            }
        });
    }
}

/// Called by the engine when it has chosen the number of a new inode.
#[inline]
pub fn numbered(ino: Ino) {
    if ARMED.get() {
        MADE.set(Some(ino));
    }
}

/// Returns the prescribed time of the current change, if there is one.
#[inline]
pub fn time() -> Option<Timespec> {
    if ARMED.get() { WITNESS.with_borrow(|witness| witness.time) } else { None }
}

/// Returns the prescribed number of the next new inode, if there is one. Each is returned once.
#[inline]
pub fn number() -> Option<Ino> {
    if ARMED.get() { WITNESS.with_borrow_mut(|witness| witness.number.take()) } else { None }
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
