//! Encryption below the engine: everything except a small header is encrypted with AES-256-XTS.
//!
//! The engine does not know about the encryption. This layer preserves the size and the position of
//! each request, and the cipher maps each 16 bytes to 16 bytes at the same position (see `xts`). So
//! the contract of the crate, including torn writes, is the same above the layer as below.
//!
//! # Buffers
//! A write is encrypted into a separate buffer: the caller may use its bytes during the write, and
//! the completion returns the caller's buffer unchanged. A read is decrypted in the caller's buffer
//! after the read has completed, on the completing thread.
//!
//! # What cannot pass through
//! Zeroing: a range of zeros below would read as noise above, so encrypted zeros are written
//! instead. Discards: they would reveal which sectors are free, so they are not passed on, and the
//! geometry reports no support.

mod header;
mod secret;
mod slot;
mod xts;

pub use header::{AREA as CRYPT_AREA, Header as CryptHeader, SLOTS as CRYPT_SLOTS, has_magic};
pub use secret::{Locked, Secret};
pub use slot::Cost;
pub use xts::KEY as CRYPT_KEY;

use crate::interface::OPTIMAL_IO;
use crate::sizes::Sizes;
use crate::{Completion, CompletionSink, Device, DeviceStats, Geometry, Op, Request, WindowDevice};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use parking_lot::Mutex;
use rand::TryRngCore;
use std::sync::Arc;
use xts::{KEY, UNIT, Xts};
use zeroize::Zeroizing;

/// Returns bytes from the operating system's generator. They do not come from a seed, because they
/// are keys.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rand::rngs::OsRng.try_fill_bytes(&mut bytes);
    filled.map_err(|e| Error::invalid(format!("no random bytes: {e}")))?;
    Ok(bytes)
}

/// Number of bytes at the beginning of a new image that are zeroed: more than is read to recognise
/// what a device contains.
const EMPTY: u64 = 1 << 20;

pub struct CryptDevice {
    below: Arc<dyn Device>,
    xts: Arc<Xts>,
    sizes: Sizes,
    stats: DeviceStats,
}

impl CryptDevice {
    /// Makes a header with a new key, and opens the image. The image begins with zeros, as an empty
    /// device does; the rest reads as noise.
    pub fn format(below: Arc<dyn Device>, secret: &Secret, cost: Cost) -> Result<CryptDevice> {
        let key = Zeroizing::new(random::<KEY>()?);
        CryptHeader::new(&key, secret, cost)?.format(&*below)?;
        let device = CryptDevice::with_key(below, &key)?;
        device.write_zeroes(0, EMPTY.min(device.geometry().size))?;
        Ok(device)
    }

    /// Opens an encrypted image.
    pub fn open(below: Arc<dyn Device>, secret: &Secret) -> Result<CryptDevice> {
        let (_, key) = CryptHeader::read(&*below)?.unlock(secret)?;
        CryptDevice::with_key(below, &key)
    }

    /// Opens an encrypted image with the key that [`CryptHeader::unlock`] returned.
    pub fn with_key(below: Arc<dyn Device>, key: &[u8; KEY]) -> Result<CryptDevice> {
        let name = below.name().to_owned();
        let below: Arc<dyn Device> = Arc::new(WindowDevice::new(below, header::AREA, None, name)?);
        let geometry = Geometry { discard_granularity: 0, discard_zeroes: false, ..below.geometry().clone() };
        let (xts, sizes) = (Arc::new(Xts::new(key)), Sizes::new(geometry));
        Ok(CryptDevice { below, xts, sizes, stats: DeviceStats::default() })
    }

    fn encrypted(&self, offset: u64, buf: &IoBuf) -> IoBuf {
        let mut own = buf.clone();
        self.xts.encrypt(offset / UNIT as u64, own.as_mut_bytes());
        own
    }

    fn pass(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>, apart: bool) {
        let mut below = Vec::with_capacity(batch.len());
        let mut kept = Vec::with_capacity(batch.len());
        for Request { tag, offset, op } in batch {
            let refused = match &op {
                Op::Flush => Ok(()),
                op => self.geometry().check(op.name(), offset, op.len()),
            };
            let (mut caller, mut op) = (None, op);
            self.stats.count(&op);
            let here = match (&refused, &mut op) {
                (Err(e), _) => Some(Err(e.clone())),
                (Ok(()), Op::WriteZeroes { len }) => Some(self.write_zeroes(offset, *len)),
                (Ok(()), Op::Discard { len }) => Some(self.discard(offset, *len)),
                (Ok(()), Op::Write { buf, .. }) => {
                    let own = self.encrypted(offset, buf);
                    caller = Some(std::mem::replace(buf, own));
                    None
                }
                (Ok(()), Op::Read(_) | Op::Flush) => None,
            };
            if let Some(result) = here {
                sink.complete(Completion { tag, op, result });
                continue;
            }
            below.push(Request { tag: kept.len() as u64, offset, op });
            kept.push(Mutex::new(Some(Kept { tag, offset, caller })));
        }
        if below.is_empty() {
            return;
        }
        let sink = Arc::new(Restore { xts: self.xts.clone(), sink, kept });
        if apart { self.below.submit_apart(below, sink) } else { self.below.submit(below, sink) }
    }
}

/// What is needed to turn a completion of the device below into the completion of the caller's
/// request.
struct Kept {
    tag: u64,
    offset: u64,
    /// The caller's buffer, for a write.
    caller: Option<IoBuf>,
}

/// Turns the completions of one batch of the device below into those of the caller's batch.
struct Restore {
    xts: Arc<Xts>,
    sink: Arc<dyn CompletionSink>,
    /// Indexed by the tag of the request to the device below. Only the completion of the request
    /// takes its lock.
    kept: Vec<Mutex<Option<Kept>>>,
}

impl CompletionSink for Restore {
    fn complete(&self, completion: Completion) {
        let Completion { tag, mut op, result } = completion;
        let kept = self.kept[tag as usize].lock().take();
        let Kept { tag, offset, caller } = kept.expect("a request completes once");
        match (&mut op, caller) {
            (Op::Write { buf, .. }, Some(caller)) => *buf = caller,
            (Op::Read(buf), _) if result.is_ok() => {
                self.xts.decrypt(offset / UNIT as u64, buf.as_mut_bytes());
            }
            _ => {}
        }
        self.sink.complete(Completion { tag, op, result });
    }
}

impl Device for CryptDevice {
    crate::delegate!(below: release, room, host_free, first_hole, latency, name);

    fn geometry(&self) -> &Geometry {
        self.sizes.now()
    }

    fn grow(&self, size: u64) -> Result<()> {
        if size > self.geometry().size {
            self.below.grow(size)?;
            self.sizes.set(self.below.geometry().size);
        }
        Ok(())
    }

    fn cut(&self, size: u64) -> Result<()> {
        if size < self.geometry().size {
            self.below.cut(size)?;
            self.sizes.set(self.below.geometry().size);
        }
        Ok(())
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.pass(batch, sink, false);
    }

    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        self.pass(batch, sink, true);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.stats.count_read(buf.len());
        self.below.read(offset, buf)?;
        self.xts.decrypt(offset / UNIT as u64, buf.as_mut_bytes());
        Ok(())
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.stats.count_write(buf.len(), fua);
        self.geometry().check("write", offset, buf.len() as u64)?;
        self.below.write(offset, &self.encrypted(offset, buf), fua)
    }

    fn flush(&self) -> Result<()> {
        self.stats.count_flush();
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("discard", offset, len)?;
        Err(Error::Io { op: "discard", offset, len, errno: libc::EOPNOTSUPP })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.geometry().check("write_zeroes", offset, len)?;
        let mut done = 0;
        while done < len {
            let n = (len - done).min(u64::from(OPTIMAL_IO));
            let zeros = IoBuf::zeroed((n / BLOCK_SIZE as u64) as usize);
            let at = offset + done;
            self.below.write(at, &self.encrypted(at, &zeros), false)?;
            done += n;
        }
        Ok(())
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
}

#[cfg(test)]
#[path = "crypt_tests.rs"]
mod tests;
