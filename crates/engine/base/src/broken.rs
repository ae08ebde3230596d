//! Deliberately broken engines: the proof that the crash suite can fail.
//!
//! With the feature `broken`, a test switches on one [`Variant`] for the whole process. The engine
//! calls [`is`] at each place that enforces the variant's rule, and breaks the rule there. Without
//! the feature, [`is`] is `false` at compile time, so a release build contains none of this code.
//! Never enable the feature in a program that keeps data.

/// A rule that this build can make the engine break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Variant {
    /// A log write does not first flush the data to which its records refer.
    SkipDataFlush = 1,
    /// A log write shares its flush with the data to which its records refer.
    SharedFlush,
    /// fsync returns while its log write is under way.
    AckBeforeForce,
    /// An fdatasync that needs no log force does not flush data that was overwritten in place.
    FdatasyncSkipsFlush,
    /// A data block is reused before the record that freed it is durable.
    ReuseFreedBlock,
    /// A replaced tree node is reused before the next checkpoint is durable.
    ReuseReplacedNode,
    /// A tree frees nodes that its fork or its origin still uses.
    FreeSharedNode,
    /// The record of an overwrite keeps the checksums of the old bytes instead of storing new ones.
    StaleChecksum,
    /// Data that has checksums is overwritten in place instead of being written to new blocks.
    SumsInPlace,
    /// Recovery overwrites a block that has a checksum.
    SumsInReplay,
    /// A tree frees and overwrites blocks that its fork or its origin still uses.
    BirthIgnored,
    /// Blocks of a deleted tree are reused before the checkpoint that frees them is durable.
    ReuseFreedTree,
    /// A cut omits a tree that has changed since the previous cut.
    ChangedTreeLeftOut,
    /// Blocks that only a deleted tree or point used leak instead of being freed.
    DeadListLost,
    /// A fork that replaces the first tree keeps the marks of the replaced tree, so it frees and
    /// overwrites blocks that it shares.
    ReplacedRootUnmarked,
    /// A replacement of the first tree and the resulting change of tree names are written by two
    /// checkpoints instead of one.
    NamesAfterRoot,
    /// The superblock slot is written without a flush of the blocks to which it points.
    SlotBeforeNodes,
    /// Copies of the superblock are written before the superblock slot itself.
    CopyBeforeSlot,
    /// The tail passes data whose only durable copy is in the log.
    TailPastResidents,
    /// fdatasync ignores a change of the file size.
    ForgetDatasyncOnSize,
    /// Data that was log-resident and has been written in place since is not dropped from the log,
    /// so replay restores old bytes.
    ReplayOldData,
    /// Rename neither lowers the link count of the file that it replaces nor makes it an orphan.
    ForgetRenameVictim,
    /// Extents and sizes are recorded before their data is written.
    ExtentBeforeData,
    /// Any record of an inode contains its live size, even if the bytes up to it are not written.
    SizeBeyondWritten,
    /// Replay omits the last edit of each record.
    PartialRecord,
    /// A mount continues in the log epoch of the previous mount.
    KeepEpoch,
    /// fsync treats an evicted inode as durable.
    ForgetEvicted,
    /// Operations run between the choice of a checkpoint's cut LSN and its snapshot of the tree.
    CutNotExact,
    /// A force returns when its own log write is durable, although an earlier log write is not yet.
    AckOutOfOrder,
    /// Pages count as written although the commit of their record failed.
    ErrorNotPropagated,
    /// An fsync that waits for another thread's writeback ignores its result.
    WaitWithoutLook,
    /// An inode read from the tree enters the cache although the tree has changed it since the
    /// read.
    StaleInode,
    /// A write that must be complete or fail returns a short count.
    ShortWhole,
    /// An unmount that gives up dirty data of files does not record the loss.
    ForgetLosses,
    /// Writeback from the kernel's page cache sets the inode's time stamps.
    TouchInWriteback,
    /// Blocks are discarded before the record that freed them is durable.
    DiscardEarly,
    /// No flush separates a discard from the record that maps new data to the discarded blocks.
    DiscardWithoutFlush,
    /// Recovery accepts bytes as a log write if magic, uuid and checksum match, without the secret
    /// key.
    UnkeyedLog,
    /// The tail moves to a checkpoint's cut before the superblock slot of that checkpoint is
    /// durable.
    TailBeforeSlot,
    /// A thaw does not clear the clean mark that the freeze has set.
    ThawKeepsClean,
    /// Writes do not wait for the end of a freeze.
    UngatedWriter,
    /// A server that takes over a frozen image writes a checkpoint when it opens the image.
    FrozenOpenWrites,
    /// Setting an attribute to a shorter value leaves parts of the old value in the tree.
    KeepOldParts,
    /// An fsync that shares a writeback pass with others returns before that pass.
    GroupedAckEarly,
    /// Replay adds what a record uses of a limit twice.
    LimitCountedTwice,
    /// Space that is promised to writes but not yet used does not count against a limit.
    LimitUnpromised,
    /// An atomic write is split into two records, with a force between them.
    AtomicInParts,
    /// Pages of an atomic write are written in place before their record is durable.
    AtomicWrittenEarly,
    /// The first file that gives up a shared block frees it.
    SharedBlockFreed,
    /// A clone does not mark the extents of its source as shared.
    CloneWithoutFlag,
    /// A clone of a whole file truncates the target in a record before the record of the clone.
    CloneAfterTruncate,
    /// Recovery overwrites a block that several files share.
    CountsInReplay,
    /// Recovery completes a partly logged block without the inline bytes in the tree.
    InlineInReplay,
    /// The record that moves a small file's bytes from the tree to a block does not flush that
    /// block.
    InlineOutUnflushed,
    /// An fallocate or a clone deletes a small file's bytes from the tree without logging them.
    InlineOutUnlogged,
    /// A shrink gives up the device beyond the new end before the slot with the new size is
    /// durable.
    CutBeforeSlot,
    /// When a file is remapped to the new copy of a shared block, the copy's reference count does
    /// not include the file.
    MoveUncounted,
    /// A tree that is being opened keeps marks that have changed since they were read.
    StaleMarks,
    /// A removal of extents uses the inode's link count and deletion state from before it took the
    /// inode's lock.
    EarlyRemoval,
    /// The last change in progress leaves the gate without waking the freeze that waits for it.
    UnwokenFreeze,
    /// A close lets changes run concurrently with its final sync.
    CloseBesideChanges,
    /// A reader of extents sees the tree between two edits of one record.
    LookBetweenEdits,
    /// A reservation that waits for log space does not check the free space again after it has
    /// become visible to other threads as a waiter.
    UngrantedReturn,
    /// A log write takes a batch in which a record has an offset but not yet its bytes.
    UnfilledBatch,
    /// A change converts the inode number that it returns after it has left the gate, when the
    /// first tree may have been replaced.
    LateNumber,
    /// A punch takes the end of the file from the size that the file had before the punch locked
    /// it.
    StaleEnd,
    /// A sync joins a round of writeback that began before the sync was called.
    SyncJoinsRunning,
    /// A durable write that fails in its flush counts as a failed write, so what the flush has lost
    /// counts as written.
    LostByDurableWrite,
}

impl Variant {
    /// Variants that only the exploration of thread schedules (`kedge-sched`) detects.
    pub const IN_SCHEDULES: &'static [Variant] = &[
        Variant::StaleMarks,
        Variant::EarlyRemoval,
        Variant::UnwokenFreeze,
        Variant::LookBetweenEdits,
        Variant::UngrantedReturn,
        Variant::UnfilledBatch,
        Variant::LateNumber,
        Variant::StaleEnd,
        Variant::SyncJoinsRunning,
    ];

    /// Variants that a check of `kedge-sim` detects.
    pub const ALL: &'static [Variant] = &[
        Variant::SkipDataFlush,
        Variant::SharedFlush,
        Variant::AckBeforeForce,
        Variant::FdatasyncSkipsFlush,
        Variant::ReuseFreedBlock,
        Variant::ReuseReplacedNode,
        Variant::FreeSharedNode,
        Variant::StaleChecksum,
        Variant::SumsInPlace,
        Variant::SumsInReplay,
        Variant::BirthIgnored,
        Variant::ReuseFreedTree,
        Variant::ChangedTreeLeftOut,
        Variant::DeadListLost,
        Variant::ReplacedRootUnmarked,
        Variant::NamesAfterRoot,
        Variant::SlotBeforeNodes,
        Variant::CopyBeforeSlot,
        Variant::TailPastResidents,
        Variant::ForgetDatasyncOnSize,
        Variant::ReplayOldData,
        Variant::ForgetRenameVictim,
        Variant::ExtentBeforeData,
        Variant::SizeBeyondWritten,
        Variant::PartialRecord,
        Variant::KeepEpoch,
        Variant::ForgetEvicted,
        Variant::CutNotExact,
        Variant::AckOutOfOrder,
        Variant::ErrorNotPropagated,
        Variant::WaitWithoutLook,
        Variant::StaleInode,
        Variant::ShortWhole,
        Variant::ForgetLosses,
        Variant::TouchInWriteback,
        Variant::DiscardEarly,
        Variant::DiscardWithoutFlush,
        Variant::UnkeyedLog,
        Variant::TailBeforeSlot,
        Variant::ThawKeepsClean,
        Variant::UngatedWriter,
        Variant::FrozenOpenWrites,
        Variant::KeepOldParts,
        Variant::GroupedAckEarly,
        Variant::LimitCountedTwice,
        Variant::LimitUnpromised,
        Variant::AtomicInParts,
        Variant::AtomicWrittenEarly,
        Variant::SharedBlockFreed,
        Variant::CloneWithoutFlag,
        Variant::CloneAfterTruncate,
        Variant::CountsInReplay,
        Variant::InlineInReplay,
        Variant::InlineOutUnflushed,
        Variant::InlineOutUnlogged,
        Variant::CutBeforeSlot,
        Variant::MoveUncounted,
        Variant::LostByDurableWrite,
    ];
}

#[cfg(feature = "broken")]
static SET: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Switches on one variant for the whole process; `None` switches the current one off.
#[cfg(feature = "broken")]
pub fn set(variant: Option<Variant>) {
    SET.store(variant.map_or(0, |v| v as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Returns whether this variant is switched on.
#[cfg(feature = "broken")]
pub fn is(variant: Variant) -> bool {
    SET.load(std::sync::atomic::Ordering::Relaxed) == variant as u8
}

/// Returns `false`: the feature `broken` is off.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn is(_: Variant) -> bool {
    false
}

/// Refused reservations: the engine calls [`refusal::should_fail`] wherever an operation reserves
/// space. A test can make one of these reservations fail as it would on a full image.
pub mod refusal {
    #[cfg(feature = "broken")]
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[cfg(feature = "broken")]
    static ASKED: AtomicU64 = AtomicU64::new(0);
    #[cfg(feature = "broken")]
    static AT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Restarts the count of reservations and makes reservation number `at` fail, counted from 0;
    /// with `None` none fails.
    #[cfg(feature = "broken")]
    pub fn start(at: Option<u64>) {
        AT.store(at.unwrap_or(u64::MAX), SeqCst);
        ASKED.store(0, SeqCst);
    }

    /// Number of reservations since [`start`].
    #[cfg(feature = "broken")]
    pub fn asked() -> u64 {
        ASKED.load(SeqCst)
    }

    /// Counts this reservation and returns whether it must fail.
    #[cfg(feature = "broken")]
    pub fn should_fail() -> bool {
        ASKED.fetch_add(1, SeqCst) == AT.load(SeqCst)
    }

    /// Returns `false`: the feature `broken` is off.
    #[cfg(not(feature = "broken"))]
    #[inline(always)]
    pub const fn should_fail() -> bool {
        false
    }
}

/// Race windows: the engine calls [`pause::at`] where its work is incomplete and another thread
/// must not see it. A test holds a thread there, or delays all threads that pass, so that a rare
/// race becomes certain.
pub mod pause {
    #[cfg(feature = "broken")]
    use parking_lot::{Condvar, Mutex};
    #[cfg(feature = "broken")]
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    #[cfg(feature = "broken")]
    use std::time::Duration;

    /// A point in the engine at which a test can hold threads.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u8)]
    pub enum Point {
        /// An inode was read from the tree and is not in the cache yet.
        InodeRead,
        /// The thread is about to wait for another thread that reads the same inode.
        InodeAwaited,
        /// A truncate has removed some of the extents and holds no lock.
        TruncateStep,
        /// The record of a removal of extents is complete except for the edits that depend on state
        /// under the inode's meta lock.
        Removal,
        /// Blocks have been allocated for a file, and no record maps them yet.
        ExtentsTaken,
    }

    #[cfg(feature = "broken")]
    const POINTS: usize = 5;
    /// Longest time that a thread is held. A test that never calls [`release`] fails instead of
    /// hanging.
    #[cfg(feature = "broken")]
    const HOLD_MAX: Duration = Duration::from_secs(60);

    /// The effect of a point on the threads that reach it.
    #[cfg(feature = "broken")]
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        Pass,
        HoldNext,
        Holding,
        Stall { nap: Duration, one_in: u64 },
    }

    #[cfg(feature = "broken")]
    static RULES: Mutex<[Rule; POINTS]> = Mutex::new([Rule::Pass; POINTS]);
    #[cfg(feature = "broken")]
    static CHANGED: Condvar = Condvar::new();
    #[cfg(feature = "broken")]
    static PASSED: [AtomicU64; POINTS] = [const { AtomicU64::new(0) }; POINTS];

    #[cfg(feature = "broken")]
    fn set(point: Point, rule: Rule) {
        RULES.lock()[point as usize] = rule;
        CHANGED.notify_all();
    }

    /// Holds the next thread that reaches the point until [`release`].
    #[cfg(feature = "broken")]
    pub fn hold_next(point: Point) {
        set(point, Rule::HoldNext);
    }

    /// Whether a thread is held at the point.
    #[cfg(feature = "broken")]
    pub fn is_held(point: Point) -> bool {
        RULES.lock()[point as usize] == Rule::Holding
    }

    /// Lets all threads pass, held ones and later ones.
    #[cfg(feature = "broken")]
    pub fn release(point: Point) {
        set(point, Rule::Pass);
    }

    /// Makes one in `one_in` threads that reach the point sleep for `nap`, so that other threads
    /// overtake it.
    #[cfg(feature = "broken")]
    pub fn stall(point: Point, nap: Duration, one_in: u64) {
        set(point, Rule::Stall { nap, one_in });
    }

    /// How many threads have reached the point since the process began.
    #[cfg(feature = "broken")]
    pub fn passed(point: Point) -> u64 {
        PASSED[point as usize].load(SeqCst)
    }

    /// Called by the engine at the point: returns at once, or after the hold or the sleep that a
    /// test has set.
    #[cfg(feature = "broken")]
    pub fn at(point: Point) {
        let turn = PASSED[point as usize].fetch_add(1, SeqCst);
        let mut rules = RULES.lock();
        match rules[point as usize] {
            Rule::Stall { nap, one_in } if turn.is_multiple_of(one_in) => {
                drop(rules);
                crate::pause(nap);
            }
            Rule::Pass | Rule::Holding | Rule::Stall { .. } => {}
            Rule::HoldNext => {
                rules[point as usize] = Rule::Holding;
                while rules[point as usize] == Rule::Holding {
                    let timed_out = CHANGED.wait_for(&mut rules, HOLD_MAX).timed_out();
                    assert!(!timed_out, "held at {point:?} and never released");
                }
            }
        }
    }

    /// Does nothing: the feature `broken` is off.
    #[cfg(not(feature = "broken"))]
    #[inline(always)]
    pub const fn at(_: Point) {}
}
