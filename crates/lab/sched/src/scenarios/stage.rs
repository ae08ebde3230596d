//! The file system of a scenario, and what all scenarios do at their end.

use crate::disk::Disk;
use crate::run::{Config, Run, explore, run};
use crate::strategy::Plan;
use kedge_base::{JoinHandle, SystemClock, pause, spawn_named};
use kedge_device::MemDevice;
use kedge_device::sim::SimDevice;
use kedge_sim::rig::{self, Setup};
use kedgefs::{FileSystem, MountOptions};
use rand::Rng;
use rand::rngs::SmallRng;
use std::sync::Arc;
use std::time::Duration;

/// The setup for an image that is small enough to be checked thousands of times.
pub fn setup() -> Setup {
    let mount =
        MountOptions { commit: Duration::from_secs(3600), cache_size: 2 << 20, ..MountOptions::default() };
    Setup { image: 16 << 20, log: 1 << 20, mount, ..Setup::default() }
}

/// A file system that is open on the machine, and its device.
pub struct Stage {
    pub device: Arc<SimDevice>,
    pub fs: FileSystem,
}

/// Starts a thread that begins at once, or at a random moment within `span`. If all threads began
/// at once, they would meet only in a few places.
pub fn start<T: Send + 'static>(
    rng: &mut SmallRng,
    name: &str,
    span: Duration,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    let nap = if rng.random() { rng.random_range(Duration::ZERO..span) } else { Duration::ZERO };
    let thread = spawn_named(name, move || {
        pause(nap);
        body()
    });
    thread.map_err(|e| format!("start of {name}: {e}"))
}

pub fn text(what: &str) -> impl Fn(kedgefs::Error) -> String {
    move |e| format!("{what}: {e}")
}

impl Stage {
    /// Opens the image. Must be called by the first thread of the machine. The strategy begins to
    /// choose when the file system is open.
    pub fn open(image: MemDevice, mount: &MountOptions, seed: u64) -> Result<Stage, String> {
        let device = Arc::new(SimDevice::new(image));
        device.stop_recording();
        Stage::on(device, mount, seed)
    }

    pub fn on(device: Arc<SimDevice>, mount: &MountOptions, seed: u64) -> Result<Stage, String> {
        explore(false);
        let disk = Disk::new(device.clone(), seed).map_err(|e| e.to_string())?;
        let clock = Arc::new(SystemClock::default());
        let fs = FileSystem::open(Arc::new(disk), clock, mount.clone()).map_err(text("open"))?;
        explore(true);
        Ok(Stage { device, fs })
    }

    /// Closes the file system and returns its clean image.
    pub fn close(self) -> Result<MemDevice, String> {
        explore(false);
        self.fs.close().map_err(text("close"))?;
        drop(self.fs);
        Ok(self.device.view())
    }
}

/// Runs `body` on a machine, then, outside of the machine, `judge` on the result of `body`.
pub fn play<T: Send + 'static>(
    seed: u64,
    plan: &Plan,
    body: impl FnOnce() -> Result<T, String> + Send + 'static,
    judge: impl FnOnce(T) -> Result<(), String>,
) -> Run {
    let left = Arc::new(parking_lot::Mutex::new(None));
    let kept = left.clone();
    let mut run = run(&Config::new(seed, plan.clone()), move || {
        *kept.lock() = Some(body()?);
        Ok(())
    });
    if run.result.is_ok() {
        let left = left.lock().take().expect("the body has returned it");
        run.result = judge(left);
    }
    run
}

/// Opens an image after a crash, outside of the machine, if fsck has found nothing in it.
pub fn recovered(medium: MemDevice, setup: &Setup) -> Result<FileSystem, String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    device.stop_recording();
    rig::open(&device, &Arc::default(), setup)
}
