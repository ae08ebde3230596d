//! Moves files between directories of this machine, tar archives and images.
//!
//! | part | does |
//! |---|---|
//! | [`import`] | fills an image from a directory, a tar archive or another image |
//! | [`export`] | copies a directory of an image to a tar archive and back |
//! | `pax` | writes tar archives |
//! | [`offline`] | finds a path in an image that is not mounted |
//! | [`change`] | makes and removes names in an image that is not mounted |
//! | [`trees`] | forks, deletes, sends and receives trees of an image that is not mounted |
//! | [`diff`] | compares two trees |
//! | [`send`], [`receive`] | writes a snapshot as a stream, and makes a snapshot from a stream |
//! | [`stream`] | the format of the stream |
//! | [`limits`] | lists the limits of directories in an image that is not mounted |
//! | [`copy`] | copies between this machine and images |
//! | [`to_host`] | writes what is copied to a directory of this machine |
//! | [`online`] | copies into a mounted image, through the process that serves it |
//! | [`metadump`] | copies the metadata of an image without file data |
#![deny(unsafe_code)]

pub mod change;
pub mod copy;
pub mod diff;
pub mod export;
pub mod import;
pub mod limits;
pub mod metadump;
pub mod offline;
pub mod online;
mod pax;
pub mod receive;
pub mod send;
pub mod stream;
pub mod to_host;
pub mod trees;
