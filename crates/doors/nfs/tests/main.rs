//! The NFS server. The tests are one program, so that the engine is linked once.
#![allow(clippy::unwrap_used)]

mod common;

mod durability;
mod hostile;
mod procedures;
mod trees;
mod users;
