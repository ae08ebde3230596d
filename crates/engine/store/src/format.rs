//! Formatting: geometry, the log ring, the root directory, the first checkpoint.

use crate::checkpoint::cut::Cut;
use crate::checkpoint::write::{FULL, write_checkpoint};
use crate::counters::Counters;
use crate::forest::Member;
use crate::slots::{erase_copies, write_copies};
use crate::space::{AllocNodes, DeviceNodes};
use kedge_alloc::Alloc;
use kedge_base::atomic::AtomicU64;
use kedge_base::{BLOCK_SIZE, Clock, Epoch, Error, Generation, Ino, IoBuf, Lsn, Result};
use kedge_btree::{Tree, TreeConfig};
use kedge_device::{Device, Io, Op, run_batch};
use kedge_format::inline::INLINE_MAX;
use kedge_format::logwrite::LogSecret;
use kedge_format::superblock::{
    Geometry, INCOMPAT_INLINE, INCOMPAT_SUMS, RO_COMPAT_IMMUTABLE, SLOTS, Superblock,
};
use kedge_format::{FileKind, InodeCore, Key};
use std::sync::Arc;

/// Parameters of a new image.
#[derive(Clone, Debug)]
pub struct FormatParams {
    /// Size of the image in bytes; at most the size of the device.
    pub size: u64,
    pub log_size: u64,
    pub label: String,
    pub uuid: uuid::Uuid,
    pub hash_seed: [u8; 16],
    /// A random secret; see [`kedge_format::logwrite`].
    pub log_secret: LogSecret,
    /// Owner of the root directory.
    pub uid: u32,
    pub gid: u32,
    /// Whether files may be made immutable or append-only.
    pub immutable: bool,
    /// Whether file data has checksums.
    pub data_checksums: bool,
    /// The first block of a file of up to this many bytes is stored in the tree; 0 turns that off.
    pub inline_max: u64,
}

/// Generation of the first checkpoint, which is written to slot 0.
const FIRST: Generation = Generation(2);

/// Formats the device as an image. Its previous contents are lost.
pub fn format(device: Arc<dyn Device>, clock: Arc<dyn Clock>, params: &FormatParams) -> Result<Geometry> {
    let now = clock.now();
    let size = params.size.min(device.geometry().size);
    let mut geometry = Geometry {
        log_secret: params.log_secret,
        ..Geometry::plan(size, params.log_size, &params.label, params.uuid, params.hash_seed, now)?
    };
    if params.immutable {
        geometry.feature_ro_compat |= RO_COMPAT_IMMUTABLE;
    }
    if params.data_checksums {
        geometry.feature_incompat |= INCOMPAT_SUMS;
    }
    if params.inline_max > INLINE_MAX as u64 {
        let (asked, most) = (params.inline_max, INLINE_MAX);
        return Err(Error::invalid(format!("{asked} bytes of a file in the tree: the most are {most}")));
    }
    if params.inline_max > 0 {
        geometry.feature_incompat |= INCOMPAT_INLINE;
        geometry.inline_max = params.inline_max;
    }
    // The old slots and copies are cleared first: a crash while formatting must not leave an old
    // image that looks whole, and a later repair must not find copies of one.
    for slot in SLOTS {
        device.write(slot.byte_offset(), &IoBuf::zeroed(1), false)?;
    }
    erase_copies(&*device)?;
    device.flush()?;
    write_log_ring(&*device, &geometry)?;

    let alloc = Arc::new(Alloc::format(&geometry));
    let generation = Arc::new(AtomicU64::new(FIRST.0));
    let space = AllocNodes {
        alloc: alloc.clone(),
        generation: generation.clone(),
        marks: Arc::default(),
        changes: None,
    };
    let config =
        TreeConfig { clock: clock.clone(), ..TreeConfig::new(geometry.uuid, geometry.log_secret, 1 << 20) };
    let tree = Tree::create(Arc::new(DeviceNodes(device.clone())), Arc::new(space), config, generation)?;
    let root = InodeCore {
        mode: FileKind::Directory.mode_bits() | 0o755,
        uid: params.uid,
        gid: params.gid,
        nlink: 2,
        parent: Ino::ROOT,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        ..Default::default()
    };
    tree.put(Key::inode(Ino::ROOT), &root.encode())?;
    let (frozen, next) = (tree.freeze(), Ino(Ino::ROOT.0 + 1));
    let first = Member { number: 0, tree, counters: Counters::of(next.0, 1, 0), marks: Arc::default() };
    let cut = Cut {
        root: first.tree.root(),
        root_nodes: first.tree.node_count(),
        first: Arc::new(first),
        tree: frozen,
        forest: None,
        alloc: alloc.freeze(),
        lsn: Lsn(0),
        tail: Lsn(0),
        generation: FIRST,
        next_ino: next,
        inodes: 1,
        stops_records: false,
    };
    let state = cut.state(Epoch(0), true, now.sec, None);
    write_checkpoint(&*device, &geometry, &cut, state, &|_| FULL)?;
    let sb = Superblock { geometry, checkpoint: state };
    write_copies(&*device, &sb, true)?;
    Ok(sb.geometry)
}

/// Bytes of the ring that are written at once in a sparse file. The log has the host allocate the
/// rest when its head approaches it (`backing` of `kedge_log`).
const SPARSE_BYTES: u64 = 64 << 20;

/// Writes the ring with zeros, instead of leaving holes in a sparse file. Otherwise the host would
/// allocate or convert blocks under log writes, and each force would pay for that. In a file with
/// holes only the start of a large ring is written: otherwise an empty image could take a gigabyte
/// of its host. The rest of the ring becomes a hole. A hole reads as zeros, whatever the file held
/// before, such as an image with the same key.
fn write_log_ring(device: &dyn Device, geometry: &Geometry) -> Result<()> {
    const CHUNK: u64 = 256;
    let (start, bytes) = (geometry.log_start.byte_offset(), geometry.log_bytes());
    let sparse = device.geometry().discard_zeroes && device.first_hole(start, bytes).is_some();
    let blocks = if sparse { bytes.min(SPARSE_BYTES) } else { bytes } / BLOCK_SIZE as u64;
    let mut at = 0;
    while at < blocks {
        let mut batch = Vec::new();
        while at < blocks && batch.len() < 16 {
            let count = CHUNK.min(blocks - at);
            let offset = start + at * BLOCK_SIZE as u64;
            batch.push(Io { offset, op: Op::Write { buf: IoBuf::zeroed(count as usize), fua: false } });
            at += count;
        }
        for completion in run_batch(device, batch) {
            completion.result?;
        }
    }
    let written = blocks * BLOCK_SIZE as u64;
    if written < bytes {
        device.discard(start + written, bytes - written)?;
    }
    Ok(())
}
