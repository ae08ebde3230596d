//! Rules of other file systems about what forces the log. They are kept to compare with, and are as
//! safe as the default ones.
//!
//! # fdatasync of XFS
//! write() changes the time stamps in a transaction of its own if the coarse clock has moved since
//! they were set ([`FdatasyncRule::stamps_at_write`]). Before its change (`relog`), fdatasync
//! forced the log if two things held: the inode was in a part of the log that was not durable (it
//! was pinned), and more than time stamps of it had been logged since it was last written back. The
//! second always holds where a record carries the change counter, which counted as the inode's
//! core: that is the announcement's second point, and each record here carries it. So the first
//! decides ([`FdatasyncRule::takes_all`]). An fdatasync whose write came in the same tick as the
//! one before, or whose stamps another thread's force has made durable, forces nothing. After the
//! change (`fields`), only what was logged since the last force counts, without the counter: `seq`
//! decides so, too, and leaves the stamps out of the log until an fsync or the commit timer wants
//! them.
//!
//! The old rule of Btrfs about new names is in `names::new_name`.

use crate::options::FdatasyncRule;

impl FdatasyncRule {
    /// Whether a call waits for all that was logged of the inode, time stamps included.
    pub(crate) fn takes_all(self, datasync: bool) -> bool {
        !datasync || self == FdatasyncRule::Relog
    }

    /// Whether write() logs the new time stamps.
    pub(crate) fn stamps_at_write(self) -> bool {
        self != FdatasyncRule::Seq
    }
}
