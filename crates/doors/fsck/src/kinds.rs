//! The kinds of findings. Their names are stable, because scripts match on them.

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $name:literal,)*) => {
        /// The kind of a fault. [`FindingKind::name`] is stable across versions.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
        pub enum FindingKind {
            $($(#[doc = $doc])* #[serde(rename = $name)] $kind,)*
        }

        impl FindingKind {
            pub const ALL: &'static [FindingKind] = &[$(FindingKind::$kind),*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(FindingKind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// The device failed a read: the blocks there were not checked.
    IoError = "io-error",
    /// Neither slot starts with the magic of a superblock.
    NotAnImage = "not-an-image",
    /// The image demands a format or feature that this version does not know.
    Unsupported = "unsupported",
    /// Recovery could not replay the log.
    ReplayFailed = "replay-failed",

    /// A superblock slot is not valid.
    SuperblockSlotBad = "superblock-slot-bad",
    /// No superblock slot is valid. A copy is used if there is one.
    SuperblockMissing = "superblock-missing",
    /// A copy of the superblock is not valid, is of another image, or is newer than the slots.
    SuperblockCopyBad = "superblock-copy-bad",
    /// The two slots disagree on geometry, identity or features.
    SuperblockSlotsDiffer = "superblock-slots-differ",
    /// The superblock says the image was unmounted, but its tail lies before its checkpoint, or its
    /// log continues after it.
    SuperblockCleanWithLog = "superblock-clean-with-log",
    /// A counter or log position of the superblock is higher than any image can reach.
    SuperblockCounter = "superblock-counter",
    /// The superblock's inode count differs from the tree's.
    SuperblockInodes = "superblock-inodes",
    /// The superblock's free block count differs from the sum over the groups.
    SuperblockFreeBlocks = "superblock-free-blocks",
    /// The superblock's node count differs from the tree's.
    SuperblockNodes = "superblock-nodes",
    /// An inode number in use is not below the superblock's next inode number.
    SuperblockNextIno = "superblock-next-ino",

    /// An unmount could not write the data of some files and dropped that data. The rest of the
    /// image is not affected.
    DataLost = "data-lost",

    /// The table of trees has an impossible entry, or entries that contradict each other.
    TreesBad = "trees-bad",
    /// A block that trees use has no owner or two owners. Or a tree uses a block that must belong
    /// to its point by its birth, but the point does not have the block.
    TreesShare = "trees-share",

    /// The table of trees has an impossible limit, or limits that contradict each other, or an
    /// inode counts for a limit that does not exist.
    LimitBad = "limit-bad",
    /// A limit's counts differ from the blocks or inodes below its directory.
    LimitWrong = "limit-wrong",

    /// A tree node does not match its parent's pointer (or the superblock's).
    NodeBad = "node-bad",
    /// A child pointer outside the data area, or not on a node boundary.
    NodeMisplaced = "node-misplaced",
    /// A node that is reached twice, or that overlaps another node.
    NodeShared = "node-shared",
    /// A node whose keys are out of order, or outside the range that its parent gives it.
    KeyOrder = "key-order",

    /// An item of a kind that the format does not know.
    ItemUnknown = "item-unknown",
    /// An item of a known kind under a key that its kind does not allow.
    ItemMisplaced = "item-misplaced",
    /// Items under an inode number that has no inode.
    ItemWithoutInode = "item-without-inode",

    /// An inode core that cannot be decoded or has impossible fields.
    InodeBad = "inode-bad",
    /// The root directory is missing, is no directory, is named by an entry, or its parent is not
    /// itself.
    RootBad = "root-bad",
    /// An inode without a directory entry and without an orphan item.
    InodeUnnamed = "inode-unnamed",
    /// The link count is not the number of names (for a directory: 2 plus its subdirectories).
    NlinkWrong = "nlink-wrong",
    /// The block count is not the sum of the extents.
    BlocksWrong = "blocks-wrong",

    /// An orphan item that cannot be decoded.
    OrphanBad = "orphan-bad",
    /// An orphan item of an inode that does not exist.
    OrphanDangling = "orphan-dangling",
    /// An orphan item that contradicts its inode: the inode has a name though the item says
    /// unlinked, or the item says truncate and the inode is no file.
    OrphanWrong = "orphan-wrong",

    /// A directory entry that cannot be decoded or has an impossible name.
    DentryBad = "dentry-bad",
    /// A directory entry in a slot that its name does not hash to.
    DentrySlot = "dentry-slot",
    /// A name that a directory holds twice.
    DentryDuplicate = "dentry-duplicate",
    /// A directory entry under an inode that is no directory.
    DentryOnFile = "dentry-on-file",
    /// A directory entry that names an inode that does not exist.
    DentryDangling = "dentry-dangling",
    /// A directory entry whose type differs from its inode's.
    DentryType = "dentry-type",
    /// A directory's size is not the number of its entries.
    DirSize = "dir-size",
    /// A directory that more than one entry names.
    DirManyNames = "dir-many-names",
    /// A directory whose parent is not the directory that names it.
    DirParent = "dir-parent",
    /// Directories that name each other in a cycle and so cannot be reached.
    DirCycle = "dir-cycle",
    /// A directory without a name that still holds entries.
    DirUnlinkedNotEmpty = "dir-unlinked-not-empty",

    /// A symlink target that is empty, too long or holds a NUL, or whose length is not the
    /// symlink's size.
    SymlinkBad = "symlink-bad",
    /// A symlink target under an inode that is no symlink.
    SymlinkOnOther = "symlink-on-other",
    /// A symlink without a target.
    SymlinkMissing = "symlink-missing",

    /// An extended attribute that cannot be decoded.
    XattrBad = "xattr-bad",
    /// An extended attribute in a slot that its name does not hash to.
    XattrSlot = "xattr-slot",
    /// An attribute name that an inode holds twice.
    XattrDuplicate = "xattr-duplicate",
    /// A part of a large attribute value that is missing or out of sequence, or a part without its
    /// attribute.
    XattrPart = "xattr-part",

    /// An extent that cannot be decoded.
    ExtentBad = "extent-bad",
    /// An extent under an inode that is no regular file.
    ExtentOnOther = "extent-on-other",
    /// An extent beyond the largest file size.
    ExtentBeyondLimit = "extent-beyond-limit",
    /// Two extents of a file hold the same file block.
    ExtentOverlap = "extent-overlap",
    /// An extent outside the data area.
    ExtentMisplaced = "extent-misplaced",
    /// An extent that crosses an allocation group.
    ExtentCrossesGroup = "extent-crosses-group",
    /// Blocks that more than one owner claims.
    BlockShared = "block-shared",

    /// A count of shared blocks that cannot be decoded or is impossible.
    CountBad = "count-bad",
    /// Shared blocks whose count differs from the number of extents that refer to them.
    CountWrong = "count-wrong",

    /// File data in the tree that is too long, or longer than its file, or under an inode that
    /// cannot have any.
    InlineBad = "inline-bad",
    /// File data in the tree, although the file has an extent for the same file block.
    InlineOverlap = "inline-overlap",

    /// An item of checksums that cannot be decoded, or under an inode that cannot have any.
    SumsBad = "sums-bad",
    /// Written blocks without a checksum, in a file that has checksums.
    SumsMissing = "sums-missing",
    /// File data that does not match its checksum.
    DataBad = "data-bad",

    /// A block of the allocation index is not valid.
    IndexBad = "index-bad",
    /// A group's bitmap does not match the checksum in the index.
    BitmapBad = "bitmap-bad",
    /// A group's free count differs from its bitmap's.
    GroupFreeBlocks = "group-free-blocks",
    /// Blocks marked as owned that nothing owns.
    BlocksLeaked = "blocks-leaked",
    /// Blocks owned but marked free: the next allocation would overwrite them.
    BlocksUnmarked = "blocks-unmarked",
}

impl FindingKind {
    /// Whether the finding means that a check could not be made, and not that the image is wrong.
    pub const fn is_operational(self) -> bool {
        matches!(self, FindingKind::IoError | FindingKind::NotAnImage | FindingKind::Unsupported)
    }

    pub const fn severity(self) -> Severity {
        match self {
            FindingKind::SuperblockCleanWithLog => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    Error,
    Warning,
}
