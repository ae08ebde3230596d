//! Options of format and mount. Options that are a choice between words are enums.

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

            /// The word of this value.
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
    /// What link and rename do if the inode was fsynced since the last checkpoint.
    NewName as "new_name" {
        /// Nothing. They append a record, and a later fsync that needs it forces the log.
        #[default]
        Lazy = "lazy",
        /// They force the log before they return, or even checkpoint. They do so if the inode, or
        /// the directory that it leaves, was fsynced since the last checkpoint. The former rule of
        /// Btrfs, kept for comparison (`names::new_name`).
        Sync = "sync",
    }
}

words! {
    /// When fdatasync forces the log.
    FdatasyncRule as "fdatasync" {
        /// If something that is needed to read the data changed since the last force (the inode's
        /// `datasync_lsn`).
        #[default]
        Seq = "seq",
        /// As `Seq`, but write() logs the new time stamps. The rule of XFS after its change, kept
        /// for comparison.
        Fields = "fields",
        /// As `Fields`, and also if anything of the inode, even a time stamp, is in the log and not
        /// durable. The rule of XFS before its change, kept for comparison.
        Relog = "relog",
    }
}

words! {
    /// How dirty inodes are tracked.
    DirtyTracking as "dirty_tracking" {
        /// Each open file system has its own lists.
        #[default]
        PerSb = "per_sb",
        /// One lock guards the lists of cached inodes of all file systems of the process, and a
        /// sync walks every cached inode of its file system. The former rule of Linux, kept for
        /// comparison.
        Shared = "shared",
    }
}

words! {
    /// The orders of writeback that can be chosen by a word. A program that links the library may
    /// provide another [`WritebackOrder`].
    OrderWord as "writeback_order" {
        /// The inode that has been dirty longest is written first.
        #[default]
        Oldest = "oldest",
        /// Inodes are written in the order of their locations on the device.
        Location = "location",
    }
}

impl OrderWord {
    /// The order that this word selects.
    pub fn order(self) -> Arc<dyn WritebackOrder> {
        match self {
            OrderWord::Oldest => Arc::new(OldestFirst),
            OrderWord::Location => Arc::new(ByLocation),
        }
    }
}

/// How an image is made. Fields may be added in later versions: end an expression with
/// `..FormatOptions::default()`.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Size of the image in bytes; `None`: the size of the device.
    pub size: Option<u64>,
    /// Size of the log in bytes. `None`: a 32nd of the image, but between 32 MiB and 1 GiB, and at
    /// most a quarter of the image.
    pub log_size: Option<u64>,
    /// Label of the image; at most 64 bytes.
    pub label: String,
    /// Identity of the image; `None`: a random one.
    pub uuid: Option<uuid::Uuid>,
    /// Source of random numbers; `None`: the system. With the same seed, size and time two images
    /// are equal byte for byte. For tests only, because the seed determines the image's secrets.
    pub seed: Option<u64>,
    /// Owner of the root directory.
    pub owner: Owner,
    /// Whether files may be made immutable or append-only. A mount of such an image gets each
    /// open(2), which costs two requests.
    pub immutable: bool,
    /// Whether file data has checksums, which each read from the device verifies. Data is then
    /// never overwritten in place, except that of files with [`kedge_format::FileFlags::NOCOW`].
    pub data_checksums: bool,
    /// Files of up to this many bytes have their data in the tree instead of a block of 4096 bytes.
    /// At most 2048; 0 turns that off.
    pub inline_max: u64,
    /// Whether the contents of the device are overwritten. If false, a device that does not begin
    /// with zeros is refused.
    pub overwrite: bool,
}

/// How an image is opened. Fields may be added in later versions: end an expression with
/// `..MountOptions::default()`.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Whether the image is only read: nothing is written to the device, and the log is replayed in
    /// memory.
    pub read_only: bool,
    /// Completed work that no fsync covered becomes durable at least this often.
    pub commit: Duration,
    /// Memory in bytes for cached tree nodes, file pages and inodes together.
    pub cache_size: u64,
    /// Background checkpoints start when the free log space falls below this percentage (1 to 99).
    /// `None`: an operation that finds no space runs the checkpoint.
    pub async_checkpoint: Option<u8>,
    /// The most bytes of the log that are used at a time. Bounds what a recovery reads, and with it
    /// the time that it takes. `None`: the whole log. Fixed at open.
    pub log_use_max: Option<u64>,
    /// Whether a new name of an inode that was fsynced forces the log.
    pub new_name: NewName,
    /// When fdatasync forces the log.
    pub fdatasync: FdatasyncRule,
    /// Whether one pass of writeback gathers, sorts and merges the IO of many inodes. If false, the
    /// IO of each inode is submitted by itself.
    pub plug: bool,
    /// Which dirty inodes are written first.
    pub writeback_order: Arc<dyn WritebackOrder>,
    /// Whether reads leave access times unchanged. Otherwise access times follow relatime.
    pub noatime: bool,
    /// Whether freed space is discarded in the background, on the device or on the host of an image
    /// file.
    pub discard: bool,
    /// Whether fsync and sync return at once and make nothing durable. For data that is expendable
    /// after a crash, such as a build. A crash then loses as much as without any fsync, at most
    /// what the last `commit` seconds changed, and the image stays consistent. A write that failed
    /// is still reported. Closing and freezing make everything durable. Fixed at open.
    pub volatile: bool,
    /// How dirty inodes are tracked. Fixed at open.
    pub dirty_tracking: DirtyTracking,
    /// Makes the program's own set of dirty inodes, which also chooses what background writeback
    /// takes. Called for each file system that is opened. `None`: the file system's own list.
    pub dirty_set: Option<fn() -> Arc<dyn DirtySet>>,
    /// Limits for dirty pages that the file system shares with others of this process.
    pub shared_budget: Option<Arc<SharedBudget>>,
    /// The kind of latches in the metadata tree.
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
