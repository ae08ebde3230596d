//! The memory of one ring entry, which the kernel and this process use alternately.
//!
//! The kernel owns an entry from its registration, or from the commit of a reply, until the
//! completion that brings a request. Then this process owns the entry until that request's reply is
//! committed. Small requests are copied out. A worker reads a large request in place, while another
//! thread may reply. Then the reply is stored beside the entry, and the later of the two threads
//! commits it.
//!
//! ```text
//! block 0      the headers (`UringHeaders`) at the start, and a copy of the operation's own
//!              header at the end, so that this header and the payload are one slice
//! block 1..    the payload: the bytes after the operation's header, or the reply's contents
//! ```

#![allow(unsafe_code)]

use super::wire::{HEADERS, OP_MAX, PAYLOAD_SIZE_AT, UringHeaders};
use crate::abi::{InHeader, MAX_IO, OutHeader};
use kedge_base::{BLOCK_SIZE, IoBuf};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use zerocopy::{FromBytes, IntoBytes};

/// A request of at most this many bytes is copied out of its entry.
pub(super) const COPIED_MAX: usize = BLOCK_SIZE;

pub(super) struct Entry {
    /// The kernel's number of the queue.
    pub queue: u16,
    memory: *mut u8,
    /// The two parts of `memory`, as REGISTER passes them to the kernel.
    parts: [libc::iovec; 2],
    /// The number of users that are not done: the worker that reads the request in place, and the
    /// thread that replies.
    holders: AtomicU8,
    /// The reply to a request that a worker still reads in place.
    stored: Mutex<Option<(OutHeader, Vec<u8>)>>,
    _slab: Arc<IoBuf>,
}

// SAFETY: `memory` and `parts` point into `_slab`, which lives as long as the entry, and no two
// entries have the same part of it. By the protocol above, either the kernel or this process uses
// the bytes at any time, and `holders` shows when both users in this process are done.
unsafe impl Send for Entry {}
// SAFETY: as for `Send`: the protocol and `holders` order all accesses to the memory.
unsafe impl Sync for Entry {}

/// The request that a completion has brought.
pub(super) struct Arrived {
    pub header: InHeader,
    /// Bytes of the operation's header, and of the payload.
    pub op_len: usize,
    pub payload_len: usize,
}

impl Entry {
    /// Makes entries in one allocation. Memory that is never used stays unallocated.
    pub(super) fn slab(queue: u16, count: usize) -> Vec<Entry> {
        let mut slab = IoBuf::zeroed(count * (1 + MAX_IO / BLOCK_SIZE));
        let memory = slab.as_mut_bytes().as_mut_ptr();
        let slab = Arc::new(slab);
        let at = |entry: usize| memory.wrapping_add(entry * (BLOCK_SIZE + MAX_IO));
        (0..count).map(|entry| Entry::at(queue, at(entry), slab.clone())).collect()
    }

    fn at(queue: u16, memory: *mut u8, slab: Arc<IoBuf>) -> Entry {
        let part = |at: usize, len| libc::iovec { iov_base: memory.wrapping_add(at).cast(), iov_len: len };
        let parts = [part(0, HEADERS), part(BLOCK_SIZE, MAX_IO)];
        Entry { queue, memory, parts, holders: AtomicU8::new(0), stored: Mutex::default(), _slab: slab }
    }

    /// The address of the array of two parts, for REGISTER.
    pub(super) fn parts(&self) -> u64 {
        self.parts.as_ptr() as u64
    }

    fn headers(&self) -> UringHeaders {
        // SAFETY: the first block has at least `HEADERS` bytes, and this process owns the entry.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory, HEADERS) };
        UringHeaders::read_from_bytes(bytes).expect("the slice has the size of the struct")
    }

    /// Reads the request that a completion has brought. Fails if its lengths contradict each other.
    pub(super) fn arrived(&self) -> io::Result<Arrived> {
        let headers = self.headers();
        let (header, _) = InHeader::read_from_prefix(&headers.in_out).expect("the field is larger");
        let payload_len = headers.entry.payload_sz as usize;
        let op_len = (header.len as usize).checked_sub(size_of::<InHeader>() + payload_len);
        match op_len {
            Some(op_len) if op_len <= OP_MAX && payload_len <= MAX_IO => {
                Ok(Arrived { header, op_len, payload_len })
            }
            _ => Err(io::Error::other(format!(
                "the kernel's request {} of {} bytes has {payload_len} bytes of payload",
                header.unique, header.len
            ))),
        }
    }

    /// The bytes after the request's `InHeader`. They must not be used after the caller's release.
    pub(super) fn body(&self, arrived: &Arrived) -> &[u8] {
        let Arrived { op_len, payload_len, .. } = *arrived;
        let at = BLOCK_SIZE - op_len;
        // SAFETY: both ranges are in the first block and do not overlap, because the headers end
        // far before the copy begins. The kernel does not use the entry now.
        unsafe {
            let from = self.memory.add(std::mem::offset_of!(UringHeaders, op_in));
            std::ptr::copy_nonoverlapping(from, self.memory.add(at), op_len);
            std::slice::from_raw_parts(self.memory.add(at), op_len + payload_len)
        }
    }

    /// Must be called when a request has arrived. With `in_place` the worker reads it in the entry,
    /// and must release it.
    pub(super) fn begin(&self, in_place: bool) {
        self.holders.store(if in_place { 2 } else { 1 }, Release);
    }

    /// Ends one use of the entry. Returns whether it was the last one, after which the caller must
    /// commit the reply.
    #[must_use]
    pub(super) fn release(&self) -> bool {
        self.holders.fetch_sub(1, AcqRel) == 1
    }

    /// Takes the reply to the request. Returns whether the caller must commit it now.
    #[must_use]
    pub(super) fn reply(&self, header: OutHeader, parts: &[&[u8]]) -> bool {
        // If the worker releases the entry after this check, the reply is stored unnecessarily.
        if self.holders.load(Acquire) > 1 {
            *self.stored.lock() = Some((header, parts.concat()));
        } else {
            self.store(header, parts);
        }
        self.release()
    }

    /// Copies the reply into the entry. No thread may read the request any more.
    fn store(&self, header: OutHeader, parts: &[&[u8]]) {
        let mut at = BLOCK_SIZE;
        for part in parts {
            assert!(at + part.len() <= BLOCK_SIZE + MAX_IO, "replies are at most a mebibyte");
            // SAFETY: the assertion keeps the range inside the entry, and only this thread uses the
            // entry.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.memory.add(at), part.len()) };
            at += part.len();
        }
        let payload = u32::try_from(at - BLOCK_SIZE).expect("checked above");
        let (header, payload) = (header.as_bytes(), payload.to_ne_bytes());
        // SAFETY: both fields are inside the headers, and only this thread uses the entry.
        unsafe {
            std::ptr::copy_nonoverlapping(header.as_ptr(), self.memory, header.len());
            std::ptr::copy_nonoverlapping(payload.as_ptr(), self.memory.add(PAYLOAD_SIZE_AT), payload.len());
        }
    }

    /// The kernel's number for the request, with which its reply is committed. Copies a stored
    /// reply first.
    pub(super) fn commit_id(&self) -> u64 {
        if let Some((header, bytes)) = self.stored.lock().take() {
            self.store(header, &[&bytes]);
        }
        self.headers().entry.commit_id
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
