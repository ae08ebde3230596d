//! Reading an inner node without its latch: finds the child to which the node routes a key.
//!
//! # The unsafe code
//! [`child_of`] turns a word of a node's route table into a reference to the child's frame. The
//! frame is not dropped while the caller is an active reader of the tree's epochs.

use crate::epoch::Active;
use crate::frame::Frame;
use crate::routes::{Look, Words};

/// The next step of a descent, from an inner node that was read without its latch.
pub(crate) enum Step<'a> {
    Child(&'a Frame),
    Missing,
    Stale,
    Torn,
}

/// Searches the key in the route table of `parent`. Either this active reader found the frame of
/// `parent`, or the frame outlives the reader.
#[inline]
pub(crate) fn child_of<'a>(parent: &'a Frame, key: &Words, _active: &'a Active<'_>) -> Step<'a> {
    let routes = parent.routes.as_ref().expect("inner nodes of an optimistic tree have route tables");
    match routes.look(key) {
        // SAFETY: a route table holds pointers from `Arc<Frame>`s. `Node::published` keeps an `Arc`
        // as long as the pointer is in the table; then the `Arc` is retired to the tree's epochs.
        // The reader was active before it read the pointer, and stays active for `'a`; see the rule
        // in `epoch`. The frame was initialised before its pointer was stored, and the lookup
        // synchronised with that store.
        Look::Child(child) => Step::Child(unsafe { &*(child as usize as *const Frame) }),
        Look::Missing => Step::Missing,
        Look::Stale => Step::Stale,
        Look::Torn => Step::Torn,
    }
}
