//! Injects the faults that a file describes into a real device. A test in another process uses the
//! file to choose when the device of a serving process begins to fail.
//!
//! Each line of the file is a fault, `KIND ERRNO COUNT BYTES`: the next COUNT requests of a kind
//! (`read`, `write`, `flush`) fail with the error number; COUNT 0 means all. A write fails only if
//! it has a block that begins with BYTES; `*` matches every write. Without the file nothing fails.
//! Failures are counted for each line, from zero when the file's text changes, and recorded in the
//! file `NAME.struck` beside it, one line for each request.

use super::OpKind;
use crate::batch::submit_inline;
use crate::{CompletionSink, Device, Request};
use kedge_base::{BLOCK_SIZE, Error, IoBuf, Result};
use parking_lot::Mutex;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

pub struct ScriptedDevice {
    inner: Arc<dyn Device>,
    path: PathBuf,
    script: Mutex<Script>,
}

#[derive(Default)]
struct Script {
    text: String,
    lines: Vec<Line>,
}

struct Line {
    kind: OpKind,
    errno: i32,
    /// Number of failures that remain; `None` for no limit.
    left: Option<u64>,
    begins: Vec<u8>,
}

impl Line {
    fn parse(line: &str) -> Option<Line> {
        let [kind, errno, count, begins] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let kind = match kind {
            "read" => OpKind::Read,
            "write" => OpKind::Write,
            "flush" => OpKind::Flush,
            _ => return None,
        };
        let count = count.parse().ok()?;
        let begins = if begins == "*" { Vec::new() } else { begins.as_bytes().to_vec() };
        Some(Line { kind, errno: errno.parse().ok()?, left: (count > 0).then_some(count), begins })
    }

    fn is_meant(&self, data: &[u8]) -> bool {
        self.begins.is_empty() || data.chunks(BLOCK_SIZE).any(|block| block.starts_with(&self.begins))
    }

    fn strikes(&mut self, kind: OpKind, data: &[u8]) -> bool {
        if self.kind != kind || !self.is_meant(data) || self.left == Some(0) {
            return false;
        }
        self.left = self.left.map(|left| left - 1);
        true
    }
}

impl ScriptedDevice {
    pub fn new(inner: Arc<dyn Device>, path: PathBuf) -> ScriptedDevice {
        ScriptedDevice { inner, path, script: Mutex::default() }
    }

    fn strike(&self, kind: OpKind, op: &'static str, offset: u64, len: u64, data: &[u8]) -> Result<()> {
        // Without a file there are no faults. A file that cannot be parsed makes every request
        // fail, so that a test cannot pass because its faults were not injected.
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let mut script = self.script.lock();
        if script.text != text {
            let lines: Option<Vec<Line>> = text.lines().map(Line::parse).collect();
            script.lines = lines.ok_or_else(|| Error::invalid(format!("faults: '{text}'")))?;
            script.text = text;
        }
        match script.lines.iter_mut().find_map(|line| line.strikes(kind, data).then_some(line.errno)) {
            None => Ok(()),
            Some(errno) => {
                let error = Error::Io { op, offset, len, errno };
                let noted =
                    File::options().create(true).append(true).open(self.path.with_extension("struck"));
                let noted = noted.and_then(|mut file| writeln!(file, "{error}"));
                noted.map_err(|e| Error::io("note of a fault", offset, len, &e))?;
                Err(error)
            }
        }
    }
}

impl Device for ScriptedDevice {
    crate::delegate!(inner: geometry, discard, grow, cut, release, room, host_free, first_hole, stats, name);

    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        submit_inline(self, batch, &*sink);
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.strike(OpKind::Read, "read", offset, buf.len() as u64, &[])?;
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.strike(OpKind::Write, "write", offset, buf.len() as u64, buf.as_bytes())?;
        self.inner.write(offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        self.strike(OpKind::Flush, "flush", 0, 0, &[])?;
        self.inner.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.strike(OpKind::Write, "write_zeroes", offset, len, &[])?;
        self.inner.write_zeroes(offset, len)
    }
}
