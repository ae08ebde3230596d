//! Moving files between directories of this machine, tar archives and images.
//!
//! | part | does |
//! |---|---|
//! | [`import`] | fills an image from a directory, a tar archive or another image |
//! | [`export`] | a directory of an image to a tar archive and back |
//! | `pax` | writes tar archives |
//! | [`offline`] | finds a path in an image that is not mounted |
//! | [`change`] | makes and removes names there |
//! | [`trees`] | forks and deletes trees there |
//! | [`diff`] | compares two trees |
//! | [`send`], [`receive`] | a snapshot as a stream, and back |
//! | [`stream`] | the stream |
//! | [`limits`] | limits directories there |
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
