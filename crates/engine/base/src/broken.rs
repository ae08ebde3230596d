//! Deliberately broken engines: the proof that the crash suite can fail.
//!
//! With the feature `broken` one [`Variant`] can be switched on for the whole process; the engine
//! checks [`is`] at each place that enforces the variant's rule, and breaks the rule there.
//! Without the feature [`is`] is `false` at compile time, so a release contains nothing of this.
//! Never enable the feature in a program that keeps data.

/// A rule that this build can make the engine break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Variant {
    /// A log write does not flush the data to which its records refer.
    SkipDataFlush = 1,
    /// fsync returns while its log write is under way.
    AckBeforeForce,
    /// An fdatasync that has nothing to force does not flush data that was overwritten in place.
    FdatasyncSkipsFlush,
    /// A data block is reused before the record that freed it is durable.
    ReuseFreedBlock,
    /// A replaced tree node is reused before the next checkpoint is durable.
    ReuseReplacedNode,
    /// A tree frees nodes that its fork or its origin uses.
    FreeSharedNode,
    /// The record of written data leaves the checksums of the bytes that it replaced.
    StaleChecksum,
    /// Data that has checksums is overwritten in place.
    SumsInPlace,
    /// Recovery overwrites a block that has a checksum.
    SumsInReplay,
    /// A tree frees and overwrites blocks that its fork or its origin uses.
    BirthIgnored,
    /// What a deleted tree used is used again before the checkpoint that frees it is durable.
    ReuseFreedTree,
    /// A cut leaves out a tree that has changed since the last one.
    ChangedTreeLeftOut,
    /// What only a deleted tree or point had is forgotten instead of freed.
    DeadListLost,
    /// The first tree keeps its old marks when a fork replaces it.
    ReplacedRootUnmarked,
    /// Names of trees follow a replacement of the first tree in a checkpoint of their own.
    NamesAfterRoot,
    /// The superblock slot is written without a flush of the blocks to which it points.
    SlotBeforeNodes,
    /// Copies of the superblock are written before its slot.
    CopyBeforeSlot,
    /// The tail passes data whose only durable copy is in the log.
    TailPastResidents,
    /// A change of size does not count for fdatasync.
    ForgetDatasyncOnSize,
    /// Data that was log-resident and has been written in place since is not dropped from the log,
    /// so replay restores old bytes.
    ReplayOldData,
    /// Rename forgets the file that it displaces: link count and orphan.
    ForgetRenameVictim,
    /// Extents and sizes are recorded before their data is written.
    ExtentBeforeData,
    /// Any record of an inode names its live size, written or not.
    SizeBeyondWritten,
    /// Replay leaves out a record's last edit.
    PartialRecord,
    /// A mount continues in the epoch of the previous one.
    KeepEpoch,
    /// An evicted inode counts as durable.
    ForgetEvicted,
    /// Operations run between a checkpoint's cut LSN and its view of the tree.
    CutNotExact,
    /// A force returns when its own log write is durable, although an earlier log write is not.
    AckOutOfOrder,
    /// Pages whose record failed count as written.
    ErrorNotPropagated,
    /// An fsync that waits for another thread's writeback ignores its result.
    WaitWithoutLook,
    /// An inode read from the tree enters the cache though it has changed in the tree meanwhile.
    StaleInode,
    /// A write that must succeed as a whole or fail returns a short count.
    ShortWhole,
    /// An unmount does not record that it gave up data of files.
    ForgetLosses,
    /// Data that the kernel writes back from its cache sets the time stamps.
    TouchInWriteback,
    /// Blocks are discarded before the record that freed them is durable.
    DiscardEarly,
    /// No flush comes between a discard and the record that names its blocks for new data.
    DiscardWithoutFlush,
    /// Bytes with the right magic, uuid and checksum pass for a log write.
    UnkeyedLog,
    /// The tail moves to a checkpoint's cut before the slot that names it is durable.
    TailBeforeSlot,
    /// A thaw leaves the clean mark that the freeze has set.
    ThawKeepsClean,
    /// Writes do not wait for the end of a freeze.
    UngatedWriter,
    /// A server that goes on with a freeze writes a checkpoint when it opens the image.
    FrozenOpenWrites,
    /// A shorter value of an attribute leaves parts of the one that it replaces.
    KeepOldParts,
    /// An fsync that shares a pass with others returns before that pass.
    GroupedAckEarly,
    /// Replay counts what a record uses of a limit twice.
    LimitCountedTwice,
    /// What is promised to writes and not used yet does not count for a limit.
    LimitUnpromised,
    /// An atomic write takes two records, with a force between them.
    AtomicInParts,
    /// Pages of an atomic write are written in place before their record is durable.
    AtomicWrittenEarly,
    /// The first file that gives up a shared block frees it.
    SharedBlockFreed,
    /// A clone does not mark the extents of its source as shared.
    CloneWithoutFlag,
    /// A clone of a whole file is a truncate of the target and then a clone.
    CloneAfterTruncate,
    /// Recovery writes into a block that files share.
    CountsInReplay,
    /// Recovery completes a block from the log without its bytes in the tree.
    InlineInReplay,
    /// The record that takes a small file out of the tree does not flush the block that it gets.
    InlineOutUnflushed,
    /// An fallocate or a clone deletes the bytes of a small file in the tree without logging them.
    InlineOutUnlogged,
    /// A shrink gives up what lies beyond the new end before the slot that names it is durable.
    CutBeforeSlot,
    /// A file that is moved to the copy of blocks that it shared does not count there.
    MoveUncounted,
    /// A tree that is opened keeps the marks that it had before it was read.
    StaleMarks,
    /// A removal of extents decides by the inode's names and death as they were before its lock.
    EarlyRemoval,
    /// A change that leaves the gate wakes no freeze that waits for it.
    UnwokenFreeze,
    /// A close lets changes continue beside its last sync.
    CloseBesideChanges,
    /// A reader of extents looks between two edits of a record.
    LookBetweenEdits,
    /// A reservation that waits for log space does not look at the space again once other threads
    /// can see that it waits.
    UngrantedReturn,
    /// A log write takes a batch in which a record has its place and not yet its bytes.
    UnfilledBatch,
    /// A call that changes something computes the inode number that it returns after it has left
    /// the gate.
    LateNumber,
    /// A punch decides by the size that the file had before its lock where the file ends.
    StaleEnd,
    /// A sync shares the writing of another one that began before it was called.
    SyncJoinsRunning,
}

impl Variant {
    /// Variants that only the search of schedules catches (`kedge-sched`).
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

    /// Variants that a check of `kedge-sim` catches.
    pub const ALL: &'static [Variant] = &[
        Variant::SkipDataFlush,
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
    ];
}

#[cfg(feature = "broken")]
static SET: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Breaks one rule in the whole process, or none.
#[cfg(feature = "broken")]
pub fn set(variant: Option<Variant>) {
    SET.store(variant.map_or(0, |v| v as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether the engine is to break this rule.
#[cfg(feature = "broken")]
pub fn is(variant: Variant) -> bool {
    SET.load(std::sync::atomic::Ordering::Relaxed) == variant as u8
}

/// Never: the feature is off.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn is(_: Variant) -> bool {
    false
}

/// Refused reservations: the engine checks [`refusal::should_fail`] wherever an operation reserves
/// space. A test can make one of these reservations fail as on a full image.
pub mod refusal {
    #[cfg(feature = "broken")]
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[cfg(feature = "broken")]
    static ASKED: AtomicU64 = AtomicU64::new(0);
    #[cfg(feature = "broken")]
    static AT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Restarts the count and refuses the reservation with number `at`, counted from 0; `None`
    /// refuses none.
    #[cfg(feature = "broken")]
    pub fn start(at: Option<u64>) {
        AT.store(at.unwrap_or(u64::MAX), SeqCst);
        ASKED.store(0, SeqCst);
    }

    /// Reservations since [`start`].
    #[cfg(feature = "broken")]
    pub fn asked() -> u64 {
        ASKED.load(SeqCst)
    }

    /// Whether this reservation is to be refused.
    #[cfg(feature = "broken")]
    pub fn should_fail() -> bool {
        ASKED.fetch_add(1, SeqCst) == AT.load(SeqCst)
    }

    /// Never: the feature is off.
    #[cfg(not(feature = "broken"))]
    #[inline(always)]
    pub const fn should_fail() -> bool {
        false
    }
}

/// Race windows: the engine calls [`pause::at`] where one thread must not see the incomplete work
/// of another. A test holds a thread there, or delays all threads that pass, so that a rare race
/// becomes certain.
pub mod pause {
    #[cfg(feature = "broken")]
    use parking_lot::{Condvar, Mutex};
    #[cfg(feature = "broken")]
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    #[cfg(feature = "broken")]
    use std::time::Duration;

    /// A place in the engine.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u8)]
    pub enum Point {
        /// An inode was read from the tree and is not in the cache yet.
        InodeRead,
        /// About to wait for another thread that reads the same inode.
        InodeAwaited,
        /// A truncate has removed a part of the extents, and holds no lock.
        TruncateStep,
        /// The record of a removal of extents is complete except for what the inode's meta lock
        /// decides.
        Removal,
        /// Extents were taken for a file, and no record names them.
        ExtentsTaken,
    }

    #[cfg(feature = "broken")]
    const POINTS: usize = 5;
    /// Longest time that a thread is held. A test that forgets to release fails instead of hanging.
    #[cfg(feature = "broken")]
    const HOLD_MAX: Duration = Duration::from_secs(60);

    /// What happens to threads that reach a point.
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

    /// Makes one in `one_in` threads that reach the point sleep for `nap`, so that others overtake
    /// it.
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

    /// Nothing: the feature is off.
    #[cfg(not(feature = "broken"))]
    #[inline(always)]
    pub const fn at(_: Point) {}
}
