//! The command's standard output. Lines of it can be promises.
//!
//! What a thread has printed before a call is in the pipe when the call arrives. So the thread that
//! records a call first reads the pipe. A promise is then recorded after the calls that had
//! returned before it was printed, and before the calls that are made after it. It may be recorded
//! later than it was printed, but never earlier.
//!
//! Passing the lines on may block until their reader reads, so a separate thread does that. If this
//! thread has more than [`WAITING_MAX`] bytes to pass on, the pipe is not read until it has caught
//! up; promises are then recorded late.

use parking_lot::Mutex;
use regex::Regex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, retry_on_intr, write};
use std::io::{self, Write};
use std::os::fd::OwnedFd;

/// The most bytes that were read and not yet passed on.
const WAITING_MAX: usize = 1 << 20;
/// The most bytes of a line that are matched with the pattern.
const LINE_MAX: usize = 64 << 10;

pub struct Output {
    pipe: OwnedFd,
    /// An eventfd that wakes the thread which passes lines on.
    wake: OwnedFd,
    ack: Regex,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The current incomplete line.
    line: Vec<u8>,
    waiting: Vec<u8>,
    is_over: bool,
}

impl Output {
    /// Takes the reading end of the pipe. Lines that match `ack` are promises.
    pub fn new(pipe: OwnedFd, ack: Regex) -> io::Result<Output> {
        // Make only this end non-blocking: the command's writes block as before.
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Output { pipe, wake, ack, inner: Mutex::default() })
    }

    /// Reads the pipe without blocking and calls `note` for each promise in order.
    pub fn take_in(&self, mut note: impl FnMut(String)) {
        let mut inner = self.inner.lock();
        let was_waiting = !inner.waiting.is_empty();
        let mut bytes = [0; 8192];
        while !inner.is_over && inner.waiting.len() < WAITING_MAX {
            match retry_on_intr(|| read(&self.pipe, &mut bytes)) {
                Ok(0) => {
                    inner.is_over = true;
                    // The last line may lack a newline.
                    if !inner.line.is_empty() {
                        self.judge(&mut inner, &mut note);
                    }
                }
                Ok(len) => self.add(&mut inner, &bytes[..len], &mut note),
                Err(Errno::AGAIN) => break,
                Err(e) => {
                    tracing::error!("the command's output: {e}");
                    inner.is_over = true;
                }
            }
        }
        let is_new = !was_waiting && !inner.waiting.is_empty();
        drop(inner);
        // EAGAIN means that the counter is full: the thread was woken many times and has not read
        // the counter, so it will run.
        if is_new
            && let Err(e) = write(&self.wake, &1u64.to_ne_bytes())
            && e != Errno::AGAIN
        {
            tracing::error!("the command's output is passed on late: {e}");
        }
    }

    fn add(&self, inner: &mut Inner, bytes: &[u8], note: &mut impl FnMut(String)) {
        inner.waiting.extend_from_slice(bytes);
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, is_end) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            let room = LINE_MAX.saturating_sub(inner.line.len()).min(text.len());
            inner.line.extend_from_slice(&text[..room]);
            if is_end {
                self.judge(inner, note);
            }
        }
    }

    fn judge(&self, inner: &mut Inner, note: &mut impl FnMut(String)) {
        let text = String::from_utf8_lossy(&inner.line);
        let text = text.trim_end();
        if self.ack.is_match(text) {
            note(text.to_owned());
        }
        inner.line.clear();
    }

    /// Passes everything on until all writers have closed the pipe. `read_pipe` must call
    /// [`Output::take_in`], in the order of the recorded calls.
    pub fn pass_on(&self, read_pipe: impl Fn()) {
        loop {
            let mut fds = [PollFd::new(&self.pipe, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            if let Err(e) = retry_on_intr(|| poll(&mut fds, None)) {
                return tracing::error!("the command's output is not passed on: {e}");
            }
            let mut count = [0; 8];
            // EAGAIN means that the pipe woke this thread, not the counter.
            if let Err(e) = retry_on_intr(|| read(&self.wake, &mut count))
                && e != Errno::AGAIN
            {
                return tracing::error!("the command's output is not passed on: {e}");
            }
            read_pipe();
            let (bytes, is_over) = {
                let mut inner = self.inner.lock();
                (std::mem::take(&mut inner.waiting), inner.is_over)
            };
            let mut out = io::stdout().lock();
            if let Err(e) = out.write_all(&bytes).and_then(|()| out.flush()) {
                tracing::warn!("standard output: {e}");
            }
            if is_over {
                return;
            }
        }
    }
}
