//! dbench on the library: runs dbench's load file in threads instead of processes. Each operation
//! makes the same file system calls as in dbench.
//!
//! - Before dbench uses a name, it looks the name up. If the lookup fails, it reads the directory
//!   for a name that differs only in case. That is part of NTCreateX, Rename, Unlink, Mkdir,
//!   Qpathinfo and Find.
//! - Deltree removes files and leaves directories.
//! - On a mount, the kernel handles locks. Here each client has its own lock table, since no two
//!   clients share a file.
//! - If an operation has another status than in the load file, that is an error that names the
//!   line. The results of queries are not checked, as in dbench.

mod load;

pub use load::{Load, OPERATIONS};

use crate::Interrupt;
use crate::library::{Library, in_threads};
use crate::times::Times;
use anyhow::{Context, Result, bail, ensure};
use kedge_base::{Clock, SystemClock};
use kedgefs::{Dir, FileKind, Ino, OpenOptions, SetAttr, SetTime, Timespec};
use load::{BYTES_MAX, FileAt, OPEN_MAX, Op, PathAt, Piece, Range, Step};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// The clients' directory.
const WORK: &str = "dbench";
/// Seconds by which Sfileinfo makes the time stamps older.
const OLDER_ACCESS: i64 = 10;
const OLDER_CHANGE: i64 = 12;

pub struct Sum {
    /// Data read and written, in MB/s.
    pub throughput: f64,
    /// Milliseconds.
    pub max_latency: f64,
    /// The latencies by operation, in the order of [`OPERATIONS`].
    pub operations: Vec<Times>,
}

/// Lets each client repeat the load for that time, then removes the files.
pub fn run(
    library: &Library,
    load: &Arc<Load>,
    clients: usize,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Sum> {
    let root = library.fs().root();
    remove(&root)?;
    root.create_dir(WORK).context("make the clients' directory")?;
    let work = root.dir(WORK)?;
    let (took, answers) = in_threads(clients, |i| {
        let mut client = Client::new(work.clone(), load, i);
        let (load, interrupt) = (load.clone(), interrupt.clone());
        move || {
            let end = client.clock.monotonic() + time;
            for step in load.steps.iter().cycle() {
                if client.clock.monotonic() >= end {
                    break;
                }
                interrupt.check()?;
                client.step(step)?;
            }
            Ok((client.times, client.bytes))
        }
    })?;
    remove(&root)?;
    let mut operations = vec![Times::default(); OPERATIONS.len()];
    let mut bytes = 0;
    for (times, own_bytes) in answers {
        operations.iter_mut().zip(times).for_each(|(all, own)| all.merge(own));
        bytes += own_bytes;
    }
    Ok(Sum {
        throughput: bytes as f64 / 1e6 / took.as_secs_f64(),
        max_latency: operations.iter().map(Times::max).fold(0.0, f64::max),
        operations,
    })
}

/// Removes the clients' directory: a failed round may have left files.
fn remove(root: &Dir) -> Result<()> {
    present(root.remove_dir_all(WORK)).context("remove the clients' directory")?;
    Ok(())
}

/// Whether an error means a missing name. Any other error is a failure.
fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Returns `None` if the name does not exist.
fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(e) if is_absent(&e) => Ok(None),
        found => found.map(Some),
    }
}

enum Open {
    /// The file, and the path that opened it.
    File(kedgefs::File, PathAt),
    Dir(Ino, PathAt),
}

struct Client {
    work: Dir,
    clock: SystemClock,
    paths: Vec<String>,
    open: Vec<Option<Open>>,
    locks: Vec<Range>,
    times: Vec<Times>,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Client {
    fn new(work: Dir, load: &Load, client: usize) -> Client {
        Client {
            work,
            clock: SystemClock::default(),
            paths: load.paths(client),
            open: (0..OPEN_MAX).map(|_| None).collect(),
            locks: Vec::new(),
            times: vec![Times::default(); OPERATIONS.len()],
            bytes: 0,
            buffer: vec![0x6b; BYTES_MAX as usize],
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let started = self.clock.monotonic();
        let done = self.act(step);
        let took = self.clock.since(started);
        self.times[step.op.row()].push(took);
        done.with_context(|| {
            format!("line {} of dbench's load file, {}", step.line, OPERATIONS[step.op.row()])
        })
    }

    fn act(&mut self, step: &Step) -> Result<()> {
        match step.op {
            Op::Create { path, directory, create, truncate, file } => {
                self.resolve(path)?;
                let how = OpenOptions::new().read(true).write(true).create(create).truncate(truncate);
                let opened = expected(step, self.open(path, directory, &how))?;
                if let (Some(opened), Some(at)) = (opened, file) {
                    self.open[at] = Some(opened);
                    self.stat(at)?;
                }
            }
            Op::Close(at) => {
                self.locks.retain(|lock| lock.file != at);
                self.open[at] = None;
            }
            Op::Rename(from, to) => {
                self.resolve(from)?;
                self.resolve(to)?;
                expected(step, self.work.rename(self.path(from), self.path(to)))?;
            }
            Op::Unlink(path) => {
                self.resolve(path)?;
                expected(step, self.work.remove_file(self.path(path)))?;
            }
            Op::Deltree(path) => self.delete_files(self.path(path))?,
            Op::Mkdir(path) => {
                self.resolve(path)?;
                make_dir(&self.work, self.path(path))?;
            }
            Op::QueryPath(path) => self.resolve(path)?,
            Op::QueryFile(at) => drop(self.stat(at)?),
            Op::QueryFs => drop(self.work.file_system().statfs()),
            Op::SetFile(at) => self.set_times(at)?,
            Op::Find(path, entries) => self.find(path, entries)?,
            Op::Write(piece) => self.write(piece)?,
            Op::Read(piece) => self.read(piece)?,
            Op::Lock(range) => self.locks.push(range),
            Op::Unlock(range) => self.locks.retain(|lock| *lock != range),
            Op::Flush(at) => match self.at(at)? {
                Open::File(file, _) => file.sync_all()?,
                Open::Dir(ino, _) => self.work.file_system().fsync(*ino, false)?,
            },
        }
        Ok(())
    }

    fn path(&self, at: PathAt) -> &str {
        &self.paths[at]
    }

    fn at(&self, at: FileAt) -> Result<&Open> {
        self.open[at].as_ref().context("the handle is not open")
    }

    fn file(&self, at: FileAt) -> Result<&kedgefs::File> {
        match self.at(at)? {
            Open::File(file, _) => Ok(file),
            Open::Dir(..) => bail!("the handle is a directory's"),
        }
    }

    fn stat(&self, at: FileAt) -> Result<kedgefs::Attr> {
        Ok(match self.at(at)? {
            Open::File(file, _) => file.metadata()?,
            Open::Dir(ino, _) => self.work.file_system().getattr(*ino)?,
        })
    }

    /// Looks a name up, and searches the directory for one that differs only in case.
    fn resolve(&self, path: PathAt) -> Result<()> {
        let path = self.path(path);
        if present(self.work.metadata(path))?.is_some() {
            return Ok(());
        }
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        self.entries(dir, |entry| !entry.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Reads a directory, if it exists, until `visit` returns false.
    fn entries(&self, dir: &str, mut visit: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let Some(ino) = present(self.work.resolve(dir))? else { return Ok(()) };
        let read = self.work.file_system().readdir(ino, 0, &mut |entry| visit(entry.name));
        present(read.map_err(io::Error::from))?;
        Ok(())
    }

    fn open(&self, path: PathAt, directory: bool, how: &OpenOptions) -> io::Result<Open> {
        let name = self.path(path);
        if directory {
            make_dir(&self.work, name)?;
        } else {
            match self.work.open_with(name, how) {
                // The path is a directory, which is opened for reading instead.
                Err(e) if e.kind() == ErrorKind::IsADirectory => {}
                opened => return opened.map(|file| Open::File(file, path)),
            }
        }
        Ok(Open::Dir(self.work.dir(name)?.ino(), path))
    }

    fn find(&self, path: PathAt, entries: u64) -> Result<()> {
        self.resolve(path)?;
        let path = self.path(path);
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        if !name.contains(['<', '>', '*', '?', '"']) || entries == 0 {
            return Ok(());
        }
        let mut left = entries;
        self.entries(dir, |_| {
            left -= 1;
            left > 0
        })
    }

    /// Deletes the files in a directory and below.
    fn delete_files(&self, path: &str) -> Result<()> {
        let mut dirs = vec![path.to_owned()];
        while let Some(dir) = dirs.pop() {
            let Some(entries) = present(self.work.read_dir(&dir))? else { continue };
            for entry in entries {
                let name = entry?.name;
                let path = format!("{dir}/{}", name.to_str().context("a name is not UTF-8")?);
                match self.work.metadata(&path)?.kind {
                    FileKind::Directory => dirs.push(path),
                    _ => self.work.remove_file(&path)?,
                }
            }
        }
        Ok(())
    }

    /// Sets the times by the path that opened the file. The path may no longer exist.
    fn set_times(&self, at: FileAt) -> Result<()> {
        let attr = self.stat(at)?;
        let (Open::File(_, path) | Open::Dir(_, path)) = self.at(at)?;
        let older = |of: Timespec, by| Some(SetTime::At(Timespec { sec: of.sec - by, nsec: 0 }));
        let set = SetAttr {
            atime: older(attr.atime, OLDER_ACCESS),
            mtime: older(attr.mtime, OLDER_CHANGE),
            ..SetAttr::default()
        };
        present(self.work.set_attr(self.path(*path), &set))?;
        Ok(())
    }

    fn write(&mut self, piece: Piece) -> Result<()> {
        let wrote = self.file(piece.file)?.write_at(piece.offset, &self.buffer[..piece.size])?;
        ensure!(
            wrote == piece.done,
            "{wrote} of {} bytes were written, {} are expected",
            piece.size,
            piece.done
        );
        self.bytes += piece.size as u64;
        Ok(())
    }

    fn read(&mut self, piece: Piece) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read =
            self.file(piece.file).and_then(|file| Ok(file.read_at(piece.offset, &mut buffer[..piece.size])?));
        self.buffer = buffer;
        let read = read?;
        ensure!(read == piece.done, "{read} of {} bytes were read, {} are expected", piece.size, piece.done);
        self.bytes += piece.size as u64;
        Ok(())
    }
}

/// Makes a directory, which may exist.
fn make_dir(work: &Dir, path: &str) -> io::Result<()> {
    match work.create_dir(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Compares a result with the load file. Returns `None` for a failure that the load file expects. A
/// failure other than a missing name is always an error.
fn expected<T>(step: &Step, done: io::Result<T>) -> Result<Option<T>> {
    let by_name = |e: &io::Error| {
        is_absent(e)
            || matches!(
                e.kind(),
                ErrorKind::AlreadyExists | ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty
            )
    };
    match done {
        Ok(_) if !step.succeeds => bail!("succeeded, which is not expected"),
        Err(e) if !step.succeeds && by_name(&e) => Ok(None),
        done => Ok(Some(done?)),
    }
}

#[cfg(test)]
#[path = "dbench_tests.rs"]
mod tests;
