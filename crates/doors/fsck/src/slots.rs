//! Reads both superblock slots, checks them and picks the newest valid slot.

use crate::kinds::FindingKind;
use crate::read::Reader;
use crate::report::{At, Findings};
use kedge_base::{BLOCK_SIZE, BlockNo, Error, Generation};
use kedge_format::content::{Content, HEAD_BYTES};
use kedge_format::superblock::{INCOMPAT_KNOWN, RO_COMPAT_KNOWN, SLOTS, Superblock};

/// The valid slots.
#[derive(Default)]
pub(crate) struct Slots {
    pub newest: Option<Superblock>,
    pub older: Option<Superblock>,
}

/// Reads both slots and returns the newest valid superblock. Returns `None` if neither is valid;
/// the findings have the reason.
pub(crate) fn read_slots(reader: &mut Reader, findings: &mut Findings) -> Option<Superblock> {
    read_both(reader, findings).newest
}

/// Reads both slots. If neither is valid, the findings have the reason.
pub(crate) fn read_both(reader: &mut Reader, findings: &mut Findings) -> Slots {
    let device_blocks = reader.device_blocks();
    if device_blocks <= SLOTS[1].0 {
        findings.add(FindingKind::NotAnImage, At::default(), || {
            format!("a device of {device_blocks} blocks has no room for two superblock slots")
        });
        return Slots::default();
    }
    let mut has_magic = false;
    let mut unread = false;
    let mut unsupported = false;
    let mut slots: [Option<Superblock>; 2] = [None, None];
    let mut bad: [Option<Error>; 2] = [None, None];
    let mut blank = [false; 2];
    for slot in 0..2 {
        let decoded = reader.read(SLOTS[slot], 1).inspect_err(|_| unread = true).and_then(|block| {
            has_magic |= Superblock::has_magic(block.as_bytes());
            blank[slot] = block.as_bytes().iter().all(|&b| b == 0);
            Superblock::decode(block.as_bytes(), slot, device_blocks)
        });
        match decoded {
            Ok(sb) => slots[slot] = Some(sb),
            Err(e) => {
                unsupported |= matches!(e, Error::Unsupported(_));
                bad[slot] = Some(e);
            }
        }
    }
    if !has_magic && !unread && slots.iter().all(Option::is_none) {
        let blocks = (HEAD_BYTES / BLOCK_SIZE).min(usize::try_from(device_blocks).unwrap_or(usize::MAX));
        let held = reader.read(BlockNo(0), blocks).ok().and_then(|head| Content::of(head.as_bytes()).name());
        findings.add(FindingKind::NotAnImage, At::default(), || match held {
            Some(held) => format!("no superblock slot has the magic of KedgeFS; the device holds {held}"),
            None => "no superblock slot has the magic of KedgeFS".into(),
        });
        return Slots::default();
    }
    for slot in 0..2 {
        let Some(error) = &bad[slot] else { continue };
        // An image that has had at most one checkpoint after mkfs may leave the other slot blank.
        let other = slots[1 - slot].as_ref().map(|sb| sb.checkpoint.generation);
        if blank[slot] && other.is_some_and(|g| g <= Generation(2)) {
            continue;
        }
        findings.add_error(FindingKind::SuperblockSlotBad, At::block(SLOTS[slot]), error);
    }
    if let [Some(a), Some(b)] = &slots
        && !a.geometry.is_same_image(&b.geometry)
    {
        findings.add(FindingKind::SuperblockSlotsDiffer, At::block(SLOTS[1]), || {
            format!(
                "slots of generations {} and {} disagree on identity, features or the place of an area",
                a.checkpoint.generation, b.checkpoint.generation
            )
        });
    }
    let mut valid: Vec<Superblock> = slots.into_iter().flatten().collect();
    valid.sort_by_key(|sb| sb.checkpoint.generation);
    let Some(newest) = valid.pop() else {
        if !unread && !unsupported {
            findings.add(FindingKind::SuperblockMissing, At::block(BlockNo(0)), || {
                "no superblock slot is valid".into()
            });
        }
        return Slots::default();
    };
    Slots { newest: judge(newest, findings), older: valid.pop() }
}

/// Checks a superblock before it is used.
pub(crate) fn judge(sb: Superblock, findings: &mut Findings) -> Option<Superblock> {
    let (g, c) = (&sb.geometry, &sb.checkpoint);
    let at = At::block(sb.block());
    let unknown = g.feature_incompat & !INCOMPAT_KNOWN;
    if unknown != 0 {
        findings.add(FindingKind::Unsupported, at, || format!("unknown incompatible features {unknown:#x}"));
        return None;
    }
    let unknown = g.feature_ro_compat & !RO_COMPAT_KNOWN;
    if unknown != 0 {
        // An unknown feature may own blocks that this version cannot see, so ownership cannot be
        // checked.
        findings.add(FindingKind::Unsupported, at, || format!("unknown read-only features {unknown:#x}"));
        return None;
    }
    if let Err(error) = sb.check_room() {
        findings.add_error(FindingKind::SuperblockCounter, at, &error);
    }
    if c.clean && c.tail_lsn != c.checkpoint_lsn {
        findings.add(FindingKind::SuperblockCleanWithLog, at, || {
            format!(
                "unmounted, yet the tail is at LSN {} and the checkpoint at {}",
                c.tail_lsn, c.checkpoint_lsn
            )
        });
    }
    Some(sb)
}
