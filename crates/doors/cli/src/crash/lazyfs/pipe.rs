//! The named pipes: one with commands, and one that reports that a command is done.

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The interval of the checks whether the pipe still has its name.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// The interval of the checks for a reader of a notice, and their number.
const READER_POLL: Duration = Duration::from_millis(10);
const READER_POLLS: u32 = 200;
/// The longest command in bytes.
const LINE_MAX: usize = 64 << 10;

/// Makes the pipe unless it exists.
fn make(path: &Path, mode: u32) -> Result<()> {
    match mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(mode), 0) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => {
            let meta = fs::symlink_metadata(path).with_context(|| format!("find {}", path.display()))?;
            if !meta.file_type().is_fifo() {
                bail!("{} is there and is no named pipe", path.display());
            }
            Ok(())
        }
        Err(e) => Err(e).with_context(|| format!("make the named pipe {}", path.display())),
    }
}

/// The pipe with commands.
pub struct Pipe {
    path: PathBuf,
    file: File,
}

impl Pipe {
    pub fn open(path: &Path) -> Result<Pipe> {
        make(path, 0o600)?;
        // Open for reading and writing: then the open waits for no writer, and the end of a writer
        // is no end of the file.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::empty()).with_context(|| format!("open {}", path.display()))?;
        let file = File::from(file);
        let meta = file.metadata().with_context(|| format!("open {}", path.display()))?;
        if !meta.file_type().is_fifo() {
            bail!("{} is no named pipe", path.display());
        }
        Ok(Pipe { path: path.to_owned(), file })
    }

    /// Whether the name still leads to this pipe.
    fn has_name(&self) -> io::Result<bool> {
        let here = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Calls `obey` with each line, forever. A pipe that was removed or replaced is made or opened
    /// again, and `warn` is called.
    pub fn each_line(mut self, obey: &dyn Fn(&str), warn: &dyn Fn(&str)) -> Result<()> {
        let mut text = Vec::new();
        loop {
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(0) if self.has_name().context("look for the pipe")? => continue,
                Ok(0) => {
                    warn(&format!("{} was removed or replaced, and is opened again", self.path.display()));
                    self = Pipe::open(&self.path)?;
                    text.clear();
                    continue;
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e).context("wait for commands"),
            }
            let mut chunk = [0; 4096];
            match (&self.file).read(&mut chunk) {
                Ok(len) => text.extend_from_slice(&chunk[..len]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
                Err(e) => return Err(e).context("read commands"),
            }
            while let Some(end) = text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                if !line.trim().is_empty() {
                    obey(line.trim());
                }
            }
            if text.len() > LINE_MAX {
                warn(&format!("a command of more than {LINE_MAX} bytes is dropped"));
                text.clear();
            }
        }
    }
}

/// The pipe with notices.
pub struct Completed(PathBuf);

impl Completed {
    pub fn open(path: &Path) -> Result<Completed> {
        make(path, 0o644)?;
        Ok(Completed(path.to_owned()))
    }

    /// Writes a notice to the present reader, or to one that opens the pipe soon. Without a reader
    /// it returns an error and writes nothing: a notice that stays in the pipe would end the next
    /// wait too early.
    pub fn write(&self, notice: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for _ in 0..READER_POLLS {
            match open(&self.0, flags, Mode::empty()) {
                Ok(fd) => return File::from(fd).write_all(notice.as_bytes()),
                Err(rustix::io::Errno::NXIO) => std::thread::sleep(READER_POLL),
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::new(ErrorKind::TimedOut, format!("{} has no reader", self.0.display())))
    }
}
