//! A simulated block device for the log's tests and its benchmark.
//!
//! `medium` has the bytes that survive a crash. A plain write stays in `pending` until a flush; a
//! FUA write is on the medium when it returns. A crash freezes the medium at one point in time. Any
//! subset of the sectors of each write then in flight arrives, and later requests fail.
#![allow(dead_code, clippy::disallowed_methods)]

use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use kedge_device::{Completion, CompletionSink, Device, DeviceStats, FuaKind, Geometry, Op, Request};
use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

pub const SECTOR: usize = 512;

struct Inner {
    medium: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    /// FUA writes in flight, each with its id, offset and bytes.
    under_way: Vec<(u64, usize, Vec<u8>)>,
    writes: u64,
    flushes: u64,
    in_flight_max: usize,
    fail_at: Option<u64>,
    fail_flush: Option<i32>,
    crash_at: Option<u64>,
    held: Option<u64>,
    frozen: bool,
    rng: StdRng,
    host: Option<Host>,
}

/// The file system below a sparse image.
pub struct Host {
    /// Whether the host has allocated each block of the device.
    pub backed: Vec<bool>,
    /// Number of free blocks on the host.
    pub room: usize,
}

impl Host {
    /// Allocates all blocks of a write, or none if the host has too few. Returns whether it did.
    fn take(&mut self, offset: u64, len: usize) -> bool {
        let first = offset as usize / BLOCK_SIZE;
        let blocks = &mut self.backed[first..first + len / BLOCK_SIZE];
        let new = blocks.iter().filter(|backed| !**backed).count();
        if new > self.room {
            return false;
        }
        self.room -= new;
        blocks.fill(true);
        true
    }
}

pub struct MemDevice {
    geometry: Geometry,
    stats: DeviceStats,
    inner: Mutex<Inner>,
    released: Condvar,
    latency: Duration,
}

impl MemDevice {
    pub fn new(blocks: usize, seed: u64) -> Arc<MemDevice> {
        MemDevice::with_latency(blocks, seed, Duration::ZERO)
    }

    pub fn with_latency(blocks: usize, seed: u64, latency: Duration) -> Arc<MemDevice> {
        MemDevice::from_image(vec![0; blocks * BLOCK_SIZE], seed, latency)
    }

    pub fn from_image(medium: Vec<u8>, seed: u64, latency: Duration) -> Arc<MemDevice> {
        let geometry = Geometry {
            size: medium.len() as u64,
            optimal_io: 1 << 20,
            discard_granularity: 0,
            discard_zeroes: false,
            fua: FuaKind::Native,
        };
        let inner = Inner {
            medium,
            pending: Vec::new(),
            under_way: Vec::new(),
            writes: 0,
            flushes: 0,
            in_flight_max: 0,
            fail_at: None,
            fail_flush: None,
            crash_at: None,
            held: None,
            frozen: false,
            rng: StdRng::seed_from_u64(seed),
            host: None,
        };
        Arc::new(MemDevice {
            geometry,
            stats: DeviceStats::default(),
            inner: Mutex::new(inner),
            released: Condvar::new(),
            latency,
        })
    }

    /// Makes the device a sparse file on `host`.
    pub fn put_on(&self, host: Host) {
        self.inner.lock().host = Some(host);
    }

    pub fn host<R>(&self, look: impl FnOnce(&mut Host) -> R) -> R {
        look(self.inner.lock().host.as_mut().expect("it is on one"))
    }

    /// Makes the `n`-th write from now on fail (0 is the next write). Nothing of it reaches the
    /// medium.
    pub fn fail_write(&self, n: u64) {
        let mut inner = self.inner.lock();
        inner.fail_at = Some(inner.writes + n);
    }

    /// Makes the next flush fail with `errno`. As in Linux, the failed flush drops what it should
    /// have made durable, and the flush after it succeeds.
    pub fn fail_flush(&self, errno: i32) {
        self.inner.lock().fail_flush = Some(errno);
    }

    /// Cuts the power during the `n`-th write from now on.
    pub fn crash_in_write(&self, n: u64) {
        let mut inner = self.inner.lock();
        inner.crash_at = Some(inner.writes + n);
    }

    /// Blocks the `n`-th write from now on until [`MemDevice::release`].
    pub fn hold_write(&self, n: u64) {
        let mut inner = self.inner.lock();
        inner.held = Some(inner.writes + n);
    }

    pub fn release(&self) {
        self.inner.lock().held = None;
        self.released.notify_all();
    }

    /// Cuts the power now.
    pub fn crash(&self) {
        self.inner.lock().freeze();
    }

    /// Returns the image that a mount after the crash finds; without a crash, the present medium.
    pub fn image(&self) -> Vec<u8> {
        self.inner.lock().medium.clone()
    }

    pub fn writes(&self) -> u64 {
        self.inner.lock().writes
    }

    pub fn flushes(&self) -> u64 {
        self.inner.lock().flushes
    }

    /// Returns the largest number of writes that were ever in flight at once.
    pub fn in_flight_max(&self) -> usize {
        self.inner.lock().in_flight_max
    }
}

fn eio(op: &'static str, offset: u64, len: u64) -> Error {
    Error::Io { op, offset, len, errno: kedge_base::errno::EIO }
}

impl Inner {
    fn freeze(&mut self) {
        if self.frozen {
            return;
        }
        self.frozen = true;
        let pending = std::mem::take(&mut self.pending);
        let under_way = std::mem::take(&mut self.under_way);
        for (offset, bytes) in pending.into_iter().chain(under_way.into_iter().map(|(_, o, b)| (o, b))) {
            // All sectors arrive, or none, or a random subset.
            let keep = self.rng.random_range(0..4);
            for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                if keep == 0 || keep > 1 && self.rng.random_bool(0.5) {
                    let at = offset + i * SECTOR;
                    self.medium[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
    }

    fn apply_pending(&mut self) {
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            self.medium[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

impl Device for MemDevice {
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Recovery reads in batches; the log itself writes synchronously.
    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        for Request { tag, offset, mut op } in batch {
            let result = match &mut op {
                Op::Read(buf) => self.read(offset, buf),
                other => unreachable!("the log submits no {}", other.name()),
            };
            sink.complete(Completion { tag, op, result });
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        let inner = self.inner.lock();
        let offset = offset as usize;
        let len = buf.len();
        buf.as_mut_bytes().copy_from_slice(&inner.medium[offset..offset + len]);
        for (at, bytes) in &inner.pending {
            let (from, to) = ((*at).max(offset), (at + bytes.len()).min(offset + len));
            if from < to {
                buf.as_mut_bytes()[from - offset..to - offset].copy_from_slice(&bytes[from - at..to - at]);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        assert!(offset.is_multiple_of(BLOCK_SIZE as u64) && offset + buf.len() as u64 <= self.geometry.size);
        let mut inner = self.inner.lock();
        let id = inner.writes;
        inner.writes += 1;
        if inner.frozen || inner.fail_at == Some(id) {
            return Err(eio("write", offset, buf.len() as u64));
        }
        if inner.host.as_mut().is_some_and(|host| !host.take(offset, buf.len())) {
            return Err(Error::Io {
                op: "write",
                offset,
                len: buf.len() as u64,
                errno: kedge_base::errno::ENOSPC,
            });
        }
        if !fua {
            inner.pending.push((offset as usize, buf.as_bytes().to_vec()));
            return Ok(());
        }
        inner.under_way.push((id, offset as usize, buf.as_bytes().to_vec()));
        inner.in_flight_max = inner.in_flight_max.max(inner.under_way.len());
        if inner.crash_at == Some(id) {
            inner.freeze();
        }
        drop(inner);
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
        }
        let mut inner = self.inner.lock();
        while inner.held == Some(id) {
            self.released.wait(&mut inner);
        }
        if inner.frozen {
            return Err(eio("write", offset, buf.len() as u64));
        }
        let at = inner.under_way.iter().position(|w| w.0 == id).expect("under way until it is done");
        let (_, offset, bytes) = inner.under_way.swap_remove(at);
        inner.medium[offset..offset + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.flushes += 1;
        if inner.frozen {
            return Err(eio("flush", 0, 0));
        }
        if let Some(errno) = inner.fail_flush.take() {
            inner.pending.clear();
            return Err(Error::Io { op: "flush", offset: 0, len: 0, errno });
        }
        inner.apply_pending();
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("the log discards nothing");
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Result<()> {
        unreachable!("the log zeroes nothing");
    }

    fn first_hole(&self, offset: u64, len: u64) -> Option<u64> {
        let (first, blocks) = (offset as usize / BLOCK_SIZE, len as usize / BLOCK_SIZE);
        let inner = self.inner.lock();
        let hole = inner.host.as_ref()?.backed[first..first + blocks].iter().position(|backed| !backed)?;
        Some(((first + hole) * BLOCK_SIZE) as u64)
    }

    fn name(&self) -> &str {
        "memory"
    }
}

/// A barrier that counts its calls and fails on request.
#[derive(Default)]
pub struct CountingBarrier {
    pub calls: std::sync::atomic::AtomicU64,
    /// Whether data waits for a flush, which [`kedge_log::Barrier::flush_after`] ends.
    pub waits: std::sync::atomic::AtomicBool,
    pub flushes_after: std::sync::atomic::AtomicU64,
    pub device: std::sync::OnceLock<Arc<MemDevice>>,
    pub fail: std::sync::atomic::AtomicBool,
    pub panic: std::sync::atomic::AtomicBool,
}

impl kedge_log::Barrier for CountingBarrier {
    fn barrier(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        self.calls.fetch_add(1, Relaxed);
        assert!(!self.panic.load(Relaxed), "the barrier panics");
        self.waits.store(false, Relaxed);
        if self.fail.load(Relaxed) { Err(eio("flush", 0, 0)) } else { Ok(()) }
    }

    fn settle(&self) -> Result<bool> {
        use std::sync::atomic::Ordering::Relaxed;
        self.calls.fetch_add(1, Relaxed);
        Ok(self.waits.load(Relaxed))
    }

    fn flush_after(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        if self.fail.load(Relaxed) {
            return Err(eio("flush", 0, 0));
        }
        self.waits.store(false, Relaxed);
        self.flushes_after.fetch_add(1, Relaxed);
        self.device.get().map_or(Ok(()), |device| device.flush())
    }
}

pub const RING_START: u64 = 3;

/// A log on `device`, whose ring is the whole device except the first [`RING_START`] blocks.
pub struct Setup {
    pub device: Arc<MemDevice>,
    pub barrier: Arc<CountingBarrier>,
    pub key: kedge_format::logwrite::LogKey,
    pub epoch: kedge_base::Epoch,
    pub ring_blocks: u64,
    pub in_flight_max: usize,
    pub staged_bytes_max: u64,
    pub use_bytes_max: u64,
}

impl Setup {
    pub fn new(device: Arc<MemDevice>) -> Setup {
        let ring_blocks = device.geometry.size / BLOCK_SIZE as u64 - RING_START;
        Setup {
            device,
            barrier: Arc::default(),
            key: kedge_format::logwrite::LogKey {
                uuid: uuid::Uuid::from_u128(7),
                secret: kedge_format::logwrite::LogSecret([9; 16]),
            },
            epoch: kedge_base::Epoch(1),
            ring_blocks,
            in_flight_max: 4,
            staged_bytes_max: 8 << 20,
            use_bytes_max: u64::MAX,
        }
    }

    pub fn open(&self, head: kedge_base::Lsn, tail: kedge_base::Lsn) -> Arc<kedge_log::Log> {
        self.open_with(self.barrier.clone(), head, tail)
    }

    pub fn open_with(
        &self,
        barrier: Arc<dyn kedge_log::Barrier>,
        head: kedge_base::Lsn,
        tail: kedge_base::Lsn,
    ) -> Arc<kedge_log::Log> {
        kedge_log::Log::new(
            self.device.clone(),
            Arc::new(kedge_base::SystemClock::default()),
            barrier,
            kedge_log::LogConfig {
                key: self.key,
                epoch: self.epoch,
                ring_start: kedge_base::BlockNo(RING_START),
                ring_blocks: self.ring_blocks,
                use_bytes_max: self.use_bytes_max,
                head,
                tail,
                in_flight_max: self.in_flight_max,
                staged_bytes_max: self.staged_bytes_max,
            },
        )
    }

    /// Scans an image. Returns the records with their positions.
    pub fn scan(&self, image: Vec<u8>, from: kedge_base::Lsn) -> Result<(kedge_log::ScanEnd, Vec<Found>)> {
        let device = MemDevice::from_image(image, 0, Duration::ZERO);
        self.scan_device(&*device, from)
    }

    pub fn scan_device(
        &self,
        device: &dyn Device,
        from: kedge_base::Lsn,
    ) -> Result<(kedge_log::ScanEnd, Vec<Found>)> {
        let mut found = Vec::new();
        let end = kedge_log::scan(device, self.scan_config(from), &mut |lsn, record| {
            found.push((lsn, record.to_vec()));
            Ok(())
        })?;
        Ok((end, found))
    }

    pub fn scan_again(
        &self,
        device: &dyn Device,
        from: kedge_base::Lsn,
        end: kedge_base::Lsn,
        visit: &mut dyn FnMut(kedge_log::RecordLsn, &[u8]) -> Result<()>,
    ) -> Result<()> {
        kedge_log::scan_again(device, self.scan_config(from), end, visit)
    }

    pub fn scan_config(&self, from: kedge_base::Lsn) -> kedge_log::ScanConfig {
        kedge_log::ScanConfig {
            key: self.key,
            epoch: self.epoch,
            ring_start: kedge_base::BlockNo(RING_START),
            ring_blocks: self.ring_blocks,
            from,
            slot_tail: from,
        }
    }
}

pub type Found = (kedge_log::RecordLsn, Vec<u8>);
