//! A window of a larger device: an image inside a file that also contains other things.
//!
//! The window adds its offset to each request and passes the request on with the caller's buffer
//! and sink; this is possible because completions carry no offset. So a window needs no copy and no
//! thread, and the device below gives all guarantees about durability.
//!
//! # Invariant
//! No request accesses a byte outside the window. The range is checked here, before the offset is
//! added, because the device below would accept the request.
//!
//! Errors of asynchronous requests contain the offset in the larger device, where the bad sector
//! is.

use crate::file::Part;
use crate::location::WindowUri;
use crate::sizes::Sizes;
use crate::{Completion, CompletionSink, Device, FileDevice, Geometry, OpenOptions, Request};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use rustix::fd::OwnedFd;
use std::sync::Arc;

pub struct WindowDevice {
    below: Arc<dyn Device>,
    offset: u64,
    /// Whether the window extends to the end of the device below, and grows with it.
    open_ended: bool,
    sizes: Sizes,
    name: String,
}

impl From<&WindowUri> for Part {
    fn from(uri: &WindowUri) -> Part {
        Part { offset: uri.offset, len: uri.size }
    }
}

impl WindowDevice {
    /// Opens a part of a file, and locks only that part.
    pub fn open(uri: &WindowUri, options: OpenOptions) -> Result<WindowDevice> {
        let below = FileDevice::open_part(&uri.path, uri.into(), options)?;
        WindowDevice::new(below, uri.offset, uri.size, uri.to_string())
    }

    /// Uses a part of a file that is open for reading and writing, and locks only that part.
    pub(crate) fn on(file: OwnedFd, uri: &WindowUri, options: OpenOptions) -> Result<WindowDevice> {
        let below = FileDevice::on_part(file, &uri.path, uri.into(), options)?;
        WindowDevice::new(below, uri.offset, uri.size, uri.to_string())
    }

    /// Makes a window of `size` bytes, or up to the end of the device below. Both numbers must be
    /// multiples of the block size.
    pub fn new(below: Arc<dyn Device>, offset: u64, size: Option<u64>, name: String) -> Result<WindowDevice> {
        let there = below.geometry().size;
        for (what, bytes) in [("offset", offset), ("sizelimit", size.unwrap_or(0))] {
            if !bytes.is_multiple_of(BLOCK_SIZE as u64) {
                return Err(Error::invalid(format!("{name}: {what}={bytes} is no multiple of {BLOCK_SIZE}")));
            }
        }
        let rest = there.checked_sub(offset).filter(|rest| *rest > 0).ok_or_else(|| {
            Error::invalid(format!(
                "{name}: offset={offset} is not below the size of the file, {there} bytes"
            ))
        })?;
        let open_ended = size.is_none();
        let size = size.unwrap_or(rest);
        if size > rest {
            let why = format!("sizelimit={size} is more than the {rest} bytes that follow offset={offset}");
            return Err(Error::invalid(format!("{name}: {why}")));
        }
        let sizes = Sizes::new(Geometry { size, ..below.geometry().clone() });
        Ok(WindowDevice { below, offset, open_ended, sizes, name })
    }

    /// Returns the requests for the device below. Requests outside the window complete here, with
    /// an error.
    fn shifted(&self, batch: Vec<Request>, sink: &dyn CompletionSink) -> Vec<Request> {
        let mut inside = Vec::with_capacity(batch.len());
        for mut request in batch {
            match self.geometry().check_request(&request) {
                Ok(()) => {
                    request.offset = request.offset.wrapping_add(self.offset);
                    inside.push(request);
                }
                Err(e) => sink.complete(Completion { tag: request.tag, op: request.op, result: Err(e) }),
            }
        }
        inside
    }

    /// Checks a range of the window, and returns its offset in the device below.
    fn place(&self, op: &'static str, offset: u64, len: u64) -> Result<u64> {
        self.geometry().check(op, offset, len)?;
        Ok(self.offset + offset)
    }
}

impl Device for WindowDevice {
    crate::delegate!(below: flush, release, host_free, stats, latency);

    fn geometry(&self) -> &Geometry {
        self.sizes.now()
    }

    fn grow(&self, size: u64) -> Result<()> {
        let has = self.geometry().size;
        if size <= has {
            return Ok(());
        }
        let end = self
            .offset
            .checked_add(size)
            .filter(|_| self.open_ended)
            .ok_or_else(|| Error::invalid(format!("{} has {has} bytes, {size} are wanted", self.name)))?;
        self.below.grow(end)?;
        self.sizes.set(self.below.geometry().size - self.offset);
        Ok(())
    }

    fn cut(&self, size: u64) -> Result<()> {
        if !self.open_ended || size >= self.geometry().size {
            return Ok(());
        }
        self.below.cut(self.offset + size)?;
        self.sizes.set(self.below.geometry().size - self.offset);
        Ok(())
    }

    fn room(&self) -> Result<u64> {
        match self.open_ended {
            true => Ok(self.below.room()?.saturating_sub(self.offset)),
            false => Ok(self.geometry().size),
        }
    }

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let inside = self.shifted(batch, &*sink);
        if !inside.is_empty() {
            self.below.submit(inside, sink);
        }
    }

    fn submit_apart(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let inside = self.shifted(batch, &*sink);
        if !inside.is_empty() {
            self.below.submit_apart(inside, sink);
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.below.read(self.place("read", offset, buf.len() as u64)?, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.below.write(self.place("write", offset, buf.len() as u64)?, buf, fua)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.below.discard(self.place("discard", offset, len)?, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.below.write_zeroes(self.place("write_zeroes", offset, len)?, len)
    }

    fn first_hole(&self, offset: u64, len: u64) -> Option<u64> {
        let at = self.place("first_hole", offset, len).ok()?;
        // The device below may report a hole that begins before the range.
        self.below.first_hole(at, len).map(|hole| hole.saturating_sub(self.offset))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
