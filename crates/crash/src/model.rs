//! What a file system may lose in a crash, as rules over [`Edit`](crate::edit::Edit)s.
//!
//! Each call is split into edits; an edit *needs* others: a crash state that has it has those. What no rule forbids is
//! legal. The rules every model shares:
//!
//! 1. A name needs the inode it names, and the earlier edit of the same name in the same directory.
//! 2. Bytes need the inode, the earlier bytes of the same page, and the last truncate, hole or shift of the file before them.
//! 3. rename is one edit. Removing a directory needs all earlier changes of its entries; moving a directory needs all
//!    earlier moves of directories.
//! 4. Attributes need the earlier attributes of the inode, an xattr the earlier edit of its name.
//! 5. A persistence call that failed promises nothing.
//!
//! Where documentation and code of a file system disagree, the documentation is what programs may rely on, and the model
//! follows it. The sources of each model stand at its rules. A model is a rule set, not a measurement: a state that it
//! allows need not be one that a given kernel on a given disk can be brought to.

/// Which metadata edits persist in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any, as far as one does not need the other.
    Free,
    /// One log: an edit of metadata needs all earlier ones, and so does a size that a write made.
    Log,
    /// One log for what is committed by the way, and fsync persists an inode beside it, without what came before.
    Transaction,
    /// Everything, bytes included, in the order of the calls.
    Total,
}

/// The rules of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    pub name: &'static str,
    /// One line for the list of models.
    pub about: &'static str,
    pub order: Order,
    /// The size that a write made needs the bytes of that page.
    pub size_needs_data: bool,
    /// The size that a write made needs the smaller sizes before it: a file is cut off, it has no holes of zeros.
    pub size_in_order: bool,
    /// A rename over an existing file needs the bytes and sizes written to the renamed file before.
    pub rename_needs_data: bool,
    /// A write's time stamps have a place in the log, so that fsync persists the metadata before them.
    pub write_is_logged: bool,
    /// fsync of a file or directory persists the inode's own names too.
    pub fsync_keeps_names: bool,
    /// A page written when power fails may hold some of its sectors only.
    pub torn_pages: bool,
}

/// KedgeFS: docs/CRASH_MODEL.md. G12 orders all metadata, G9 puts bytes before the size that shows them, G1 persists names.
/// Bytes that overwrite others persist in any order before fsync.
const KEDGEFS: Model = Model {
    name: "kedgefs",
    about: "KedgeFS: metadata in order, bytes before the size that shows them, fsync persists names",
    order: Order::Log,
    size_needs_data: true,
    size_in_order: true,
    rename_needs_data: false,
    write_is_logged: false,
    fsync_keeps_names: true,
    torn_pages: true,
};

/// Every edit needs the one before it. No file system promises it. A program that fails here fails on every file
/// system: its calls themselves are in the wrong order, or nothing at all makes its promises durable.
pub(crate) const STRICT: Model = Model {
    name: "strict",
    about: "everything in the order of the calls: what fails here fails everywhere",
    order: Order::Total,
    size_needs_data: true,
    size_in_order: true,
    rename_needs_data: true,
    write_is_logged: true,
    fsync_keeps_names: true,
    torn_pages: true,
};

/// ext4 as it is mounted by default: data=ordered, delalloc, auto_da_alloc.
///
/// Sources: Linux Documentation/admin-guide/ext4.rst (data=ordered: "all data are forced directly out to the main file
/// system prior to its metadata being committed to the journal"; auto_da_alloc for replace by rename); jbd2: one running transaction,
/// committed as a whole, in order (Documentation/filesystems/ext4/journal.rst); fsync commits the transaction that last
/// changed the inode (fs/ext4/fsync.c). The replace-by-truncate rule starts the write when the file is
/// closed and waits for nothing, so an empty file stays legal; closes are not recorded and the rule is not used.
/// Looser than the documentation is the code since 5.6 (dioread_nolock): blocks allocated as unwritten need not be on the
/// ordered list, and zeros may show. The model follows the documentation.
const EXT4: Model = Model {
    name: "ext4",
    about: "ext4 data=ordered: metadata in order, delayed bytes, replace by rename keeps the bytes",
    rename_needs_data: true,
    write_is_logged: true,
    ..KEDGEFS
};

/// ext4 with data=writeback: sizes and renames may persist without the bytes, which then read as zeros (stale bytes are
/// possible too, and would fail the same checkers).
///
/// Source: ext4.rst: "data ordering is not preserved, data may be written into the main file system after its metadata has been
/// committed to the journal".
const EXT4_WRITEBACK: Model = Model {
    name: "ext4-writeback",
    about: "ext4 data=writeback: metadata in order, sizes and renames without their bytes",
    size_needs_data: false,
    size_in_order: false,
    rename_needs_data: false,
    ..EXT4
};

/// XFS: one log, and the size on disk moves when the write of those bytes has completed (fs/xfs/xfs_aops.c, ioends). Two
/// ioends of one file complete in any order, so that zeros may stand before bytes that are there. No rule for replace by
/// rename.
///
/// Sources: Linux Documentation/filesystems/xfs/xfs-delayed-logging-design.rst; the XFS FAQ on files full of zeros; D. Chinner on
/// strictly ordered metadata (fstests list, 2018), as in Documentation of CrashMonkey's authors.
const XFS: Model = Model {
    name: "xfs",
    about: "XFS: metadata in order, each size after its bytes, no rule for replace by rename",
    size_in_order: false,
    rename_needs_data: false,
    ..EXT4
};

/// Btrfs: a transaction is a prefix of all metadata; fsync logs one inode, with its new names and the new directories
/// above it, without what came before in other places. Bytes are never overwritten in place, and each block has a checksum: no torn page.
/// Renaming starts the write of the bytes and does not wait.
///
/// Sources: btrfs(5), flushoncommit ("buffered writes may last more than one transaction commit" when it is off, the
/// default); fs/btrfs/tree-log.c, its head and btrfs_log_inode_parent; Mohan et al., "Finding Crash-Consistency Bugs with
/// Bounded Black-Box Crash Testing", OSDI 2018.
const BTRFS: Model = Model {
    name: "btrfs",
    about: "Btrfs: transactions in order, fsync logs one inode beside them, whole blocks",
    order: Order::Transaction,
    size_needs_data: true,
    size_in_order: false,
    rename_needs_data: false,
    write_is_logged: false,
    fsync_keeps_names: true,
    torn_pages: false,
};

/// The least that POSIX leaves standing once rename is held to be atomic: fsync persists one inode, its names
/// need an fsync of their directory, and everything else may be missing in any combination.
///
/// Sources: POSIX.1-2024, fsync() and fdatasync(), rationale; Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014
/// (the abstract persistence model of ALICE); fsync(2) ("does not necessarily ensure that the entry in the directory
/// containing the file has also reached disk").
const POSIX: Model = Model {
    name: "posix",
    about: "the bare minimum: only what an fsync of that file or that directory covers is safe",
    order: Order::Free,
    size_needs_data: false,
    size_in_order: false,
    rename_needs_data: false,
    write_is_logged: false,
    fsync_keeps_names: false,
    torn_pages: true,
};

/// All, from the strictest to the loosest.
pub const MODELS: [Model; 7] = [STRICT, KEDGEFS, EXT4, XFS, BTRFS, EXT4_WRITEBACK, POSIX];

impl Model {
    pub fn by_name(name: &str) -> Option<Model> {
        MODELS.into_iter().find(|m| m.name == name)
    }
}
