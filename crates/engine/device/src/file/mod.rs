//! A file or a block device.
//!
//! The synchronous interface makes its system calls in the calling thread, which is the shortest
//! path for a log write. Batches go through io_uring ([`ring`]) or, if the kernel refuses io_uring
//! (seccomp, old kernels), through a few threads. Either is started with the first batch, so a
//! program may open an image and daemonise afterwards.
//!
//! # Crash argument
//! The kernel provides durability. A flush is `fdatasync`. A FUA write has RWF_DSYNC, or is
//! followed by `fdatasync`, as each synchronous FUA write to a block device and each one through
//! the page cache is. Either call returns only when the device has confirmed durability. This
//! module buffers nothing. The kernel may report lost bytes to one flush only, so the first failed
//! `fdatasync` is final ([`crate::flushes`]). A failed RWF_DSYNC write of direct IO has lost no
//! bytes but its own, except where the disk lost its cache: the caller decides
//! (docs/CRASH_MODEL.md, "When the device fails").

mod open;
mod queue;
mod raw;
#[cfg(target_os = "linux")]
mod ring;
mod sys;

pub use open::OpenOptions;
pub(crate) use open::{Part, is_unlocked};

use crate::sizes::Sizes;
use crate::{Completion, CompletionSink, Device, DeviceStats, Geometry, Request};
use kedge_base::JoinHandle;
use kedge_base::{Error, IoBuf, Result, spawn_named};
use queue::{Job, Queue};
use raw::RawFile;
use rustix::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
#[cfg(target_os = "linux")]
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};

/// Number of threads that serve batches where there is no io_uring.
const POOL_THREADS: usize = 4;

pub struct FileDevice {
    file: Arc<RawFile>,
    sizes: Sizes,
    stats: DeviceStats,
    io_uring: bool,
    /// The threads that serve batches, started at the first batch. `None` if no thread could be
    /// started; then the submitting threads do the work.
    engine: OnceLock<Option<Engine>>,
}

/// The threads that serve [`Device::submit`].
struct Engine {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    ring: bool,
}

impl FileDevice {
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Arc<FileDevice>> {
        Ok(FileDevice::new(open::open(path.as_ref(), options, None)?, options))
    }

    /// Uses a file that is open for reading and writing, with all that [`FileDevice::open`] does.
    /// With `size`, the file is extended to that number of bytes and the device has that size, as
    /// by [`FileDevice::create`]. `name` is the file's name in errors, and the name by which a
    /// block device is claimed. Direct IO is set for all users of the open file.
    pub fn on(
        file: OwnedFd,
        name: impl AsRef<Path>,
        size: Option<u64>,
        options: OpenOptions,
    ) -> Result<Arc<FileDevice>> {
        Ok(FileDevice::new(open::on(file, name.as_ref(), size, options, None)?, options))
    }

    /// Does what [`FileDevice::on`] does, but locks only a part of the file.
    pub(crate) fn on_part(
        file: OwnedFd,
        name: &Path,
        part: Part,
        options: OpenOptions,
    ) -> Result<Arc<FileDevice>> {
        Ok(FileDevice::new(open::on(file, name, None, options, Some(part))?, options))
    }

    /// Does what [`FileDevice::open`] does, but locks only a part of the file. The device is the
    /// whole file; the caller must use only the part.
    pub(crate) fn open_part(path: &Path, part: Part, options: OpenOptions) -> Result<Arc<FileDevice>> {
        Ok(FileDevice::new(open::open(path, options, Some(part))?, options))
    }

    /// Creates a sparse image file of `size` bytes, rounded down to whole blocks, or opens an
    /// existing file and extends it to `size`. The device has `size` bytes even if the file is
    /// larger. Existing contents are kept.
    pub fn create(path: impl AsRef<Path>, size: u64, options: OpenOptions) -> Result<Arc<FileDevice>> {
        Ok(FileDevice::new(open::create(path.as_ref(), size, options)?, options))
    }

    fn new((file, geometry): (RawFile, Geometry), options: OpenOptions) -> Arc<FileDevice> {
        Arc::new(FileDevice {
            file: Arc::new(file),
            sizes: Sizes::new(geometry),
            stats: DeviceStats::default(),
            io_uring: options.io_uring,
            engine: OnceLock::new(),
        })
    }

    /// Returns whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.file.direct
    }

    /// Returns whether batches go through io_uring.
    pub fn uses_io_uring(&self) -> bool {
        self.engine().is_some_and(|engine| engine.ring)
    }

    /// Queues a batch. With `apart`, its first request and earlier requests go to the kernel in
    /// different calls.
    fn submit_jobs(&self, batch: Vec<Request>, sink: &Arc<dyn CompletionSink>, apart: bool) {
        let mut jobs = Vec::with_capacity(batch.len());
        for request in batch {
            self.stats.count(&request.op);
            match self.geometry().check_request(&request) {
                Ok(()) => {
                    let apart = apart && jobs.is_empty();
                    jobs.push(Job { request, sink: sink.clone(), apart });
                }
                Err(e) => sink.complete(Completion { tag: request.tag, op: request.op, result: Err(e) }),
            }
        }
        if jobs.is_empty() {
            return;
        }
        let Some(engine) = self.engine() else {
            jobs.into_iter().for_each(|job| job.perform(&self.file));
            return;
        };
        // `push` fails only after a thread of the engine has died: see `pool` and `ring::serve`.
        if let Err(jobs) = engine.queue.push(jobs) {
            jobs.into_iter().for_each(|job| job.complete(Err(Error::OutcomeUnknown)));
        }
    }

    fn engine(&self) -> Option<&Engine> {
        self.engine
            .get_or_init(|| match Engine::start(&self.file, self.io_uring) {
                Ok(engine) => Some(engine),
                Err(e) => {
                    tracing::warn!(device = %self.file.name, "no threads for batches, the callers do them: {e}");
                    None
                }
            })
            .as_ref()
    }
}

impl Engine {
    fn start(file: &Arc<RawFile>, io_uring: bool) -> std::io::Result<Engine> {
        if io_uring && cfg!(target_os = "linux") {
            match Engine::start_ring(file) {
                Ok(engine) => return Ok(engine),
                Err(e) => {
                    tracing::warn!(device = %file.name, "no io_uring, batches go through threads: {e}");
                }
            }
        }
        let mut engine = Engine { queue: Arc::new(Queue::new()?), threads: Vec::new(), ring: false };
        for i in 0..POOL_THREADS {
            let (file, queue) = (file.clone(), engine.queue.clone());
            // On failure the engine is dropped, which ends the threads that have started.
            engine.threads.push(spawn_named(&format!("kedge-io-{i}"), move || pool(&file, &queue))?);
        }
        Ok(engine)
    }

    #[cfg(not(target_os = "linux"))]
    fn start_ring(_: &Arc<RawFile>) -> std::io::Result<Engine> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    #[cfg(target_os = "linux")]
    fn start_ring(file: &Arc<RawFile>) -> std::io::Result<Engine> {
        let queue = Arc::new(Queue::new()?);
        let (ready, is_ready) = mpsc::channel();
        let body = {
            let (file, queue) = (file.clone(), queue.clone());
            move || ring::serve(file, queue, ready)
        };
        let engine = Engine { threads: vec![spawn_named("kedge-ring", body)?], queue, ring: true };
        is_ready.recv().map_err(std::io::Error::other)??;
        Ok(engine)
    }
}

/// The body of a pool thread.
fn pool(file: &RawFile, queue: &Queue) {
    Queue::serve_here();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        while let Some(job) = queue.next() {
            job.perform(file);
        }
    }));
    if let Err(panic) = outcome {
        // A completion panicked. Each panic would end a thread, and with no thread left requests
        // would wait forever without an error. So all queued requests fail now.
        queue.abandon().into_iter().for_each(|job| job.complete(Err(Error::OutcomeUnknown)));
        resume_unwind(panic);
    }
}

impl Drop for Engine {
    /// Completes every submitted request before the file is closed and its lock released.
    fn drop(&mut self) {
        self.queue.close();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A completion may drop the last reference to the device, on a thread of this engine.
            // That thread cannot join itself; it ends by itself.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a device thread panicked");
            }
        }
    }
}

impl Device for FileDevice {
    crate::delegate!(file: release, host_free, first_hole);

    fn geometry(&self) -> &Geometry {
        self.sizes.now()
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.submit_jobs(batch, &sink, false);
    }

    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.submit_jobs(batch, &sink, true);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.stats.count_read(buf.len());
        self.geometry().check("read", offset, buf.len() as u64)?;
        self.file.read(offset, buf.as_mut_bytes())
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.stats.count_write(buf.len(), fua);
        self.geometry().check("write", offset, buf.len() as u64)?;
        self.file.write(offset, buf.as_bytes(), fua)
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        self.file.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("discard", offset, len)?;
        self.file.discard(offset, len)
    }

    /// On a file this leaves space that is reserved but not written, and the first durable write to
    /// each part of that space costs about twice as much as later ones. A range that will be
    /// overwritten durably many times should be written with zeros once instead.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("write_zeroes", offset, len)?;
        self.file.write_zeroes(offset, len)
    }

    fn grow(&self, size: u64) -> Result<()> {
        if size <= self.geometry().size {
            return Ok(());
        }
        let has = self.file.extend(size)?;
        if has < size {
            return Err(Error::invalid(format!("{} has {has} bytes, {size} are wanted", self.file.name)));
        }
        self.sizes.set(if self.file.block_device { has } else { size });
        Ok(())
    }

    fn cut(&self, size: u64) -> Result<()> {
        if self.file.block_device || size >= self.geometry().size {
            return Ok(());
        }
        // Refuse requests beyond the new end from now on, so that none extends the file again.
        self.sizes.set(size);
        self.file.truncate(size)
    }

    fn room(&self) -> Result<u64> {
        self.file.len()
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn name(&self) -> &str {
        &self.file.name
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
