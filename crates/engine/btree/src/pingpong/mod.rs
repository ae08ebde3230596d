//! The latches of old btrfs, for comparison: [`lock`] is the lock, [`held`] a latch that uses it,
//! [`path`] the way in which a descent holds latches. A tree with other latches pays only one empty
//! field in each latch.

pub(crate) mod guard;
#[allow(unsafe_code)]
mod held;
pub(crate) mod lock;
mod path;
