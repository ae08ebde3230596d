//! Rules of other file systems that decide when the log is forced. They are kept for comparison,
//! and are as safe as the default rules.
//!
//! # fdatasync of XFS
//! With XFS, write() changes the time stamps in a transaction of its own if the coarse clock has
//! advanced since they were set ([`FdatasyncRule::stamps_at_write`]). Before a change to XFS
//! (`relog`), fdatasync forced the log under two conditions: the inode was pinned, that is, in a
//! part of the log that was not durable; and more than its time stamps had been logged since it was
//! last written back. The second condition always holds if a record has the change counter, which
//! counted as a part of the inode's core; the announcement of the change says so too. Here each
//! record has the counter. So the first condition decides ([`FdatasyncRule::takes_all`]). An
//! fdatasync forces nothing if its write was in the same clock tick as the one before, or if
//! another thread's force has made its stamps durable. After the change (`fields`) only what was
//! logged since the last force counts, without the counter. `seq` decides in the same way, but also
//! leaves the stamps out of the log until an fsync or the commit timer needs them.
//!
//! The former rule of Btrfs about new names is in `names::new_name`.

use crate::policy::options::FdatasyncRule;

impl FdatasyncRule {
    /// Whether a call waits for every record of the inode, including those of time stamps alone.
    pub(crate) fn takes_all(self, datasync: bool) -> bool {
        !datasync || self == FdatasyncRule::Relog
    }

    /// Whether write() logs the new time stamps in a record of its own.
    pub(crate) fn stamps_at_write(self) -> bool {
        self != FdatasyncRule::Seq
    }
}
