//! Third phase of a pass: submits the writes, and finds the pages whose writes failed.

use super::part::Gathered;
use super::{Pass, SPLIT_BLOCKS_MAX};
use crate::error::{Error, Result};
use kedge_base::broken::{self, Variant};
use kedge_base::trace::{self, Event};
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, IoBuf};
use kedge_device::{Completion, Io, Op, run_apart, run_batch};

/// The pages in a write: inode, first page, number of pages.
type Users = Vec<(usize, u64, u64)>;

fn inode_of(users: &[(usize, u64, u64)]) -> Option<usize> {
    users.first().map(|(inode_index, ..)| *inode_index)
}

/// A page whose write failed, and its block.
struct Piece {
    inode_index: usize,
    index: u64,
    at: BlockNo,
}

impl Pass<'_> {
    /// Submits the gathered writes, and records in each part the pages whose writes failed. Returns
    /// the first error, even if a retry succeeded.
    pub(super) fn write(&mut self, gathered: Vec<Gathered>, durable: bool) -> Result<()> {
        // Broken on purpose: data that was overwritten in place is not flushed.
        let fua = durable && !broken::is(Variant::FdatasyncSkipsFlush);
        let (mut ios, mut users) = (Vec::new(), Vec::new());
        for io in gathered {
            self.stats().data_writes.inc();
            self.stats().data_write_bytes.add(io.buf.len() as u64);
            self.stats().data_writes_durable.add(durable as u64);
            ios.push(Io { offset: io.start.byte_offset(), op: Op::Write { buf: io.buf, fua } });
            users.push((io.start, io.users));
        }
        let mut first_error = None;
        let (mut again, mut pieces) = (Vec::new(), Vec::new());
        let completions = self.run_writes(ios, &users);
        for (completion, (start, users)) in completions.into_iter().zip(users) {
            let Err(e) = completion.result else {
                let blocks = users.iter().map(|(.., count)| count).sum();
                trace::note(|| Event::Wrote(Extent::new(start, blocks)));
                continue;
            };
            self.stats().data_write_errors.inc();
            self.tell_failed(&e, "");
            let last = matches!(e, kedge_base::Error::Fenced | kedge_base::Error::OutcomeUnknown);
            // The flush of a durable write may have failed, and may have lost what others wrote.
            if last || durable && self.store().has_lost_writes() {
                self.store().shutdown(&e);
            }
            let full = e.is_host_full();
            first_error.get_or_insert(Error::from(e));
            for (inode_index, ..) in &users {
                let part = self.parts[*inode_index].as_mut().expect("a write belongs to a part");
                (part.met_error, part.met_full) = (true, full);
            }
            let pages = users
                .iter()
                .flat_map(|(inode_index, from, count)| (*from..from + count).map(|i| (*inode_index, i)));
            let failed: Vec<Piece> = pages
                .zip(start.0..)
                .map(|((inode_index, index), at)| Piece { inode_index, index, at: BlockNo(at) })
                .collect();
            let Op::Write { buf, .. } = completion.op else { continue };
            if durable || last || failed.len() == 1 || again.len() + failed.len() > SPLIT_BLOCKS_MAX {
                failed.iter().for_each(|p| self.note_failed(p));
                continue;
            }
            for (piece, bytes) in failed.iter().zip(buf.as_bytes().chunks_exact(BLOCK_SIZE)) {
                let op = Op::Write { buf: IoBuf::from_bytes(bytes), fua: false };
                again.push(Io { offset: piece.at.byte_offset(), op });
            }
            pieces.extend(failed);
        }
        self.write_again(again, &pieces);
        first_error.map_or(Ok(()), Err)
    }

    /// Submits the writes in one batch; with `noplug` in one batch for each inode. The batches run
    /// concurrently.
    fn run_writes(&self, ios: Vec<Io>, users: &[(BlockNo, Users)]) -> Vec<Completion> {
        let device = &**self.store().device();
        if self.writeback.engine.live().plug() {
            return run_batch(device, ios);
        }
        let mut ios = ios.into_iter();
        let of_one_inode = users.chunk_by(|(_, a), (_, b)| inode_of(a) == inode_of(b));
        run_apart(device, of_one_inode.map(|users| ios.by_ref().take(users.len()).collect()).collect())
    }

    /// Writes each block of failed writes again, by itself.
    fn write_again(&mut self, again: Vec<Io>, pieces: &[Piece]) {
        if again.is_empty() {
            return;
        }
        self.stats().data_writes.add(again.len() as u64);
        self.stats().data_write_bytes.add((again.len() * BLOCK_SIZE) as u64);
        for (completion, piece) in run_batch(&**self.store().device(), again).into_iter().zip(pieces) {
            if let Err(e) = completion.result {
                self.stats().data_write_errors.inc();
                self.tell_failed(&e, ", once more");
                if matches!(e, kedge_base::Error::Fenced | kedge_base::Error::OutcomeUnknown) {
                    self.store().shutdown(&e);
                }
                self.note_failed(piece);
            }
        }
    }

    /// Logs a failed write. A full host is logged once, not for each write.
    fn tell_failed(&self, e: &kedge_base::Error, when: &str) {
        if e.is_host_full() {
            self.writeback.engine.note_host_error(e);
            tracing::debug!("writeback{when}: {e}");
        } else {
            tracing::error!("writeback{when}: {e}");
        }
    }

    fn note_failed(&mut self, piece: &Piece) {
        self.parts[piece.inode_index].as_mut().expect("a write belongs to a part").failed.insert(piece.index);
    }
}
