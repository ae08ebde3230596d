//! A sparse device in memory, for this crate's tests.

use kedge_base::{BLOCK_SIZE, IoBuf, Result};
use kedge_device::{Completion, CompletionSink, Device, DeviceStats, FuaKind, Geometry, Op, Request};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct TestDevice {
    geometry: Geometry,
    stats: DeviceStats,
    pub blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl TestDevice {
    pub(crate) fn new(blocks: u64) -> TestDevice {
        let geometry = Geometry {
            size: blocks * BLOCK_SIZE as u64,
            optimal_io: 1 << 20,
            discard_granularity: 0,
            discard_zeroes: false,
            fua: FuaKind::Native,
        };
        TestDevice { geometry, stats: DeviceStats::default(), blocks: Mutex::new(BTreeMap::new()) }
    }
}

impl Device for TestDevice {
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        for Request { tag, offset, mut op } in batch {
            let result = match &mut op {
                Op::Read(buf) => self.read(offset, buf),
                Op::Write { buf, fua } => self.write(offset, buf, *fua),
                Op::Flush => self.flush(),
                Op::Discard { len } => self.discard(offset, *len),
                Op::WriteZeroes { len } => self.write_zeroes(offset, *len),
            };
            sink.complete(Completion { tag, op, result });
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        assert!(offset + buf.len() as u64 <= self.geometry.size);
        let blocks = self.blocks.lock();
        for (i, out) in buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).enumerate() {
            match blocks.get(&(offset / BLOCK_SIZE as u64 + i as u64)) {
                Some(block) => out.copy_from_slice(block),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &IoBuf, _fua: bool) -> Result<()> {
        assert!(offset + buf.len() as u64 <= self.geometry.size);
        let mut blocks = self.blocks.lock();
        for (i, bytes) in buf.as_bytes().chunks_exact(BLOCK_SIZE).enumerate() {
            blocks.insert(offset / BLOCK_SIZE as u64 + i as u64, bytes.to_vec());
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.write(offset, &IoBuf::zeroed(len as usize / BLOCK_SIZE), false)
    }

    fn name(&self) -> &str {
        "test memory"
    }
}

/// Returns the geometry of an image of `blocks` blocks with a log of `log_blocks` blocks. It has no
/// copies of the superblock, so tests may use any block of the data area.
pub(crate) fn plan(blocks: u64, log_blocks: u64) -> kedge_format::superblock::Geometry {
    let mut geometry = plan_with_copies(blocks, log_blocks);
    geometry.feature_incompat &= !kedge_format::superblock::INCOMPAT_COPIES;
    geometry
}

/// Does what [`plan`] does, for an image with copies of the superblock.
pub(crate) fn plan_with_copies(blocks: u64, log_blocks: u64) -> kedge_format::superblock::Geometry {
    let block = BLOCK_SIZE as u64;
    kedge_format::superblock::Geometry::plan(
        blocks * block,
        log_blocks * block,
        "test",
        uuid::Uuid::from_u128(7),
        [3; 16],
        kedge_base::Timespec::default(),
    )
    .expect("the plan is possible")
}

/// Writes a frozen state as the checkpoint of `generation` would.
pub(crate) fn write_frozen(
    device: &TestDevice,
    frozen: &crate::FrozenAlloc,
    generation: kedge_base::Generation,
) -> Vec<kedge_base::BlockNo> {
    let mut written = Vec::new();
    for (block, buf) in frozen.writes(uuid::Uuid::from_u128(7), generation) {
        device.write(block.byte_offset(), &buf, false).expect("memory takes it");
        written.extend((0..buf.blocks() as u64).map(|i| kedge_base::BlockNo(block.0 + i)));
    }
    written
}
