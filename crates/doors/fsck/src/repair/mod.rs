//! Repair: builds a consistent image from everything that can be trusted.
//!
//! # How the repair is written
//! A repair never changes what it finds. It writes a *new checkpoint* and leaves the old checkpoint
//! as it is:
//! 1. The log is replayed into memory ([`source`]). Records that cannot be replayed are dropped and
//!    reported.
//! 2. The result is checked as by [`crate::check`]. If nothing is wrong, the next steps write only
//!    the blocks that replay changed.
//! 3. Leaves below unreadable nodes are searched for ([`salvage`]). The readable items are
//!    collected ([`gather`]), each checked by itself ([`filter`]), then together ([`plan`]).
//! 4. If items or nodes change, the items that stay are streamed into a new tree ([`rebuild`]), in
//!    blocks that neither the checkpoint on the device nor the replayed one owns. Otherwise the
//!    tree stays.
//! 5. File data and nodes that replay wrote in memory are written to their places. All bitmaps,
//!    made from what the tree owns, go to the copies that the old index does not use, the index to
//!    the area of the other slot. Flush.
//! 6. The new checkpoint is checked on the device. Only if nothing is wrong, its superblock slot is
//!    written, with FUA: the next generation, the next epoch but one, clean, with an empty log. One
//!    epoch is skipped, because a lost superblock may have begun it, and log writes of that epoch
//!    must not be taken for writes of the new one.
//!
//! # Crash argument
//! Until the slot of step 6 is durable, the newest slot is the old slot, and no block that the old
//! slot needs has changed. New nodes lie in blocks without an owner, bitmaps and index in copies
//! and an area that the old slot does not use, and the log is not written at all. The data that
//! step 5 writes in place is the data that recovery would write from the same log: bytes that the
//! log still holds, in blocks that the old tree gives to the same file or to no owner.
//!
//! Once the slot is durable, so is everything to which it points, because a flush lies between. A
//! slot is one sector, so a crash leaves either the old slot or the new slot. An interrupted repair
//! is run again.
//!
//! # From a copy of the superblock
//! If no slot is valid, the newest copy ([`crate::copies`]) takes the place of the newest slot: the
//! device is read as if the copy lay in the slot of its generation. The steps are the same. After
//! step 6 that slot is written too, so that both slots are valid.
//!
//! Until the slot of step 6 is durable, the image can be found only through the copy, and nothing
//! that it needs has changed. The slot that is written last contains the copy's checkpoint. That
//! one is the older of the two, and no mount uses it while the newer slot is valid.
//!
//! If the tree of the copy cannot be read, because its blocks were reused or are damaged, leaves
//! are searched for, even if the bitmaps are lost ([`salvage`]). If the log shows that there was a
//! later checkpoint, all leaves are searched for, and the youngest win: the root of the later
//! checkpoint is stored nowhere else.
//!
//! # What the repair does not do
//! An image without a valid superblock in a slot or copy is refused: geometry, the key of the name
//! hash and the root are stored nowhere else. A tree that changes is rewritten as a whole, which
//! needs free blocks. If they are lacking, the repair is refused and nothing changes.

mod claims;
mod commit;
mod done;
mod filter;
mod forest;
mod gather;
mod limits;
mod plan;
mod rebuild;
mod ring;
mod salvage;
mod shares;
mod source;
mod survey;
mod table;
mod tracked;
mod writer;

pub use done::{Ending, Repair, RepairKind, RepairReport};

use crate::copies::{self, Restored};
use crate::image::{judge, report_of};
use crate::items::{Own, State};
use crate::kinds::FindingKind;
use crate::owned::Owned;
use crate::read::Reader;
use crate::report::{At, Findings, Report};
use crate::runs::Runs;
use crate::space::claim_format_areas;
use crate::tree;
use crate::{CheckOptions, Progress, Replay, StoreReplay, is_settled};
use claims::{Claims, Scene};
use commit::New;
use done::Repairs;
use forest::Readable;
use kedge_base::{BlockNo, Clock, Error, Generation, Result, SystemClock};
use kedge_device::Device;
use kedge_format::Key;
use kedge_format::node::NODE_BLOCKS;
use kedge_format::superblock::{INCOMPAT_CLONES, OPEN_MAX, Superblock};
use limits::Limits;
use plan::Around;
use rebuild::{Builder, Built, Places, Rebuild, Root};
use ring::Newest;
use source::Source;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How much may be repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairMode {
    /// Only repairs that lose nothing: the log, counts, bitmaps, orphan items. If the image needs
    /// other repairs, nothing is written.
    Preen,
    /// All repairs. Items that cannot be read are lost.
    Full,
}

#[derive(Clone)]
pub struct RepairOptions {
    /// Options of the check. `check.replay` of `None` means the engine's replay.
    pub check: CheckOptions,
    pub mode: RepairMode,
    /// Checks the image even if it was cleanly unmounted.
    pub force: bool,
    pub clock: Arc<dyn Clock>,
}

impl RepairOptions {
    pub fn new(mode: RepairMode) -> RepairOptions {
        let clock = Arc::new(SystemClock::default());
        RepairOptions { check: CheckOptions::default(), mode, force: false, clock }
    }
}

/// Findings that do not require a change of the tree.
const NOT_OF_THE_TREE: &[FindingKind] = &[
    FindingKind::SuperblockSlotBad,
    FindingKind::SuperblockCopyBad,
    FindingKind::SuperblockSlotsDiffer,
    FindingKind::SuperblockCleanWithLog,
    FindingKind::SuperblockCounter,
    FindingKind::SuperblockInodes,
    FindingKind::SuperblockFreeBlocks,
    FindingKind::SuperblockNodes,
    FindingKind::SuperblockNextIno,
    FindingKind::DataLost,
    FindingKind::IndexBad,
    FindingKind::BitmapBad,
    FindingKind::GroupFreeBlocks,
    FindingKind::BlocksLeaked,
    FindingKind::BlocksUnmarked,
];
/// Those of `NOT_OF_THE_TREE` that can also concern a tree's entry in the table of trees.
const OF_ENTRIES: &[FindingKind] =
    &[FindingKind::SuperblockInodes, FindingKind::SuperblockNodes, FindingKind::SuperblockNextIno];
/// Findings about the tree that preening repairs.
const SAFE_OF_THE_TREE: &[FindingKind] = &[
    FindingKind::NlinkWrong,
    FindingKind::BlocksWrong,
    FindingKind::DirSize,
    FindingKind::OrphanDangling,
    FindingKind::OrphanWrong,
    FindingKind::LimitWrong,
];
/// Findings about the device that are absent after replay in memory, because replay writes new
/// slots, bitmaps and counters.
const SEEN_ON_DEVICE: &[FindingKind] = &[
    FindingKind::SuperblockSlotBad,
    FindingKind::SuperblockMissing,
    FindingKind::SuperblockCopyBad,
    FindingKind::SuperblockSlotsDiffer,
    FindingKind::SuperblockCleanWithLog,
    FindingKind::SuperblockFreeBlocks,
    FindingKind::IndexBad,
    FindingKind::BitmapBad,
    FindingKind::GroupFreeBlocks,
    FindingKind::BlocksUnmarked,
];

/// Repairs the image on `device`. Nothing else may use the device during the repair.
pub fn repair(device: Arc<dyn Device>, options: &RepairOptions) -> RepairReport {
    let mut progress = |p: Progress| {
        if let Some(report) = &options.check.progress {
            report(p);
        }
    };
    let findings_max = options.check.findings_max;
    let mut repairs = Repairs::new(findings_max);
    let mut findings = Findings::new(findings_max);
    let Some(begun) = copies::begin(&device, &mut findings) else {
        let before = findings.into_report(device.name());
        let message = "there is no valid superblock to repair from".into();
        return RepairReport::new(Ending::Left, message, before, repairs, None);
    };
    let replay = options.check.replay.clone().unwrap_or_else(|| Arc::new(StoreReplay));
    let (sb, device) = (begun.sb, begun.device);
    let mut reader = Reader::new(&*device);
    let settled = is_settled(&*replay, &*device, &sb, &mut findings);
    // A recorded loss is reported and cleared even if nothing else is checked.
    if settled && !options.force && sb.checkpoint.losses.is_none() {
        let message = "it was unmounted; -f checks nevertheless".into();
        let before = findings.into_report(device.name());
        return RepairReport::new(Ending::Skipped, message, before, repairs, None);
    }
    let base = judge(&sb, &mut reader, findings, None, &mut progress);
    let restored = begun.restored.as_deref();
    let is_stale = restored.is_some() && is_stale(&*device, &sb);
    let job = Job { device: &device, options, base_sb: &sb, restored, is_stale, replay: &*replay, settled };
    let (before, outcome) = job.run(base, &mut repairs, &mut progress);
    match outcome {
        Ok((ending, message, after)) => RepairReport::new(ending, message, before, repairs, after),
        Err(Error::NoSpace) => {
            let message = "no space for the repaired tree beside the old one".into();
            RepairReport::new(Ending::Unclean, message, before, repairs, None)
        }
        Err(error) => RepairReport::new(Ending::Failed, error.to_string(), before, repairs, None),
    }
}

/// Whether the log was written after a later checkpoint than that of `sb`, a superblock copy.
fn is_stale(device: &dyn Device, sb: &Superblock) -> bool {
    let c = &sb.checkpoint;
    Newest::search(device, &sb.geometry).write > Some((c.epoch, c.tail_lsn))
}

/// The next inode number, given the highest number in use. A superblock's number beyond the limit
/// is ignored.
fn next_ino(sb: &Superblock, highest: u64) -> u64 {
    Some(sb.checkpoint.next_ino.0).filter(|next| *next <= OPEN_MAX).unwrap_or(0).max(highest + 1)
}

/// The ending, its reason, and the check of the result.
type Outcome = Result<(Ending, String, Option<Report>)>;

struct Job<'a> {
    device: &'a Arc<dyn Device>,
    options: &'a RepairOptions,
    /// The newest checkpoint on the device.
    base_sb: &'a Superblock,
    /// Set if `base_sb` is a copy, and `device` reads it as a slot.
    restored: Option<&'a Restored>,
    /// Whether the log shows a newer checkpoint than that of the copy. Then later nodes are
    /// searched for.
    is_stale: bool,
    replay: &'a dyn Replay,
    settled: bool,
}

/// The result of checking a source.
struct Judged {
    owned: Owned,
    inodes: u64,
    highest_ino: u64,
    nodes: u64,
    /// Whether parts of the tree could not be read.
    incomplete: bool,
    /// Whether the tree is consistent. The superblock or the bitmaps may still contradict it.
    tree_is_fine: bool,
}

impl Judged {
    fn of(state: &State, has_trees: bool) -> Judged {
        Judged {
            owned: state.owned.clone(),
            inodes: state.counters.inodes,
            highest_ino: state.facts.inodes.last().map_or(0, |i| i.ino),
            nodes: state.counters.nodes,
            incomplete: !state.lost.is_empty(),
            tree_is_fine: state.findings.kinds().all(|kind| {
                kind == FindingKind::SuperblockMissing
                    || NOT_OF_THE_TREE.contains(&kind) && !(has_trees && OF_ENTRIES.contains(&kind))
            }),
        }
    }
}

impl Job<'_> {
    /// Runs the repair. Returns the findings before it and the outcome.
    fn run(
        &self,
        base: State,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> (Report, Outcome) {
        let base_owned = base.owned.clone();
        let (mut source, state) = match self.source(base, repairs, progress) {
            Ok(both) => both,
            Err((error, state)) => {
                let before = report_of(self.base_sb, &Reader::new(&**self.device), *state);
                return (before, Err(error));
            }
        };
        let judged = Judged::of(&state, source.sb.geometry.has_trees());
        let wrong = !state.findings.is_empty();
        let unsafe_kind = state
            .findings
            .kinds()
            .find(|kind| !NOT_OF_THE_TREE.contains(kind) && !SAFE_OF_THE_TREE.contains(kind));
        let mut before = report_of(&source.sb, &Reader::new(&*source.device), state);
        before.device = self.device.name().to_owned();
        before.replay = source.replay.clone();
        if !wrong && self.settled {
            return (before, Ok((Ending::Clean, String::new(), None)));
        }
        if self.options.mode == RepairMode::Preen && self.restored.is_some() {
            let message =
                "run fsck -y to restore the superblock from its copy; what was only in the log may be lost";
            return (before, Ok((Ending::Left, message.into(), None)));
        }
        if self.options.mode == RepairMode::Preen
            && let Some(kind) = unsafe_kind
        {
            let kind = kind.name();
            let message = format!("{kind}: run fsck -y to repair it; what cannot be read is lost");
            return (before, Ok((Ending::Left, message, None)));
        }
        if !judged.tree_is_fine {
            self.restore_flag(&mut source, repairs);
        }
        let outcome = self.repair(&source, judged, base_owned, repairs, progress).and_then(|new| match new {
            Some(new) => self.commit(&source, &new, wrong, repairs, progress),
            None => {
                let message = "items would have to go: run fsck -y to repair it".to_owned();
                Ok((Ending::Left, message, None))
            }
        });
        (before, outcome)
    }

    /// Sets the feature flag for shared blocks if it is missing although the tree has both a count
    /// item and a marked extent.
    fn restore_flag(&self, source: &mut Source, repairs: &mut Repairs) {
        if source.sb.geometry.has_clones() {
            return;
        }
        let mut reader = Reader::new(&*source.device);
        let mut quiet = Repairs::new(0);
        let tree = self.readable(&source.sb, source, None, &mut reader, &mut quiet, &mut |_| {});
        // If a leaf cannot be read any more, the repair that follows reports that error.
        if survey::marks(source, &mut reader, &tree.leaves).is_ok_and(|marks| marks.both) {
            source.sb.geometry.feature_incompat |= INCOMPAT_CLONES;
            repairs.add(RepairKind::SuperblockCorrected, At::block(source.sb.block()), || {
                "files share blocks, although the features do not say so: now they do".into()
            });
        }
    }

    /// Replays the log and checks the result, which is the source of the repair.
    fn source(
        &self,
        base: State,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Source, State), (Error, Box<State>)> {
        if self.settled {
            return Ok((Source::plain(self.device.clone(), self.base_sb), base));
        }
        if let Some(source) = self.without_log(repairs) {
            return Ok((source, base));
        }
        progress(Progress { phase: "replay", done: 0, total: 1 });
        let max = self.options.check.findings_max;
        if let Some((source, mut state)) = self.as_a_mount_would(&base, progress) {
            state.findings.absorb_kinds(base.findings, SEEN_ON_DEVICE);
            return Ok((source, state));
        }
        let mut log = Findings::new(max);
        let source = source::recover(self.device, self.base_sb, &base, self.replay, &mut log, repairs);
        let source = match source {
            Ok(source) => source,
            Err(error) => return Err((error, Box::new(base))),
        };
        let mut state = match source.overlay {
            None => base,
            Some(_) => {
                let mut reader = Reader::new(&*source.device);
                let mut state = judge(&source.sb, &mut reader, Findings::new(max), None, progress);
                state.findings.absorb_kinds(base.findings, SEEN_ON_DEVICE);
                state
            }
        };
        state.findings.absorb_kinds(log, FindingKind::ALL);
        Ok((source, state))
    }

    /// The source if the superblock is a copy and its log is not replayed: because the log is
    /// empty, or because it belongs to a later checkpoint, of which only nodes can be found.
    fn without_log(&self, repairs: &mut Repairs) -> Option<Source> {
        self.restored?;
        if self.searches_all() {
            repairs.add(RepairKind::LogGivenUp, At::default(), || {
                "it was written after a later checkpoint than that of the superblock's copy: the newest nodes are \
                 searched for, and what only the log holds is lost"
                    .into()
            });
        } else if !self.base_sb.checkpoint.clean
            || !matches!(self.replay.log_writes(&**self.device, self.base_sb), Ok(0))
        {
            return None;
        }
        Some(Source::plain(self.device.clone(), self.base_sb))
    }

    /// Whether all leaves are searched for. In an image with several trees a leaf does not say to
    /// which of them it belongs, so these trees stay as they were at the copy's checkpoint.
    fn searches_all(&self) -> bool {
        self.is_stale && !self.base_sb.geometry.has_trees()
    }

    /// If the bitmaps on the device are wrong but replay with them leaves an image without
    /// findings, that image is the source, as it would be for a mount and for a check. A replay
    /// with corrected bitmaps could fail on a fault that replay itself corrects.
    fn as_a_mount_would(&self, base: &State, progress: &mut dyn FnMut(Progress)) -> Option<(Source, State)> {
        if !source::space_is_wrong(base) {
            return None;
        }
        // If the replay with corrected bitmaps fails too, that replay reports the failure.
        let source = source::replay_plainly(self.device, self.base_sb, self.replay).ok()?;
        let mut reader = Reader::new(&*source.device);
        let findings = Findings::new(self.options.check.findings_max);
        let state = judge(&source.sb, &mut reader, findings, None, progress);
        state.findings.is_empty().then_some((source, state))
    }

    /// Computes the contents of the new checkpoint, and writes its tree if the tree changes.
    /// Returns `None` if preening may not make a repair that is needed.
    fn repair(
        &self,
        source: &Source,
        judged: Judged,
        base_owned: Owned,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<New>> {
        let c = &source.sb.checkpoint;
        // Checked before anything is written, because every mount refuses a slot beyond the limit.
        let generation = self.next_generation()?;
        let has_trees = source.sb.geometry.has_trees();
        let nodes = if has_trees { c.nodes } else { judged.nodes };
        let old_root = Root { block: c.root, generation: c.root_generation, level: c.root_level, nodes };
        let nothing_suspect = source.suspect().is_none_or(|suspect| suspect.used() == 0);
        let trees = c.trees;
        if judged.tree_is_fine && nothing_suspect && !self.searches_all() {
            let (next_ino, inodes) = match has_trees {
                true => (c.next_ino.0, c.inodes),
                false => (next_ino(&source.sb, judged.highest_ino), judged.inodes),
            };
            let owned = judged.owned;
            let carry = owned.clone();
            return Ok(Some(New { generation, root: old_root, owned, carry, next_ino, inodes, trees }));
        }
        let mut taken = base_owned;
        taken.add(&judged.owned);
        let spared = (judged.incomplete || self.searches_all())
            .then(|| source::recorded(self.base_sb, &mut Reader::new(&**self.device)));
        if has_trees {
            return self.repair_forest(source, taken, spared, generation, repairs, progress);
        }
        let mut reader = Reader::new(&*source.device);
        let Readable { leaves, nodes, .. } =
            self.readable(&source.sb, source, None, &mut reader, repairs, progress);
        let mut owned = nodes.clone();
        claim_format_areas(&source.sb, &mut owned);
        let marks = match source.sb.geometry.has_clones() {
            true => Some(survey::marks(source, &mut reader, &leaves)?),
            false => None,
        };
        let above = Runs::default();
        let scene = Scene {
            suspect: source.suspect(),
            above: &above,
            others: None,
            births: (0, 0),
            has_counts: source.sb.geometry.has_clones(),
            owed: marks.as_ref().map(|marks| &marks.owed),
            plain: marks.as_ref().map(|marks| &marks.plain),
        };
        let claims = Claims::new(scene, owned, source.sb.geometry.groups());
        let (gathered, had) =
            gather::gather(source, &mut reader, &leaves, claims.clone(), false, repairs, progress)?;
        let all_owned = had.owned;
        let around = Around { limits: Limits::None, adopted: &[], now: self.options.clock.now() };
        let plan = plan::plan(&source.sb, gathered, &around, repairs)?;
        if self.options.mode == RepairMode::Preen && (repairs.has_unsafe() || plan.changes_names()) {
            return Ok(None);
        }
        let (next_ino, inodes) = (plan.next_ino, plan.inodes);
        if !plan.changes_names() && plan.added.is_empty() && repairs.changes() == 0 {
            let carry = all_owned.clone();
            return Ok(Some(New {
                generation,
                root: old_root,
                owned: all_owned,
                carry,
                next_ino,
                inodes,
                trees,
            }));
        }
        taken.add(&all_owned);
        let mut places = Places::new(&source.sb.geometry, taken, spared);
        let mut builder = Builder::new(&**self.device, &source.sb.geometry, generation, &mut places);
        let rebuild = Rebuild { source, leaves: &leaves, plan: &plan, repairs, keeps: &|_| false };
        rebuild.run(&mut reader, claims, &mut builder, progress)?;
        let Built { root, new, .. } = builder.finish()?;
        repairs.add(RepairKind::TreeRewritten, At::block(root.block), || {
            format!("{} nodes, {} levels", root.nodes, root.level + 1)
        });
        let mut carry = all_owned;
        carry.remove(&nodes);
        let mut owned = carry.clone();
        for node in new {
            owned.claim(node, NODE_BLOCKS);
        }
        Ok(Some(New { generation, root, owned, carry, next_ino, inodes, trees }))
    }

    /// The generation of the new checkpoint, whose slot is not that of the base.
    ///
    /// Nodes of later checkpoints than that of a copy may lie anywhere, and must not pass for nodes
    /// of the new checkpoint in a later repair. If this repair is interrupted, its nodes must not
    /// pass for nodes of a later checkpoint. So a repair from a copy begins far above both.
    fn next_generation(&self) -> Result<Generation> {
        let step = 1 + if self.restored.is_some() { salvage::LATER_THAN_COPY } else { 0 };
        let next = self.base_sb.checkpoint.generation.0.checked_add(step).filter(|next| *next <= OPEN_MAX);
        Ok(Generation(next.ok_or_else(|| Error::invalid("generations are used up"))?))
    }

    /// Returns the readable nodes of the tree whose root `sb` has. `own` has the marks if the image
    /// has several trees.
    fn readable(
        &self,
        sb: &Superblock,
        source: &Source,
        own: Option<Own>,
        reader: &mut Reader,
        repairs: &mut Repairs,
        progress: &mut dyn FnMut(Progress),
    ) -> Readable {
        let groups = sb.geometry.groups();
        let mut state = State::new(groups, Findings::new(0));
        state.own = own;
        let mut report = |done, total| progress(Progress { phase: "nodes", done, total });
        let (mut leaves, below_lost) = match self.searches_all() {
            true => (Vec::new(), vec![(Key::MIN, None)]),
            false => {
                let leaves = tree::walk_inner(sb, reader, &mut state, &mut report);
                (leaves, state.lost.ranges().collect())
            }
        };
        if !below_lost.is_empty() && self.options.mode == RepairMode::Full && state.own.is_none() {
            let owned = &mut state.owned;
            let search = salvage::Search { source, lost: &below_lost, is_restored: self.restored.is_some() };
            salvage::salvage(&search, reader, &mut leaves, owned, repairs, progress);
        }
        let leaves = tree::valid_leaves(sb, reader, &mut state, &leaves);
        // A block that is not a node may hold file data.
        let mut own = state.own.map_or_else(|| Owned::new(groups), |own| own.blocks);
        for node in &state.bad_nodes {
            state.owned.release(node.block, NODE_BLOCKS);
            own.release(node.block, NODE_BLOCKS);
        }
        let bad: BTreeMap<Key, BlockNo> = state.bad_nodes.iter().map(|n| (n.low, n.block)).collect();
        for (low, high) in state.lost.ranges() {
            let block = bad.get(&low).copied();
            repairs.add(RepairKind::NodeDropped, At { block, ..At::default() }, || match high {
                Some(high) => format!("all items from {low} up to {high}"),
                None => format!("all items from {low} on"),
            });
        }
        Readable { leaves, nodes: state.owned, own, is_whole: state.lost.is_empty() }
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
