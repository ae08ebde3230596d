//! Tests of the library. They are one program, so that the engine is linked once.
#![allow(clippy::unwrap_used)]

mod common;

mod access_times;
mod acl;
mod atomic;
mod bad_block;
mod basic;
mod beside_a_writer;
mod checksums;
mod clones;
mod close;
mod examples;
mod failing_device;
mod flags;
mod format;
mod freeze;
mod fsx;
mod golden;
mod golden_trees;
mod handles;
mod inline;
mod large_xattrs;
mod limits;
mod new_name;
mod one_record;
mod open;
mod opening_trees;
mod replace;
mod reservations;
mod resize;
mod shrink;
mod statfs;
mod switches;
mod trees;
mod trees_in_trouble;
mod unfinished;
mod volatile;
