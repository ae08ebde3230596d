//! Options of format and mount, and the words of options that are a choice.

use crate::error::{Error, Result};
use crate::policy::dirty_set::DirtySet;
use crate::policy::order::{ByLocation, OldestFirst, WritebackOrder};
use crate::policy::shared_budget::SharedBudget;
use crate::types::Owner;
use kedge_base::Error as Engine;
use kedge_store::TreeLock;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident as $option:literal { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            pub(crate) const ALL: &[$name] = &[$($name::$variant),*];

            /// The word of the option.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }

        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<$name> {
                $name::ALL.iter().find(|v| v.word() == text).copied().ok_or_else(|| {
                    let known = $name::ALL.iter().map(|v| v.word()).collect::<Vec<_>>().join(" or ");
                    Engine::invalid(format!("{}={text}: must be {known}", $option)).into()
                })
            }
        }
    };
}

words! {
    /// What link and rename do about an inode that was fsynced since the last checkpoint.
    NewName as "new_name" {
        /// Nothing: they append a record, and a later fsync that needs it forces the log.
        #[default]
        Lazy = "lazy",
        /// They force the log before they return, or even checkpoint, if the inode, or the
        /// directory that it leaves, was fsynced since the last checkpoint. The old rule of Btrfs,
        /// kept for comparison (`names::new_name`).
        Sync = "sync",
    }
}

words! {
    /// When fdatasync forces the log.
    FdatasyncRule as "fdatasync" {
        /// If something that is needed to read the data changed since the last force: the inode's
        /// `datasync_lsn`.
        #[default]
        Seq = "seq",
        /// As `Seq`, but write() logs the new time stamps: XFS after its change, kept for
        /// comparison.
        Fields = "fields",
        /// As `Fields`, and also if anything of the inode, even time stamps, is in the log and not
        /// durable: XFS before its change, kept for comparison.
        Relog = "relog",
    }
}

words! {
    /// How dirty inodes are tracked.
    DirtyTracking as "dirty_tracking" {
        /// Each mounted file system has its own lists.
        #[default]
        PerSb = "per_sb",
        /// One lock guards the lists of cached inodes of all file systems of the process; a sync
        /// walks every cached inode of the file system. The old way of Linux, kept for comparison.
        Shared = "shared",
    }
}

words! {
    /// The orders of writeback that have a word. A program that links the library may provide its
    /// own [`WritebackOrder`].
    OrderWord as "writeback_order" {
        /// The inode that has been dirty longest is written first.
        #[default]
        Oldest = "oldest",
        /// In the order of places on the device.
        Location = "location",
    }
}

impl OrderWord {
    /// The order that the word stands for.
    pub fn order(self) -> Arc<dyn WritebackOrder> {
        match self {
            OrderWord::Oldest => Arc::new(OldestFirst),
            OrderWord::Location => Arc::new(ByLocation),
        }
    }
}

/// How an image is made. Fields may be added: end an expression with `..FormatOptions::default()`.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Bytes; `None`: the device's size.
    pub size: Option<u64>,
    /// Bytes; `None`: a 32nd of the image within 32 MiB and 1 GiB, and at most a quarter.
    pub log_size: Option<u64>,
    /// At most 64 bytes.
    pub label: String,
    /// `None`: a random one.
    pub uuid: Option<uuid::Uuid>,
    /// `None` for random numbers of the system. With a seed two images of one size and one time are
    /// equal byte for byte. For tests only: the seed determines the image's secrets.
    pub seed: Option<u64>,
    /// Owner of the root directory.
    pub owner: Owner,
    /// Whether files may be made immutable or append-only. A mount of such an image sees each
    /// open(2), which costs it two requests.
    pub immutable: bool,
    /// File data has checksums, which each read from the device verifies. Data is then never
    /// overwritten in place, except that of files with [`kedge_format::FileFlags::NOCOW`].
    pub data_checksums: bool,
    /// The data of files of up to this many bytes is in the tree instead of a block of 4096 bytes;
    /// at most 2048, and 0 for no file.
    pub inline_max: u64,
    /// Overwrites the contents of the device. Without it a device that does not begin with zeros is
    /// refused.
    pub overwrite: bool,
}

/// How an image is opened. Fields may be added: end an expression with `..MountOptions::default()`.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Nothing is written to the device; the log is replayed in memory.
    pub read_only: bool,
    /// Completed work that no fsync covered is made durable at least this often.
    pub commit: Duration,
    /// Budget in bytes for cached tree nodes and file pages together.
    pub cache_size: u64,
    /// Background checkpoints start when free log space falls below this percentage (1..=99);
    /// `None`: the operation that finds no space checkpoints.
    pub async_checkpoint: Option<u8>,
    /// Bytes of the log that are used at a time, at most, where the image has a larger one: what a
    /// recovery reads, and with it the time that it takes, is bounded by it. `None`: all of it.
    /// Fixed at open.
    pub log_use_max: Option<u64>,
    /// Whether a new name of an fsynced inode forces the log.
    pub new_name: NewName,
    /// Whether time stamps alone force the log at fdatasync.
    pub fdatasync: FdatasyncRule,
    /// Whether one pass of writeback gathers, sorts and merges the IO of many inodes. If false,
    /// each inode's IO is submitted by itself.
    pub plug: bool,
    /// Which dirty inodes are written first.
    pub writeback_order: Arc<dyn WritebackOrder>,
    /// Reading does not update access times. Otherwise they follow relatime.
    pub noatime: bool,
    /// Freed space is discarded in the background, on the device or on the host of an image file.
    pub discard: bool,
    /// fsync and sync make nothing durable, and return at once: for data that is expendable after a
    /// crash, such as a build. A crash loses as much as without any fsync, at most the last
    /// `commit`, and the image stays consistent. A write that failed is still reported. Closing and
    /// freezing make everything durable. Fixed at open.
    pub volatile: bool,
    /// Fixed at open.
    pub dirty_tracking: DirtyTracking,
    /// A dirty list of the program's own, which also chooses what background writeback writes. The
    /// function is called for each file system that is opened. `None` for the file system's own
    /// list.
    pub dirty_set: Option<fn() -> Arc<dyn DirtySet>>,
    /// Limits for dirty pages that it shares with other file systems of this process.
    pub shared_budget: Option<Arc<SharedBudget>>,
    /// How threads exclude each other in the metadata tree.
    pub tree_lock: TreeLock,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            commit: Duration::from_secs(5),
            cache_size: 256 << 20,
            async_checkpoint: Some(50),
            log_use_max: None,
            new_name: NewName::Lazy,
            fdatasync: FdatasyncRule::Seq,
            plug: true,
            writeback_order: Arc::new(OldestFirst),
            noatime: false,
            discard: false,
            volatile: false,
            dirty_tracking: DirtyTracking::PerSb,
            dirty_set: None,
            shared_budget: None,
            tree_lock: TreeLock::default(),
        }
    }
}
