//! Collects the extents and counts of a tree, before any decision about them.

use super::source::Source;
use crate::owned::Owned;
use crate::read::Reader;
use crate::tree::{NodeRef, stream_items};
use kedge_base::{BlockNo, Extent, Result};
use kedge_format::counts::CountItem;
use kedge_format::item::ExtentItem;
use kedge_format::superblock::Geometry;
use kedge_format::{ItemKind, Key};

/// An extent or a count item, with its location.
pub(crate) enum Claim {
    Extent(ExtentItem),
    Count(Extent, CountItem),
}

impl Claim {
    pub fn extent(&self) -> Extent {
        match self {
            Claim::Extent(item) => item.extent(),
            Claim::Count(extent, _) => *extent,
        }
    }

    /// Returns the claim that an item makes on blocks of the data area, if it makes one.
    pub fn of(g: &Geometry, key: Key, value: &[u8]) -> Option<Claim> {
        let claim = match ItemKind::from_u8(key.kind)? {
            ItemKind::Extent if key.ino != 0 => Claim::Extent(ExtentItem::decode(value).ok()?),
            ItemKind::Count if key.ino == 0 => {
                let item = CountItem::decode(key.offset, value).ok()?;
                Claim::Count(item.extent(key.offset), item)
            }
            _ => return None,
        };
        let extent = claim.extent();
        (extent.start >= g.data_start && extent.end().0 <= g.total_blocks).then_some(claim)
    }
}

/// Passes the claims of valid leaves to `see`.
pub(crate) fn claims(
    source: &Source,
    reader: &mut Reader,
    leaves: &[NodeRef],
    mut see: impl FnMut(&NodeRef, Claim),
) -> Result<()> {
    let visit = |node: &NodeRef, key: Key, value: &[u8], inside: bool| {
        if let Some(claim) = Claim::of(&source.sb.geometry, key, value).filter(|_| inside) {
            see(node, claim);
        }
        Ok(())
    };
    stream_items(&source.sb, reader, leaves, visit, &mut |_, _| {})
}

/// A comparison of the marks with the counts of a tree.
pub(crate) struct Marks {
    /// Blocks whose count exceeds the number of marked extents.
    pub owed: Owned,
    /// Blocks of unmarked extents without a count.
    pub plain: Owned,
    /// Whether there are both a count item and a marked extent.
    pub both: bool,
}

pub(crate) fn marks(source: &Source, reader: &mut Reader, leaves: &[NodeRef]) -> Result<Marks> {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    let (mut counts, mut marked) = (false, false);
    let groups = source.sb.geometry.groups();
    let (mut plain, mut counted) = (Owned::new(groups), Owned::new(groups));
    claims(source, reader, leaves, |_, claim| {
        let extent = claim.extent();
        let by = match claim {
            Claim::Extent(item) if item.counted => -1,
            Claim::Extent(_) => return drop(plain.claim(extent.start, extent.blocks)),
            Claim::Count(_, item) => {
                counted.claim(extent.start, extent.blocks);
                i64::from(item.count)
            }
        };
        counts |= by > 0;
        marked |= by < 0;
        changes.extend([(extent.start.0, by), (extent.end().0, -by)]);
    })?;
    changes.sort_unstable();
    plain.remove(&counted);
    let mut owed = Owned::new(groups);
    let (mut now, mut from) = (0, 0);
    for (at, by) in changes {
        if now > 0 && at > from {
            owed.claim(BlockNo(from), at - from);
        }
        (now, from) = (now + by, at);
    }
    Ok(Marks { owed, plain, both: counts && marked })
}
