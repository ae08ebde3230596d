//! A device that fails by plan. On request it also fails every write of a block that begins with a
//! mark.

use kedge_base::{BlockNo, Clock, IoBuf};
use kedge_device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedge_device::{Completion, CompletionSink, Device, DeviceStats, Geometry, MemDevice, Op, Request};
use kedge_format::Key;
use kedge_format::node::{NODE_SIZE, NodeView};
use kedge_format::superblock::SLOTS;
use kedgefs::*;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub const PAGE: usize = 4096;
pub const MARK: &[u8] = b"nowhere!";
const SIZE: u64 = 64 << 20;

struct Refusing {
    sim: Arc<SimDevice>,
    refuses: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    host: Arc<Host>,
}

/// The state of the host of the image.
#[derive(Default)]
struct Host {
    full: AtomicBool,
    /// Whether the host reports free space nevertheless, because only a quota is used up.
    over_quota: AtomicBool,
    /// Whether a quota is used up after the next write of a superblock slot.
    full_after_slot: AtomicBool,
    /// Whether the flush of a durable write fails, instead of the write.
    fails_in_flush: AtomicBool,
    /// Byte range of the log, for which the host always has space.
    log: Range<u64>,
    on_discard: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Refusing {
    fn check(&self, offset: u64, buf: &IoBuf) -> kedge_base::Result<()> {
        if self.host.full.load(Ordering::SeqCst) && !self.host.log.contains(&offset) {
            let errno = match self.host.over_quota.load(Ordering::SeqCst) {
                true => kedge_base::errno::EDQUOT,
                false => kedge_base::errno::ENOSPC,
            };
            return Err(kedge_base::Error::Io { op: "write", offset, len: buf.len() as u64, errno });
        }
        let marked = buf.as_bytes().chunks_exact(PAGE).any(|block| block.starts_with(MARK));
        if marked && self.refuses.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            let op = if self.host.fails_in_flush.load(Ordering::SeqCst) { "flush" } else { "write" };
            return Err(kedge_base::Error::Io {
                op,
                offset,
                len: buf.len() as u64,
                errno: kedge_base::errno::EIO,
            });
        }
        Ok(())
    }
}

impl Device for Refusing {
    fn geometry(&self) -> &Geometry {
        self.sim.geometry()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let mut good = Vec::new();
        for request in batch {
            match &request.op {
                Op::Write { buf, .. } => match self.check(request.offset, buf) {
                    Ok(()) => good.push(request),
                    Err(e) => sink.complete(Completion { tag: request.tag, op: request.op, result: Err(e) }),
                },
                _ => good.push(request),
            }
        }
        self.sim.submit(good, sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> kedge_base::Result<()> {
        self.sim.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> kedge_base::Result<()> {
        self.check(offset, buf)?;
        self.sim.write(offset, buf, fua)?;
        let slot = SLOTS.iter().any(|slot| slot.byte_offset() == offset);
        if slot && self.host.full_after_slot.swap(false, Ordering::SeqCst) {
            self.host.over_quota.store(true, Ordering::SeqCst);
            self.host.full.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn flush(&self) -> kedge_base::Result<()> {
        self.sim.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> kedge_base::Result<()> {
        if let Some(call) = self.host.on_discard.get() {
            call();
        }
        self.sim.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> kedge_base::Result<()> {
        self.sim.write_zeroes(offset, len)
    }

    fn host_free(&self) -> Option<u64> {
        let free = if self.host.over_quota.load(Ordering::SeqCst) { SIZE } else { 0 };
        self.host.full.load(Ordering::SeqCst).then_some(free)
    }

    fn first_hole(&self, offset: u64, _len: u64) -> Option<u64> {
        let full = self.host.full.load(Ordering::SeqCst);
        (full && !self.host.log.contains(&offset)).then_some(offset)
    }

    fn stats(&self) -> &DeviceStats {
        self.sim.stats()
    }

    fn name(&self) -> &str {
        "failing"
    }
}

/// An image on a device that fails on request.
pub struct Failing {
    pub sim: Arc<SimDevice>,
    pub clock: Arc<ManualClock>,
    refuses: Arc<AtomicBool>,
    /// Number of writes that failed because of the mark.
    pub refused: Arc<AtomicU64>,
    host: Arc<Host>,
}

impl Failing {
    pub fn new() -> Failing {
        Failing::with(&FormatOptions::default())
    }

    pub fn with(options: &FormatOptions) -> Failing {
        let mem = Arc::new(MemDevice::new(SIZE));
        FileSystem::format(mem.clone(), Arc::new(ManualClock::default()), options).unwrap();
        Failing::on(mem.fork())
    }

    fn on(mem: MemDevice) -> Failing {
        let geometry = kedge_store::read_superblock(&mem).unwrap().0.geometry;
        let log = geometry.log_start.byte_offset();
        let host = Host { log: log..log + geometry.log_bytes(), ..Host::default() };
        let sim = Arc::new(SimDevice::new(mem));
        sim.stop_recording();
        let (clock, refuses, refused) = Default::default();
        Failing { sim, clock, refuses, refused, host: Arc::new(host) }
    }

    /// Another device with the same contents, and without faults.
    pub fn fork(&self) -> Failing {
        Failing::on(self.sim.view())
    }

    pub fn open_with(&self, options: MountOptions) -> FileSystem {
        self.open_by(self.clock.clone(), options)
    }

    pub fn open_by(&self, clock: Arc<dyn Clock>, options: MountOptions) -> FileSystem {
        let (sim, host) = (self.sim.clone(), self.host.clone());
        let device = Refusing { sim, refuses: self.refuses.clone(), refused: self.refused.clone(), host };
        FileSystem::open(Arc::new(device), clock, options).unwrap()
    }

    /// Opens the file system with a commit interval of an hour, so that no background work
    /// disturbs.
    pub fn open(&self) -> FileSystem {
        self.open_with(MountOptions { commit: Duration::from_secs(3600), ..Default::default() })
    }

    /// Options with memory for 512 pages, of which 256 may be dirty.
    pub fn little_memory() -> MountOptions {
        MountOptions { commit: Duration::from_secs(3600), cache_size: 1 << 20, ..Default::default() }
    }

    pub fn create(&self, fs: &FileSystem, name: &[u8]) -> Ino {
        fs.create(Ino::ROOT, name, 0o644, Owner::default()).unwrap().ino
    }

    /// Makes a file of `0` bytes, durable and written in place.
    pub fn file(&self, fs: &FileSystem, name: &[u8], pages: usize) -> Ino {
        let ino = self.create(fs, name);
        fs.write(ino, 0, &vec![b'0'; pages * PAGE]).unwrap();
        fs.seek(ino, 0, SeekKind::Data).unwrap();
        fs.fsync(ino, false).unwrap();
        ino
    }

    pub fn refuse_marked(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::SeqCst);
    }

    /// The durable write of a marked block fails in its flush.
    pub fn fail_marked_in_flush(&self) {
        self.host.fails_in_flush.store(true, Ordering::SeqCst);
        self.refuse_marked(true);
    }

    /// While `full`, the host of the image has space only for the log.
    pub fn host_full(&self, full: bool) {
        self.host.full.store(full, Ordering::SeqCst);
    }

    /// While `used_up`, the host refuses writes as if it were full, and reports free space.
    pub fn quota_used_up(&self, used_up: bool) {
        self.host.over_quota.store(used_up, Ordering::SeqCst);
        self.host_full(used_up);
    }

    /// [`Failing::quota_used_up`] after the next checkpoint.
    pub fn quota_used_up_after_checkpoint(&self) {
        self.host.full_after_slot.store(true, Ordering::SeqCst);
    }

    /// The contents after a power failure that loses everything not durable.
    pub fn durable_copy(&self) -> Arc<MemDevice> {
        Arc::new(self.sim.crash_as(Choice::None))
    }

    /// Sets a function that is called at each discard. May be set once.
    pub fn on_discard(&self, call: impl Fn() + Send + Sync + 'static) {
        assert!(self.host.on_discard.set(Box::new(call)).is_ok());
    }

    fn superblock(&self) -> kedge_format::superblock::Superblock {
        kedge_store::read_superblock(&self.sim.view()).unwrap().0
    }

    /// A fault plan for requests outside of the log: file data, and the writes of checkpoints.
    pub fn data(&self) -> FaultPlan {
        let start = self.superblock().geometry.data_start.0 * PAGE as u64;
        FaultPlan::new(1).only_in(start..SIZE)
    }

    /// A fault plan in which the leaf with this item cannot be read. The image is closed, or a
    /// checkpoint was just written.
    pub fn unreadable(&self, key: Key) -> FaultPlan {
        let (image, geometry) = (self.sim.view(), self.superblock().geometry);
        let bytes = image.bytes(0, SIZE as usize);
        let nodes = (0..).zip((0..=bytes.len() - NODE_SIZE).step_by(PAGE));
        // Of several versions of the leaf the last one is in use.
        let leaf = nodes
            .filter_map(|(block, place)| {
                let node = &bytes[place..place + NODE_SIZE];
                let generation = NodeView::trusted(node).generation();
                let leaf = NodeView::check(node, &geometry.uuid, BlockNo(block), generation, 0).ok()?;
                leaf.search(&key).is_ok().then_some((generation, place as u64))
            })
            .max();
        let (_, place) = leaf.expect("a leaf has the item");
        FaultPlan::new(1).bad_range(OpKind::Read, place..place + NODE_SIZE as u64, kedge_base::errno::EIO)
    }

    pub fn losses(&self) -> Option<u64> {
        self.superblock().checkpoint.losses.map(|losses| losses.files)
    }

    pub fn is_clean(&self) -> bool {
        self.superblock().checkpoint.clean
    }

    /// The contents of a file after a power failure that loses everything not durable.
    pub fn durable(&self, ino: Ino) -> Vec<u8> {
        let fs = self.after_power_loss();
        let size = fs.getattr(ino).unwrap().size;
        let mut bytes = vec![0; size as usize];
        assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
        bytes
    }

    pub fn is_durable(&self, name: &[u8], bytes: &[u8]) -> bool {
        let fs = self.after_power_loss();
        fs.lookup(Ino::ROOT, name).is_ok_and(|attr| {
            let mut found = vec![0; attr.size as usize];
            fs.read(attr.ino, 0, &mut found).is_ok_and(|n| n == found.len()) && found == bytes
        })
    }

    pub fn after_power_loss(&self) -> FileSystem {
        let medium = Arc::new(self.sim.crash_as(Choice::None));
        let options = MountOptions { read_only: true, ..Default::default() };
        FileSystem::open(medium, self.clock.clone(), options).unwrap()
    }

    /// The value of a counter of file data.
    pub fn stat(&self, fs: &FileSystem, name: &str) -> u64 {
        self.value(fs, &["data", name])
    }

    pub fn value(&self, fs: &FileSystem, path: &[&str]) -> u64 {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        path.iter().fold(&stats, |value, name| &value[name]).as_u64().unwrap()
    }
}
