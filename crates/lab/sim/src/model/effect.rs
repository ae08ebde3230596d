//! The result of an operation of the reference model, and its effect as far as the crash oracle
//! needs it.

use super::inode::Id;
use crate::ops::Outcome;

/// The bytes of a file that an operation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataChange {
    pub id: Id,
    /// Range of offsets whose bytes may have changed.
    pub from: u64,
    pub to: u64,
    /// Whether the operation sets the size and is part of the sequence (truncate, fallocate).
    pub sets_size: bool,
    /// Whether a plain write extended the file.
    pub grew: bool,
}

/// What an operation makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    Inode { id: Id, datasync: bool },
    All,
}

/// The effect of an operation, as far as the crash oracle needs it.
#[derive(Clone, Debug, Default)]
pub struct Effect {
    /// Whether the operation is part of the sequence of metadata operations. Plain writes are not.
    pub ordered: bool,
    /// Whether an fdatasync of the touched inodes must make the operation durable.
    pub datasync: bool,
    /// Inodes whose fsync must make the operation durable.
    pub touched: Vec<Id>,
    pub data: Option<DataChange>,
    pub persist: Option<Persist>,
}

/// The expected result.
#[derive(Clone, Debug)]
pub struct Applied {
    pub outcome: Outcome,
    /// Other errno values that are also correct.
    pub or: Vec<i32>,
    pub effect: Effect,
}

impl Applied {
    pub fn allows(&self, outcome: &Outcome) -> bool {
        *outcome == self.outcome || matches!(outcome, Outcome::Failed(e) if self.or.contains(e))
    }
}

/// Why the model expects no success.
pub(super) enum No {
    /// The possible errno values; the first is the one that Linux returns.
    Errno(Vec<i32>),
    Unspecified,
}

impl From<i32> for No {
    fn from(errno: i32) -> No {
        No::Errno(vec![errno])
    }
}

pub(super) type Answer = Result<(Outcome, Effect), No>;

pub(super) fn ordered(touched: impl Into<Vec<Id>>) -> (Outcome, Effect) {
    (Outcome::Done, Effect { ordered: true, datasync: true, touched: touched.into(), ..Effect::default() })
}

pub(super) fn persist(persist: Persist) -> (Outcome, Effect) {
    (Outcome::Done, Effect { persist: Some(persist), ..Effect::default() })
}
