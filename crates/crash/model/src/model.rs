//! What a file system may lose in a crash, as rules over [`Edit`](crate::edit::Edit)s.
//!
//! Each call is split into edits. An edit may *need* others: a crash state that contains it
//! contains those too. Every state that no rule forbids is legal. The rules that all models share:
//!
//! 1. A name needs the inode it names, and the earlier edit of the same name in the same directory.
//! 2. Bytes need the inode, the earlier bytes of the same sectors (of the same page where pages are
//!    never torn), and the last truncate, hole or shift before them that took or moved the block of
//!    their page. A truncate or hole leaves the blocks of other pages where they are: a write to
//!    one is written in place, and fsync writes it before it commits the truncate. (Observed on
//!    ext4 and XFS, Linux 6.18. In `strict` and `btrfs` bytes need the last truncate, hole or shift
//!    of the whole file: Btrfs never writes in place.) A page that is cut within brings its zeros
//!    to the disk with the next write.
//! 3. rename is one edit, except for files that change their directory under `btrfs` and `posix`:
//!    the old name may stay beside the new one, and at least one of them exists. Removing a
//!    directory needs all earlier changes of its entries; moving a directory needs all earlier
//!    moves of directories.
//! 4. Attributes need the earlier attributes of the inode, an xattr the earlier edit of its name.
//! 5. A persistence call that failed promises nothing. On Linux the next one does not write what it
//!    failed to write: the pages count as clean, on ext4, XFS and Btrfs alike (Rebello et al., "Can
//!    Applications Recover from fsync Failures?", ATC 2020), and POSIX promises nothing else.
//!
//! Where documentation and code of a file system disagree, the model follows the documentation,
//! since that is what programs may rely on; but a state that was observed is legal, whatever the
//! documentation says. Each model lists its sources, and names what no source was found for. A
//! model is a rule set, not a measurement: a state that it allows need not be one that a given
//! kernel on a given disk can be brought to. `cargo xtask crash-reality` compares.

/// The order in which metadata edits persist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any order that the needs of the edits allow.
    Free,
    /// One log: an edit of metadata needs all earlier ones, and so does a size that a write made.
    Log,
    /// One log for background commits; fsync persists an inode separately, without the edits before
    /// it.
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
    /// A size that a write set needs the bytes that were written to its page below that size.
    pub size_needs_data: bool,
    /// As above, for a page that held bytes before, so that the write allocated no block. If unset,
    /// such a size needs only the write that allocated the block.
    pub size_in_old_block_needs_data: bool,
    /// A size that a write set needs the smaller sizes before it: a file may be too short, but it
    /// has no holes of zeros.
    pub size_in_order: bool,
    /// A truncate or fallocate that keeps or enlarges the size needs the last size that a write set
    /// before it.
    pub growth_needs_size: bool,
    /// A rename over an existing file needs the bytes and sizes written to the renamed file before.
    pub rename_needs_data: bool,
    /// fsync of a file or directory persists the inode's own names too.
    pub fsync_keeps_names: bool,
    /// A page written when power fails may hold some of its sectors only.
    pub torn_pages: bool,
    /// A truncate inside a page writes zeros past the new end, which may reach the disk before the
    /// new size. So does a hole at its edges. If unset, these zeros are written with the next write
    /// of the page.
    pub cut_zeroes_first: bool,
    /// fallocate's zero range marks the blocks as unwritten and keeps them. A later write to them
    /// may reach the disk before the mark.
    pub zeroes_in_place: bool,
    /// A rename into another directory adds the new name and then removes the old one. Each of
    /// these edits is persisted with its directory, and a crash between them leaves both names.
    pub rename_may_link: bool,
    /// Bytes whose persistence call failed stay dirty: the next call that succeeds writes them. If
    /// unset, no later call writes them.
    pub failed_fsync_keeps: bool,
    /// The recording is of a block device. A discard is lost or applied independently of all other
    /// writes.
    pub is_disk: bool,
    /// Sectors of a write in progress may hold bytes that are neither old nor new.
    pub garbage: bool,
}

/// KedgeFS, as docs/CRASH_MODEL.md promises: G12 orders all metadata, G9 puts bytes before the size
/// that shows them, G1 persists names. Bytes that overwrite others persist in any order before
/// fsync, and before the record of a truncate, hole or zero range that left their block in place
/// (`data::fallocate` of the engine). A truncate zeroes the rest of its page in memory, and the
/// next write of the page writes these zeros.
const KEDGEFS: Model = Model {
    name: "kedgefs",
    about: "KedgeFS: metadata in order, bytes before the size that shows them, fsync persists names",
    order: Order::Log,
    size_needs_data: true,
    size_in_old_block_needs_data: true,
    size_in_order: true,
    growth_needs_size: true,
    rename_needs_data: false,
    fsync_keeps_names: true,
    torn_pages: true,
    cut_zeroes_first: false,
    zeroes_in_place: true,
    rename_may_link: false,
    failed_fsync_keeps: true,
    is_disk: false,
    garbage: false,
};

/// Every edit needs the one before it. No file system promises this order. A program that fails
/// here fails on every file system: its calls are in the wrong order, or none of them makes its
/// promises durable.
pub(crate) const STRICT: Model = Model {
    name: "strict",
    about: "everything in the order of the calls: what fails here fails everywhere",
    order: Order::Total,
    size_needs_data: true,
    size_in_old_block_needs_data: true,
    size_in_order: true,
    growth_needs_size: true,
    rename_needs_data: true,
    fsync_keeps_names: true,
    torn_pages: true,
    cut_zeroes_first: false,
    zeroes_in_place: false,
    rename_may_link: false,
    failed_fsync_keeps: true,
    is_disk: false,
    garbage: false,
};

/// ext4 with data=ordered as documented: delalloc, auto_da_alloc. ext4 behaves so with the mount
/// option dioread_lock, and with kernels before 5.6.
///
/// Sources: Linux Documentation/admin-guide/ext4.rst, data=ordered ("All data are forced directly
/// out to the main file system prior to its metadata being committed to the journal") and
/// auto_da_alloc ("the data blocks of the new file are forced to disk before the rename() operation
/// is committed"). One running transaction, committed as a whole, in order:
/// Documentation/filesystems/ext4/journal.rst; D. Chinner, linux-kernel, 14 September 2018,
/// "metadata operation reordering regards to crash" (renames keep their order on XFS, ext4, Btrfs
/// and F2FS). fsync commits the transaction that last changed the inode: fs/ext4/fsync.c. The
/// replace-by-truncate rule of auto_da_alloc starts the write when the file is closed and waits for
/// nothing, so an empty file stays legal; closes are not recorded and the rule is not used.
///
/// Ordered mode writes data only for blocks that the transaction allocates. A write that extends a
/// file inside a block that the file already has allocates none: its size does not wait for the
/// bytes, and zeros show (fs/ext4/inode.c, ext4_da_write_end; observed by `cargo xtask
/// crash-reality`). The model is looser than that: a page that is a hole before the file's end
/// counts as a block.
///
/// A zero range marks extents as unwritten where they are (fs/ext4/extents.c, ext4_zero_range); a
/// hole frees its blocks.
///
/// No document orders the sizes of one file: later pages may be written first, and zeros show
/// before them.
///
/// A write in place changes no metadata but the time stamps. The fsync of such a write commits the
/// journal, and with it all earlier metadata, only if there is a new time stamp. The second of two
/// writes in one tick of the clock has none, and with the mount option lazytime none has one. So
/// here that fsync persists the bytes alone (observed on ext4 and XFS, Linux 6.18: in `write f;
/// fsync f; rename a b; write f; fsync f` the rename is lost if all of this takes less than a
/// tick).
const EXT4_ORDERED: Model = Model {
    name: "ext4-ordered",
    about: "ext4 data=ordered by its documentation: new blocks after their bytes, replace by rename keeps the bytes",
    size_in_old_block_needs_data: false,
    size_in_order: false,
    growth_needs_size: false,
    rename_needs_data: true,
    cut_zeroes_first: true,
    zeroes_in_place: true,
    failed_fsync_keeps: false,
    ..KEDGEFS
};

/// ext4 as it is mounted by default since Linux 5.6, with the option dioread_nolock. Blocks are
/// allocated as unwritten. The change that marks them written may come in a later transaction than
/// the size, or the rename, that shows them. The bytes are on the disk by then, and the file reads
/// as zeros.
///
/// Sources: fs/ext4/inode.c: mpage_map_and_submit_extent moves the size on disk when the write has
/// been submitted, and ext4_map_blocks puts inodes on the list of ordered data only if their new
/// extents are not unwritten. `cargo xtask crash-reality` observes this on Linux 6.18, for appended
/// bytes and for replace by rename.
const EXT4: Model = Model {
    name: "ext4",
    about: "ext4 as it comes since Linux 5.6: metadata in order, sizes and renames without their bytes (zeros)",
    size_needs_data: false,
    rename_needs_data: false,
    ..EXT4_ORDERED
};

/// ext4 with data=writeback. The rules are those of `ext4`. Missing bytes may be the old contents
/// of the blocks ("can potentially leave stale data exposed in recently written files"), which the
/// states built here never contain. A program that accepts stale bytes also accepts zeros, unless
/// it checks for zeros.
///
/// Source: ext4.rst: "Data ordering is not preserved, data may be written into the main file system
/// after its metadata has been committed to the journal".
const EXT4_WRITEBACK: Model = Model {
    name: "ext4-writeback",
    about: "ext4 data=writeback: as ext4 (what stale blocks held before is not shown)",
    ..EXT4
};

/// XFS has one log, and the size on disk moves when the write of the bytes has completed
/// (fs/xfs/xfs_aops.c, ioends). Two ioends of one file complete in any order, so zeros may precede
/// bytes that are written. There is no rule for replace by rename. A zero range punches a hole and
/// allocates other blocks (fs/xfs/xfs_file.c, xfs_falloc_zero_range).
///
/// A truncate or fallocate to a size that is not below the present one writes the bytes from the
/// size on disk to the new size, and waits, before it logs the new size (fs/xfs/xfs_iops.c,
/// xfs_setattr_size). So the page that ends the file then has its bytes. Pages before it need not:
/// if that page was written first, the size on disk is already the present one, and nothing is
/// waited for.
///
/// Sources: one log, replayed in order whatever the order of the writes: Linux
/// Documentation/filesystems/xfs/xfs-delayed-logging-design.rst; D. Chinner, linux-fsdevel,
/// February 2019 (spinics msg139771). That message promises less than the code does: an fsync
/// persists "all the previous dependent modifications to the objects we need to persist", not all
/// earlier ones. The model follows the code here. J. Mohan, linux-fsdevel, 12 March 2019 (spinics
/// msg140896), a description of the guarantees of XFS, ext4, F2FS and Btrfs that was never merged.
/// Not found in any document: that ioends of one file may complete in any order.
const XFS: Model = Model {
    name: "xfs",
    about: "XFS: metadata in order, each size after its bytes, no rule for replace by rename",
    size_in_old_block_needs_data: true,
    growth_needs_size: true,
    rename_needs_data: false,
    zeroes_in_place: false,
    ..EXT4_ORDERED
};

/// Btrfs: a transaction is a prefix of all metadata. fsync logs one inode, with its new names and
/// the new directories above it, without earlier metadata of other inodes. Bytes are never
/// overwritten in place, and each block has a checksum, so no page is torn. A rename starts the
/// write of the bytes and does not wait for it.
///
/// An fsync of the directory to which a file was moved persists the new name and leaves the old one
/// (observed by `cargo xtask crash-reality` on Linux 6.18); any process may call it. The file then
/// has both names. An fsync of the file, or of both directories, completes the move. Renames inside
/// one directory are atomic.
///
/// Sources: order of renames: D. Chinner, as for ext4. btrfs(5), flushoncommit ("buffered writes
/// may last more than one transaction commit" when it is off, the default); fs/btrfs/tree-log.c,
/// its head ("directory trouble cases") and btrfs_log_inode_parent; commit d4682ba03ef6, "Btrfs:
/// sync log after logging new name" (new names and new ancestors are in the log); Mohan et al.,
/// "Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI 2018. Not found in
/// any document: in which order a truncate inside a page writes.
const BTRFS: Model = Model {
    name: "btrfs",
    about: "Btrfs: transactions in order, fsync logs one inode beside them, whole blocks",
    order: Order::Transaction,
    size_needs_data: true,
    size_in_old_block_needs_data: true,
    size_in_order: false,
    growth_needs_size: false,
    rename_needs_data: false,
    fsync_keeps_names: true,
    torn_pages: false,
    cut_zeroes_first: false,
    zeroes_in_place: false,
    rename_may_link: true,
    failed_fsync_keeps: false,
    is_disk: false,
    garbage: false,
};

/// The least that POSIX guarantees, if rename inside a directory is taken to be atomic: fsync
/// persists one inode, its names need an fsync of their directory, and everything else may be
/// missing in any combination. This model allows every state that the other models allow, except
/// that it adds no order of its own.
///
/// Sources: POSIX.1-2024, fsync() and fdatasync(), rationale; Pillai et al., "All File Systems Are
/// Not Created Equal", OSDI 2014 (the abstract persistence model of ALICE); fsync(2) ("does not
/// necessarily ensure that the entry in the directory containing the file has also reached disk").
const POSIX: Model = Model {
    name: "posix",
    about: "the bare minimum: only what an fsync of that file or that directory covers is safe",
    order: Order::Free,
    size_needs_data: false,
    size_in_old_block_needs_data: false,
    size_in_order: false,
    growth_needs_size: false,
    rename_needs_data: false,
    fsync_keeps_names: false,
    torn_pages: true,
    cut_zeroes_first: true,
    zeroes_in_place: true,
    rename_may_link: true,
    failed_fsync_keeps: false,
    is_disk: false,
    garbage: false,
};

/// All models, from the strictest to the loosest.
pub const MODELS: [Model; 8] = [STRICT, KEDGEFS, EXT4_ORDERED, XFS, BTRFS, EXT4, EXT4_WRITEBACK, POSIX];

/// A disk with a volatile write cache: any subset of the writes since the last flush survives, in
/// any order. A sector of 512 bytes is written whole or not at all. Any contiguous run of the
/// sectors of a page of 4 KiB may be written. That includes shorn writes, of which 3 or 7 of 8
/// sectors are written.
///
/// Sources: Linux Documentation/block/writeback_cache_control.rst; NVMe base specification, atomic
/// write unit power fail (AWUPF, at least one block); Zheng et al., "Understanding the Robustness
/// of SSDs under Power Fault" (FAST 2013), for shorn writes.
const DISK: Model = Model {
    name: "disk",
    about: "a block device: any writes since the last flush are lost, in sectors of 512 bytes",
    is_disk: true,
    ..POSIX
};

/// A disk with sectors of 4 KiB, so that no page is torn.
const DISK_4K: Model = Model {
    name: "disk-4k",
    about: "a block device with sectors of 4 KiB: any writes since the last flush are lost",
    torn_pages: false,
    ..DISK
};

/// Like [`DISK`]. In addition, one sector of a page that was being written, or all sectors of the
/// write, may hold garbage.
///
/// Source: Zheng et al., as above: bit corruption in 3 of 15 SSDs, and shorn writes whose rest held
/// neither old nor new data. No specification allows this; a program can detect it by checksums.
const DISK_GARBAGE: Model = Model {
    name: "disk-garbage",
    about: "as disk, and sectors that were being written may hold garbage",
    garbage: true,
    ..DISK
};

/// The models of block devices.
pub const DISKS: [Model; 3] = [DISK_4K, DISK, DISK_GARBAGE];

impl Model {
    /// Whether bytes are written over older ones in the same block. Then a write to a block that
    /// the file keeps may persist before a truncate or hole that came first.
    pub(crate) fn overwrites(&self) -> bool {
        !matches!(self.order, Order::Total | Order::Transaction)
    }

    pub fn by_name(name: &str) -> Option<Model> {
        MODELS.into_iter().chain(DISKS).find(|m| m.name == name)
    }
}
