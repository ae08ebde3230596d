//! A block device for the command: a loop device whose backing file lies on the recorded mount.
//!
//! A write to the device is a write of the file, and a flush is an fsync of it. The kernel's loop
//! driver has no forced unit access (FUA): the block layer turns an FUA write into a write and a
//! flush. So the recorder cannot detect that a program relies on FUA to order other writes. One
//! kernel thread serves the device in order, so a flush also covers writes that were in flight when
//! it was submitted; a disk promises that for completed writes only.

use crate::error::{RecordError, io_error};
use crate::log::Log;
use kedge_base::{Clock, SystemClock};
use kedge_crash::Call;
use kedge_crash::loops::{self, DEVICE_FILE, Loop};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of bytes that are copied at once.
const PIECE: usize = 1 << 20;
/// The size of a device must be a multiple of this number of bytes.
const UNIT: u64 = 4096;
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Clone)]
pub struct Device {
    pub size: u64,
    /// A file with the first contents of the device. The rest of the device is zero.
    pub from: Option<PathBuf>,
}

/// The device while the command runs.
pub(crate) struct Attached {
    device: Loop,
}

impl Device {
    /// Fails if this process cannot make a device, or not a device with these options.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        if let Some(why) = loops::missing() {
            return Err(RecordError::NoDevice(why));
        }
        if self.size == 0 || !self.size.is_multiple_of(UNIT) {
            return Err(RecordError::NoDevice(format!("its size is no multiple of {UNIT} bytes")));
        }
        Ok(())
    }

    /// Makes the device's backing file, and records that it is one.
    pub(crate) fn make(&self, dir: &Path, log: &Log) -> Result<PathBuf, RecordError> {
        let path = dir.join(DEVICE_FILE);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(io_error("the device's file"))?;
        file.set_len(self.size).map_err(io_error("the device's file"))?;
        if let Some(from) = &self.from {
            let what = format!("{} as the device's content", from.display());
            copy(from, &file, self.size).map_err(io_error(what))?;
        }
        let ino = file.metadata().map_err(io_error("the device's file"))?.ino();
        log.append(&mut log.lock(), 0, 0, Call::Device { ino });
        Ok(path)
    }
}

/// Copies the blocks that are not zero.
fn copy(from: &Path, to: &File, size: u64) -> io::Result<()> {
    let mut from = File::open(from)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let len = from.read(&mut piece)?;
        if len == 0 {
            return Ok(());
        }
        if at + len as u64 > size {
            return Err(io::Error::other(format!("it is larger than the device, {size} bytes")));
        }
        if piece[..len].iter().any(|b| *b != 0) {
            to.write_all_at(&piece[..len], at)?;
        }
        at += len as u64;
    }
}

impl Attached {
    pub fn new(file: &Path) -> Result<Attached, RecordError> {
        Ok(Attached { device: Loop::attach(file).map_err(io_error("the loop device"))? })
    }

    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Detaches the device and waits until its last writes are recorded. Returns `false` if it is
    /// still in use after `wait`.
    pub fn end(mut self, wait: Duration) -> Result<bool, RecordError> {
        self.device.detach().map_err(io_error("the loop device"))?;
        let clock = SystemClock::default();
        while self.device.is_in_use() {
            if clock.monotonic() > wait {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }
}
