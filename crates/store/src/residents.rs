//! Log-resident data: ranges of files whose newest durable copy is a log record.
//!
//! One structure for both lives: live it knows ranges and LSNs (the bytes are in the page cache); in replay it also
//! holds the bytes and is the overlay that recovery writes in place at the end. Pieces of one inode never overlap; a
//! newer piece replaces what it covers.

use kedge_base::lock::{Mutex, Rank};
use kedge_base::{Ino, InoMap, Lsn};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SHARDS: usize = 16;

/// Where the bytes of a piece are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In the page cache of the running file system.
    Live,
    Zero,
    /// In the record: the piece starts `usize` bytes into it.
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

type Pieces = BTreeMap<u64, Piece>;

/// Offset, length and bytes of a piece.
pub(crate) type DrainedPiece = (u64, u64, Source);

pub(crate) struct Residents {
    shards: Vec<Mutex<InoMap<Pieces>>>,
    /// (LSN, inode) of every piece, counted: the oldest is what holds the tail.
    ages: Mutex<BTreeMap<(Lsn, Ino), u32>>,
    pieces: AtomicUsize,
}

impl Residents {
    pub fn new() -> Residents {
        Residents {
            shards: (0..SHARDS).map(|_| Mutex::new(Rank::Residents, InoMap::default())).collect(),
            ages: Mutex::new(Rank::Leaf, BTreeMap::new()),
            pieces: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<InoMap<Pieces>> {
        &self.shards[(ino.0 as usize) % SHARDS]
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.load(Ordering::Relaxed)
    }

    /// LSN of the oldest piece.
    pub fn oldest(&self) -> Option<Lsn> {
        self.ages.lock().first_key_value().map(|((lsn, _), _)| *lsn)
    }

    /// The inode of the oldest piece.
    pub fn oldest_inode(&self) -> Option<Ino> {
        self.ages.lock().first_key_value().map(|((_, ino), _)| *ino)
    }

    /// Adds a piece, replacing what it covers. Returns the change of the number of pieces.
    pub fn add(&self, ino: Ino, offset: u64, len: u64, lsn: Lsn, source: Source) -> i64 {
        if len == 0 {
            return 0;
        }
        let mut shard = self.shard(ino).lock();
        let pieces = shard.entry(ino).or_default();
        let before = pieces.len() as i64;
        let mut ages = self.ages.lock();
        cut(pieces, &mut ages, ino, offset, len);
        count(&mut ages, ino, lsn, 1);
        pieces.insert(offset, Piece { len, lsn, source });
        self.changed(pieces.len() as i64 - before)
    }

    /// Voids a range. Returns the change of the number of pieces.
    pub fn drop_range(&self, ino: Ino, offset: u64, len: u64) -> i64 {
        let mut shard = self.shard(ino).lock();
        let Some(pieces) = shard.get_mut(&ino) else { return 0 };
        let before = pieces.len() as i64;
        cut(pieces, &mut self.ages.lock(), ino, offset, len);
        let change = pieces.len() as i64 - before;
        if pieces.is_empty() {
            shard.remove(&ino);
        }
        self.changed(change)
    }

    fn changed(&self, by: i64) -> i64 {
        if by >= 0 {
            self.pieces.fetch_add(by as usize, Ordering::Relaxed);
        } else {
            self.pieces.fetch_sub(by.unsigned_abs() as usize, Ordering::Relaxed);
        }
        by
    }

    pub fn ranges(&self, ino: Ino) -> Vec<ResidentRange> {
        if self.len() == 0 {
            return Vec::new();
        }
        let shard = self.shard(ino).lock();
        let Some(pieces) = shard.get(&ino) else { return Vec::new() };
        pieces.iter().map(|(&offset, p)| ResidentRange { offset, len: p.len, lsn: p.lsn }).collect()
    }

    pub fn overlaps(&self, ino: Ino, offset: u64, len: u64) -> bool {
        if self.len() == 0 {
            return false;
        }
        let shard = self.shard(ino).lock();
        let Some(pieces) = shard.get(&ino) else { return false };
        let end = offset.saturating_add(len);
        pieces.range(..end).next_back().is_some_and(|(&at, p)| at + p.len > offset)
    }

    /// Inodes by the age of their oldest piece.
    pub fn inodes_by_age(&self) -> Vec<Ino> {
        let ages = self.ages.lock();
        let mut seen = BTreeSet::new();
        ages.keys().filter(|(_, ino)| seen.insert(*ino)).map(|(_, ino)| *ino).collect()
    }

    /// Takes everything out, for recovery: per inode, pieces in order of offset.
    pub fn drain(&self) -> Vec<(Ino, Vec<DrainedPiece>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for (ino, pieces) in shard.lock().drain() {
                all.push((ino, pieces.into_iter().map(|(at, p)| (at, p.len, p.source)).collect()));
            }
        }
        self.ages.lock().clear();
        self.pieces.store(0, Ordering::Relaxed);
        all.sort_by_key(|(ino, _): &(Ino, Vec<DrainedPiece>)| *ino);
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

/// Removes `[offset, offset + len)` from the pieces, splitting those that reach over its ends.
fn cut(pieces: &mut Pieces, ages: &mut BTreeMap<(Lsn, Ino), u32>, ino: Ino, offset: u64, len: u64) {
    let end = offset.saturating_add(len);
    let mut hit: Vec<u64> = Vec::new();
    for (&at, p) in pieces.range(..end).rev() {
        if at + p.len <= offset {
            break;
        }
        hit.push(at);
    }
    for at in hit {
        let piece = pieces.remove(&at).expect("just seen");
        count(ages, ino, piece.lsn, -1);
        let piece_end = at + piece.len;
        if at < offset {
            count(ages, ino, piece.lsn, 1);
            pieces.insert(at, Piece { len: offset - at, lsn: piece.lsn, source: piece.source.clone() });
        }
        if piece_end > end {
            count(ages, ino, piece.lsn, 1);
            let source = piece.source.skip((end - at) as usize);
            pieces.insert(end, Piece { len: piece_end - end, lsn: piece.lsn, source });
        }
    }
}

#[cfg(test)]
#[path = "residents_tests.rs"]
mod tests;
