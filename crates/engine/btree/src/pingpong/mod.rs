//! The latches of old btrfs, for comparison: [`lock`] is the lock, [`held`] a latch that uses it,
//! [`path`] how a descent holds it. In a tree with other latches only an empty field in each latch
//! remains of it.

pub(crate) mod guard;
#[allow(unsafe_code)]
mod held;
pub(crate) mod lock;
mod path;
