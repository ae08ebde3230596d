//! What a server learns of a change that its thread makes, and what it prescribes to it.
//!
//! A server that another process replaces after its death makes the changes again that the log has
//! lost ("Keeper" in the FUSE server). For this it must know the place of a change in the log
//! before the log can make the change durable, and later make the change with the same inode
//! number and the same time. The engine calls [`committed`] and [`numbered`], and takes
//! [`time`] and [`number`] before its own. Without [`during`] none of them has an effect.
//!
//! The alternative is a parameter of every operation, which all callers but one would leave empty.

use crate::{Ino, Lsn, Timespec};
use std::cell::{Cell, RefCell};

/// Called with the kind of a record, its end in the log, and the number of the last new inode,
/// before the record can become durable. It must not wait or use the engine.
pub type OnCommit = Box<dyn Fn(u8, Lsn, Option<Ino>)>;

/// What holds for the changes of a thread inside of [`during`].
#[derive(Default)]
pub struct Witness {
    /// The wall-clock time of the changes.
    pub time: Option<Timespec>,
    /// The number of the next new inode.
    pub number: Option<Ino>,
    /// Called for each record.
    pub committed: Option<OnCommit>,
}

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static WITNESS: RefCell<Witness> = const { RefCell::new(Witness { time: None, number: None, committed: None }) };
    static MADE: Cell<Option<Ino>> = const { Cell::new(None) };
}

/// Ends the witness, also after a panic.
struct Disarm;

impl Drop for Disarm {
    fn drop(&mut self) {
        ARMED.set(false);
        WITNESS.take();
    }
}

/// Runs `body` with a witness of the changes that this thread makes in it.
pub fn during<R>(witness: Witness, body: impl FnOnce() -> R) -> R {
    WITNESS.replace(witness);
    MADE.set(None);
    ARMED.set(true);
    let _disarm = Disarm;
    body()
}

/// The engine has appended a record of this kind that ends at `end`, which is not durable yet.
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

/// The engine gives this number to a new inode.
#[inline]
pub fn numbered(ino: Ino) {
    if ARMED.get() {
        MADE.set(Some(ino));
    }
}

/// The time of the present change, if it is prescribed.
#[inline]
pub fn time() -> Option<Timespec> {
    if ARMED.get() { WITNESS.with_borrow(|witness| witness.time) } else { None }
}

/// The number of the next new inode, if it is prescribed; once.
#[inline]
pub fn number() -> Option<Ino> {
    if ARMED.get() { WITNESS.with_borrow_mut(|witness| witness.number.take()) } else { None }
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
