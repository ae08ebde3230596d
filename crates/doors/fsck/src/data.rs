//! Reads the data of files that have checksums, and verifies it.
//!
//! Blocks are read in batches, in the order of their addresses. A block that several trees share is
//! read once: its checksum is the same in all of them, since none of them may overwrite it.

use crate::items::State;
use crate::kinds::FindingKind;
use crate::owned::Owned;
use crate::read::Reader;
use crate::report::At;
use crate::tree::{NodeRef, stream_items};
use kedge_base::{BlockNo, Result};
use kedge_format::item::ExtentItem;
use kedge_format::sums::{SumsItem, sum_of};
use kedge_format::superblock::Superblock;
use kedge_format::{ItemKind, Key};

/// Blocks of a batch: 64 MiB of data.
const BATCH_BLOCKS: usize = 1 << 14;

/// A block to verify.
#[derive(Clone, Copy)]
struct Wanted {
    at: BlockNo,
    sum: u32,
    ino: u64,
    file_block: u64,
}

/// The verification of an image's data, over all its trees.
pub(crate) struct DataCheck {
    /// Blocks that are verified already or are in the batch.
    seen: Owned,
    pub blocks: u64,
}

impl DataCheck {
    pub fn new(groups: u64) -> DataCheck {
        DataCheck { seen: Owned::new(groups), blocks: 0 }
    }

    /// Verifies the data of a tree whose leaves have no findings.
    pub fn tree(
        &mut self,
        sb: &Superblock,
        reader: &mut Reader,
        state: &mut State,
        leaves: &[NodeRef],
        progress: &mut dyn FnMut(u64, u64),
    ) {
        let total = leaves.len() as u64;
        // Items and data are read alternately, because they share one reader.
        let mut extents = Extents::default();
        let mut batch = Vec::new();
        for (done, leaf) in leaves.iter().enumerate() {
            let collected = stream_items(
                sb,
                reader,
                std::slice::from_ref(leaf),
                |_, key, value, _| self.collect(key, value, &mut extents, &mut batch),
                &mut |_, _| (),
            );
            if let Err(e) = collected {
                state.findings.add_error(FindingKind::NodeBad, At::node(leaf), &e);
            }
            if batch.len() >= BATCH_BLOCKS {
                self.verify(reader, state, &mut batch);
            }
            progress(done as u64 + 1, total);
        }
        self.verify(reader, state, &mut batch);
    }

    fn collect(
        &mut self,
        key: Key,
        value: &[u8],
        extents: &mut Extents,
        batch: &mut Vec<Wanted>,
    ) -> Result<()> {
        if key.ino != extents.ino {
            *extents = Extents { ino: key.ino, ..Extents::default() };
        }
        match ItemKind::from_u8(key.kind) {
            Some(ItemKind::Extent) => {
                let item = ExtentItem::decode(value)?;
                if !item.unwritten {
                    extents.written.push((key.offset, item));
                }
            }
            Some(ItemKind::Sums) => {
                let item = SumsItem::decode(value)?;
                for (i, sum) in item.0.into_iter().enumerate() {
                    let file_block = key.offset + i as u64;
                    if let Some(at) = extents.place(file_block)
                        && self.seen.claim(at, 1).is_empty()
                    {
                        batch.push(Wanted { at, sum, ino: key.ino, file_block });
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn verify(&mut self, reader: &mut Reader, state: &mut State, batch: &mut Vec<Wanted>) {
        batch.sort_unstable_by_key(|wanted| wanted.at);
        let blocks = &*batch;
        reader.stream(
            blocks.len(),
            1,
            |i| blocks[i].at,
            |i, bytes| {
                let Wanted { at, sum, ino, file_block } = blocks[i];
                let place = At::both(ino, at);
                match bytes {
                    Ok(bytes) if sum_of(bytes) == sum => {}
                    Ok(_) => state.findings.add(FindingKind::DataBad, place, || {
                        format!("file block {file_block} does not match its checksum")
                    }),
                    Err(e) => state.findings.add_error(FindingKind::IoError, place, &e),
                }
            },
        );
        self.blocks += batch.len() as u64;
        batch.clear();
    }
}

/// The written extents of the inode whose items are being streamed.
#[derive(Default)]
struct Extents {
    ino: u64,
    written: Vec<(u64, ExtentItem)>,
}

impl Extents {
    fn place(&self, file_block: u64) -> Option<BlockNo> {
        let after = self.written.partition_point(|(first, _)| *first <= file_block);
        let (first, item) = self.written[..after].last()?;
        let skip = file_block - first;
        (skip < item.blocks as u64).then(|| BlockNo(item.start.0 + skip))
    }
}
