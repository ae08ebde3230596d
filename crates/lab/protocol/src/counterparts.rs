//! Which mutant of the model corresponds to each deliberately broken engine.

use crate::rule::Rule;
use kedge_base::broken::Variant;

/// The counterpart of a broken engine in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counterpart {
    /// The protocol without this rule.
    Without(Rule),
    /// There is none, since the model lacks what is broken. The text names it.
    None(&'static str),
}

const SHARING: &str = "trees and files of the model share no nodes and blocks";
const SUMS: &str = "data of the model has no checksums";
const NAMES: &str = "a record of metadata is one value; names, link counts and attributes are not in it";
const LIMITS: &str = "there are no limits";
const FREEZE: &str = "there is no freeze and no clean mark";
const MEMORY: &str = "the fault is in memory: what reaches the device follows the protocol";
const ANSWERS: &str = "the model has no results of calls but those of fsync and sync";
const SMALL_FILES: &str = "a file of the model is one block, written as a whole";

/// Returns the counterpart of a broken engine.
pub fn counterpart(variant: Variant) -> Counterpart {
    use Counterpart::{None, Without};
    match variant {
        Variant::SkipDataFlush | Variant::SharedFlush | Variant::InlineOutUnflushed => {
            Without(Rule::FlushBeforeLogWrite)
        }
        // The model has one number for the two that an inode keeps for fsync and for fdatasync.
        Variant::AckBeforeForce | Variant::ForgetDatasyncOnSize | Variant::ForgetEvicted => {
            Without(Rule::ForceBeforeAck)
        }
        Variant::FdatasyncSkipsFlush => Without(Rule::FlushBeforeAck),
        Variant::ErrorNotPropagated
        | Variant::WaitWithoutLook
        | Variant::GroupedAckEarly
        | Variant::SyncJoinsRunning => Without(Rule::WritebackBeforeAck),
        Variant::ReuseFreedBlock => Without(Rule::BlockQuarantine),
        Variant::DiscardEarly => Without(Rule::DiscardQuarantine),
        Variant::ReuseReplacedNode => Without(Rule::NodeQuarantine),
        Variant::SlotBeforeNodes => Without(Rule::FlushBeforeSlot),
        Variant::CopyBeforeSlot => Without(Rule::SlotBeforeCopies),
        Variant::TailBeforeSlot => Without(Rule::SlotBeforeTail),
        Variant::TailPastResidents => Without(Rule::ResidentsHoldTail),
        Variant::ReplayOldData => Without(Rule::VoidResidents),
        // In the model the size of a file is part of its mapping.
        Variant::ExtentBeforeData | Variant::SizeBeyondWritten => Without(Rule::DataBeforeRecord),
        Variant::PartialRecord => Without(Rule::WholeRecords),
        Variant::KeepEpoch => Without(Rule::NewEpoch),
        Variant::CutNotExact => Without(Rule::CutIsExact),
        Variant::AckOutOfOrder => Without(Rule::DurableIsPrefix),
        Variant::AtomicInParts => Without(Rule::AtomicInOneRecord),
        Variant::AtomicWrittenEarly => Without(Rule::AtomicHeldBack),
        Variant::FreeSharedNode
        | Variant::BirthIgnored
        | Variant::ReuseFreedTree
        | Variant::ChangedTreeLeftOut
        | Variant::DeadListLost
        | Variant::ReplacedRootUnmarked
        | Variant::NamesAfterRoot
        | Variant::SharedBlockFreed
        | Variant::CloneWithoutFlag
        | Variant::CloneAfterTruncate
        | Variant::MoveUncounted
        | Variant::CountsInReplay => None(SHARING),
        Variant::StaleChecksum | Variant::SumsInPlace | Variant::SumsInReplay => None(SUMS),
        Variant::ForgetRenameVictim | Variant::KeepOldParts => None(NAMES),
        Variant::LimitCountedTwice | Variant::LimitUnpromised => None(LIMITS),
        Variant::ThawKeepsClean
        | Variant::UngatedWriter
        | Variant::FrozenOpenWrites
        | Variant::UnwokenFreeze => None(FREEZE),
        Variant::StaleInode
        | Variant::StaleMarks
        | Variant::EarlyRemoval
        | Variant::LookBetweenEdits
        | Variant::CloseBesideChanges
        | Variant::UngrantedReturn
        | Variant::UnfilledBatch
        | Variant::LateNumber
        | Variant::StaleEnd => None(MEMORY),
        Variant::ShortWhole | Variant::ForgetLosses | Variant::TouchInWriteback => None(ANSWERS),
        Variant::InlineInReplay | Variant::InlineOutUnlogged => None(SMALL_FILES),
        Variant::LostByDurableWrite => None("the device of the model fails no request"),
        Variant::CutBeforeSlot => None("the device of the model keeps its size"),
        Variant::UnkeyedLog => None("the data of a file never looks like a log write"),
        Variant::DiscardWithoutFlush => {
            None("writes of one place reach the medium in their order, and no data write is FUA")
        }
    }
}
