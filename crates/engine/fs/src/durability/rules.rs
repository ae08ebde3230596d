//! Rules of other file systems for when the log is forced. They are kept for comparison, and are as
//! safe as the default rules.
//!
//! # fdatasync of XFS
//! write() changes the time stamps in a transaction of its own if the coarse clock has advanced
//! since they were set ([`FdatasyncRule::stamps_at_write`]). Before its change (`relog`), fdatasync
//! forced the log if two conditions held: the inode was in a part of the log that was not durable
//! (it was pinned), and more than its time stamps had been logged since it was last written back.
//! The second always holds where a record has the change counter, which counted as the inode's
//! core: that is the announcement's second point, and each record here has it. So the first
//! condition decides ([`FdatasyncRule::takes_all`]). An fdatasync forces nothing if its write was
//! in the same tick as the one before, or if another thread's force has made its stamps durable.
//! After the change (`fields`), only what was logged since the last force counts, without the
//! counter. `seq` decides in the same way, but also leaves the stamps out of the log until an fsync
//! or the commit timer needs them.
//!
//! The old rule of Btrfs about new names is in `names::new_name`.

use crate::policy::options::FdatasyncRule;

impl FdatasyncRule {
    /// Whether a call waits for everything that was logged of the inode, time stamps included.
    pub(crate) fn takes_all(self, datasync: bool) -> bool {
        !datasync || self == FdatasyncRule::Relog
    }

    /// Whether write() logs the new time stamps.
    pub(crate) fn stamps_at_write(self) -> bool {
        self != FdatasyncRule::Seq
    }
}
