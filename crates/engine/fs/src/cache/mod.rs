//! Inodes in memory, their pages, and the limits on pages.
//!
//! [`inode`] has the locks of an inode and its undurable state, [`table`] decides what stays
//! cached, and [`commit`] changes inodes by records.

pub(crate) mod budget;
pub(crate) mod commit;
pub(crate) mod inode;
pub(crate) mod inodes;
pub(crate) mod pages;
pub(crate) mod table;
mod tokens;
