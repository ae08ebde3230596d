//! The latches of old btrfs, to compare with: [`lock`] is the latch, [`path`] how a descent holds
//! it. A tree with other latches has nothing of it but an empty field in each latch.

pub(crate) mod lock;
mod path;

pub(crate) use path::Intent;
