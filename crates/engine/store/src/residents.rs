//! Log-resident data: ranges of files whose newest durable copy is a log record.
//!
//! The running store and replay use the same structure. The running store keeps ranges and LSNs,
//! and the bytes are in the page cache. In replay the bytes are kept too: this is the overlay that
//! recovery writes in place at the end. Pieces of one inode never overlap: a newer piece replaces
//! what it covers.
//!
//! # Memory
//! Only the size of the log bounds the pieces. The shortest edit that makes a piece takes 22 bytes
//! of log. A piece of one byte takes less than 200 bytes of memory: its entry in a map whose nodes
//! are half full, another in the map of ages, and an allocation for the byte. So a log that was
//! crafted for this takes eight to nine times its size in recovery, 9 GiB for the largest log. A
//! log of pieces of a block each takes little more than its size. Refusing a crafted log would also
//! refuse logs that a running file system may have written.
//!
//! For this reason all inodes of a shard share one map. A map for each inode would take 600 bytes
//! more, thirty times the size of the log if each edit names another inode.

use kedge_base::atomic::{AtomicUsize, Ordering};
use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Ino, Lsn};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SHARDS: usize = 16;

/// Where the bytes of a piece are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In the page cache of the running store.
    Live,
    Zero,
    /// Bytes of an edit. The piece starts at offset `usize` in them.
    Bytes(Arc<[u8]>, usize),
}

impl Source {
    fn skip(&self, n: usize) -> Source {
        match self {
            Source::Bytes(b, at) => Source::Bytes(b.clone(), at + n),
            other => other.clone(),
        }
    }
}

#[derive(Clone, Debug)]
struct Piece {
    len: u64,
    lsn: Lsn,
    source: Source,
}

/// A range of file bytes in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidentRange {
    pub offset: u64,
    pub len: u64,
    pub lsn: Lsn,
}

/// The pieces by inode and file offset.
type Pieces = BTreeMap<(Ino, u64), Piece>;

// The bound on memory in the module's head relies on this.
const _: () = assert!(size_of::<((Ino, u64), Piece)>() <= 64);

/// Offset, length and bytes of a piece.
pub(crate) type DrainedPiece = (u64, u64, Source);

pub(crate) struct Residents {
    shards: Vec<Mutex<Pieces>>,
    /// The number of pieces by LSN and inode. The tail cannot pass the first LSN.
    ages: Mutex<BTreeMap<(Lsn, Ino), u32>>,
    pieces: AtomicUsize,
}

impl Residents {
    pub(crate) fn new() -> Residents {
        Residents {
            shards: (0..SHARDS).map(|_| Mutex::new(Rank::Residents, Pieces::new())).collect(),
            ages: Mutex::new(Rank::Leaf, BTreeMap::new()),
            pieces: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Pieces> {
        &self.shards[(ino.0 as usize) % SHARDS]
    }

    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.pieces.load(Ordering::Relaxed)
    }

    /// LSN of the oldest piece.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        self.ages.lock().first_key_value().map(|((lsn, _), _)| *lsn)
    }

    /// The inode of the oldest piece.
    pub(crate) fn oldest_inode(&self) -> Option<Ino> {
        self.ages.lock().first_key_value().map(|((_, ino), _)| *ino)
    }

    /// Adds a piece, replacing what it covers. Returns the change in the number of pieces.
    pub(crate) fn add(&self, ino: Ino, offset: u64, len: u64, lsn: Lsn, source: Source) -> i64 {
        if len == 0 {
            return 0;
        }
        let mut pieces = self.shard(ino).lock();
        let before = pieces.len() as i64;
        let mut ages = self.ages.lock();
        cut(&mut pieces, &mut ages, ino, offset, len);
        count(&mut ages, ino, lsn, 1);
        pieces.insert((ino, offset), Piece { len, lsn, source });
        self.changed(pieces.len() as i64 - before)
    }

    /// Ends the residency of a range. Returns the change in the number of pieces.
    pub(crate) fn drop_range(&self, ino: Ino, offset: u64, len: u64) -> i64 {
        let mut pieces = self.shard(ino).lock();
        let before = pieces.len() as i64;
        cut(&mut pieces, &mut self.ages.lock(), ino, offset, len);
        self.changed(pieces.len() as i64 - before)
    }

    fn changed(&self, by: i64) -> i64 {
        if by >= 0 {
            self.pieces.fetch_add(by as usize, Ordering::Relaxed);
        } else {
            self.pieces.fetch_sub(by.unsigned_abs() as usize, Ordering::Relaxed);
        }
        by
    }

    pub(crate) fn ranges(&self, ino: Ino) -> Vec<ResidentRange> {
        if self.len() == 0 {
            return Vec::new();
        }
        let pieces = self.shard(ino).lock();
        let of_inode = pieces.range((ino, 0)..=(ino, u64::MAX));
        of_inode.map(|(&(_, offset), p)| ResidentRange { offset, len: p.len, lsn: p.lsn }).collect()
    }

    pub(crate) fn overlaps(&self, ino: Ino, offset: u64, len: u64) -> bool {
        if self.len() == 0 {
            return false;
        }
        let pieces = self.shard(ino).lock();
        let end = offset.saturating_add(len);
        pieces.range((ino, 0)..(ino, end)).next_back().is_some_and(|(&(_, at), p)| at + p.len > offset)
    }

    /// Inodes by the age of their oldest piece.
    pub(crate) fn inodes_by_age(&self) -> Vec<Ino> {
        let ages = self.ages.lock();
        let mut seen = BTreeSet::new();
        ages.keys().filter(|(_, ino)| seen.insert(*ino)).map(|(_, ino)| *ino).collect()
    }

    /// Removes and returns all pieces, for recovery: sorted by inode, then by offset.
    pub(crate) fn drain(&self) -> Vec<(Ino, Vec<DrainedPiece>)> {
        let mut all: Vec<(Ino, Vec<DrainedPiece>)> = Vec::new();
        for shard in &self.shards {
            for ((ino, at), p) in std::mem::take(&mut *shard.lock()) {
                if all.last().is_none_or(|(last, _)| *last != ino) {
                    all.push((ino, Vec::new()));
                }
                let (_, pieces) = all.last_mut().expect("just looked at");
                pieces.push((at, p.len, p.source));
            }
        }
        self.ages.lock().clear();
        self.pieces.store(0, Ordering::Relaxed);
        all.sort_by_key(|(ino, _)| *ino);
        all
    }
}

fn count(ages: &mut BTreeMap<(Lsn, Ino), u32>, ino: Ino, lsn: Lsn, by: i32) {
    let n = ages.entry((lsn, ino)).or_insert(0);
    *n = n.checked_add_signed(by).expect("a piece is counted before it is uncounted");
    if *n == 0 {
        ages.remove(&(lsn, ino));
    }
}

/// Removes `[offset, offset + len)` from the pieces, and splits those that extend beyond its ends.
fn cut(pieces: &mut Pieces, ages: &mut BTreeMap<(Lsn, Ino), u32>, ino: Ino, offset: u64, len: u64) {
    let end = offset.saturating_add(len);
    let mut hit: Vec<u64> = Vec::new();
    for (&(_, at), p) in pieces.range((ino, 0)..(ino, end)).rev() {
        if at + p.len <= offset {
            break;
        }
        hit.push(at);
    }
    for at in hit {
        let piece = pieces.remove(&(ino, at)).expect("just seen");
        count(ages, ino, piece.lsn, -1);
        let piece_end = at + piece.len;
        if at < offset {
            count(ages, ino, piece.lsn, 1);
            pieces
                .insert((ino, at), Piece { len: offset - at, lsn: piece.lsn, source: piece.source.clone() });
        }
        if piece_end > end {
            count(ages, ino, piece.lsn, 1);
            let source = piece.source.skip((end - at) as usize);
            pieces.insert((ino, end), Piece { len: piece_end - end, lsn: piece.lsn, source });
        }
    }
}

#[cfg(test)]
#[path = "residents_tests.rs"]
mod tests;
