//! The latches of old btrfs, for comparison: [`lock`] is the latch, [`path`] how a descent holds
//! it. In a tree with other latches only an empty field in each latch remains of it.

pub(crate) mod lock;
mod path;

pub(crate) use path::Intent;
