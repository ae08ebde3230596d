//! The log: the lines that LazyFS writes, since programs wait for some of them.

use anyhow::{Context, Result};
use kedge_crash_record::{Notice, Op, Seen, Timing, Unsynced};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub struct Journal {
    file: Option<Mutex<File>>,
    prints: bool,
    log_all: bool,
    root: PathBuf,
}

impl Journal {
    /// An existing log is emptied, as LazyFS does.
    pub fn new(file: Option<&Path>, prints: bool, log_all: bool, root: &Path) -> Result<Journal> {
        let open = |path: &Path| {
            let file = kedge_host::background::open_log(path)?;
            file.set_len(0).with_context(|| format!("empty {}", path.display()))?;
            Ok::<_, anyhow::Error>(Mutex::new(file))
        };
        let file = file.map(open).transpose().context("logfile")?;
        Ok(Journal { file, prints, log_all, root: root.to_owned() })
    }

    pub fn info(&self, part: &str, text: &str) {
        self.put("info", &format!("[lazyfs.{part}]: {text}"));
    }

    pub fn warn(&self, part: &str, text: &str) {
        self.put("warning", &format!("[lazyfs.{part}]: {text}"));
    }

    pub fn error(&self, part: &str, text: &str) {
        self.put("error", &format!("[lazyfs.{part}]: {text}"));
    }

    pub fn critical(&self, part: &str, text: &str) {
        self.put("critical", &format!("[lazyfs.{part}]: {text}"));
    }

    /// Logs a line without the name of a part of the program before it.
    pub fn plain(&self, text: &str) {
        self.put("info", text);
    }

    fn put(&self, level: &str, text: &str) {
        let line = format!("[{level}] {}\n", kedge_host::text::one_line(text));
        let mut failed = None;
        if let Some(file) = &self.file {
            failed = file.lock().write_all(line.as_bytes()).err();
        }
        if self.prints {
            failed = std::io::stdout().lock().write_all(line.as_bytes()).err().or(failed);
        }
        if let Some(e) = failed {
            tracing::warn!("the log cannot be written: {e}: {}", line.trim_end());
        }
    }

    fn path(&self, path: &[u8]) -> String {
        self.root.join(OsStr::from_bytes(path)).display().to_string()
    }

    /// Logs the files that have data which no fsync covers.
    pub fn report(&self, files: &[Unsynced]) {
        self.warn("cmds", "report generated.");
        if files.is_empty() {
            return self.info("cmds", "report: all data blocks are synced!");
        }
        for file in files {
            let path = self.path(&file.path);
            self.info("cmds", &format!("report: file '{path}' is not fully synced: {} bytes", file.bytes));
        }
        let total: u64 = files.iter().map(|file| file.bytes).sum();
        self.info("cmds", &format!("report: total number of bytes un-fsynced: {total} bytes."));
    }

    pub fn notice(&self, notice: &Notice<'_>) {
        match notice {
            Notice::Call(seen) if self.log_all => self.call(seen),
            Notice::Call(_) => {}
            Notice::Due(op, timing) => self.due(*op, *timing),
            Notice::Refused(op, why) => {
                self.warn("faults", &format!("a fault at {} is not injected: {why}", op.name()));
            }
            Notice::Lost(lost) => {
                self.report(&lost.files);
                if let Some(why) = &lost.error {
                    self.critical("faults", &format!("data could not be lost, the mount fails now: {why}"));
                }
            }
            Notice::Crashed(crashed) => {
                let (model, count) = (&crashed.model, crashed.lost_count);
                self.warn("cmds", &format!("calls lost in whole or in part under {model}: {count}"));
                crashed.lost.iter().for_each(|call| self.info("cmds", &format!("lost: {call}")));
                if let Some(why) = &crashed.error {
                    self.critical("faults", &format!("data could not be lost, the mount fails now: {why}"));
                }
            }
            Notice::Missing(path) => {
                let path = self.path(path);
                self.warn("faults", &format!("a part that should persist is lost with its file: {path}"));
            }
            Notice::Ending => {
                self.put("critical", &format!("Killing LazyFS pid {}!", std::process::id()));
            }
            Notice::StillThere(why) => {
                self.critical("faults", &format!("the process cannot be killed: {why}"));
            }
        }
    }

    fn due(&self, op: Op, timing: Timing) {
        let text = format!("Triggered fault condition (op={},timing={timing})", op.name());
        self.put("critical", &text);
    }

    fn call(&self, seen: &Seen<'_>) {
        let (op, from) = (seen.op.name(), self.path(seen.from));
        self.info(
            "ops",
            &match (seen.to, seen.bytes) {
                (Some(to), _) => format!("lfs_{op}(from={from},to={})", self.path(to)),
                (None, Some((offset, bytes))) => {
                    format!("lfs_{op}(path={from},size={},off={offset})", bytes.len())
                }
                (None, None) => format!("lfs_{op}(path={from})"),
            },
        );
    }
}
