//! How much memory a mount's caches take: by default a part of what the process may use, and less
//! while memory is short.
//!
//! Dirty file pages have three sixteenths of a cache, and writers beyond that wait for the device.
//! With a small cache a burst of files waits that a kernel's file system, which may use a fifth of
//! the memory, takes at once. The kernel cannot take back what is clean, as it can from its own
//! cache. So the cache is a small part of the memory, bounded, and [`Watch`] gives it back.
//!
//! # Under pressure
//! The kernel wakes the watching thread when tasks wait for memory (PSI) in the process's own
//! control group or, where that cannot be watched, on the machine, and when the group exceeds its
//! `memory.high`. Each time the cache becomes half as large, down to 64 MiB. After 30 seconds
//! without such an event it doubles, up to its size. At its full size the thread sleeps without a
//! limit, so a mount that is idle costs nothing.

use kedge_base::JoinHandle;
use kedge_base::spawn_named;
use kedgefs::FileSystem;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

const PART: u64 = 16;
const LEAST: u64 = 64 << 20;
const MOST: u64 = 1 << 30;
/// Tasks that wait for memory for a twentieth of two seconds. Other windows need privileges.
const TRIGGER: &[u8] = b"some 100000 2000000\0";
const QUIET: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
const GROUPS: &str = "/sys/fs/cgroup";

/// The default size of a mount's cache in bytes.
pub fn default_cache() -> u64 {
    let limit = limit_of_groups(Path::new(GROUPS), &own_groups());
    cache_of(machine().min(limit.unwrap_or(u64::MAX)))
}

fn own_groups() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

fn cache_of(memory: u64) -> u64 {
    (memory / PART).clamp(LEAST, MOST)
}

fn machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// The least that a control group around the process allows: `group` is what `/proc/self/cgroup`
/// says, `root` where the groups are mounted. `None`: there is no limit, or no group that can be
/// read. A container may see its own group as the root, so that one counts, too.
fn limit_of_groups(root: &Path, group: &str) -> Option<u64> {
    let limits = own_dirs(root, group).into_iter().flat_map(|(dir, files)| {
        let above: Vec<PathBuf> =
            dir.ancestors().take_while(|d| d.starts_with(root)).map(Into::into).collect();
        above.into_iter().flat_map(move |dir| files.iter().map(move |file| dir.join(file)))
    });
    // Version 1 has a number near 2^63 for "none", which is more than any machine has.
    limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// The directories of the process's group that may limit memory, with the files that do: of
/// version 2, also where it is mounted beside version 1, and of version 1.
fn own_dirs(root: &Path, group: &str) -> Vec<(PathBuf, &'static [&'static str])> {
    const NOW: &[&str] = &["memory.max", "memory.high"];
    const BEFORE: &[&str] = &["memory.limit_in_bytes"];
    let mut dirs = Vec::new();
    for line in group.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if (number, kinds) == ("0", "") {
            dirs.extend([root.join(path), root.join("unified").join(path)].map(|dir| (dir, NOW)));
        } else if kinds.split(',').any(|kind| kind == "memory") {
            dirs.push((root.join("memory").join(path), BEFORE));
        }
    }
    dirs
}

/// How large the cache is, and how large it may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Size {
    full: u64,
    now: u64,
}

impl Size {
    /// Memory is short, and `full` is what the cache may have at most.
    fn shrink(self, full: u64) -> Size {
        Size { full, now: (self.now / 2).clamp(full.min(LEAST), full) }
    }

    fn grow(self) -> Size {
        Size { now: self.now.saturating_mul(2).min(self.full), ..self }
    }
}

/// Gives a mount's cache back while memory is short, until it is dropped.
pub struct Watch {
    /// Closed by the drop, which ends the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `None`: this kernel cannot be watched, or a thread is not to be had.
    pub fn start(fs: &FileSystem) -> Option<Watch> {
        let started = Events::open(Path::new(GROUPS), &own_groups()).and_then(|events| {
            let (stopped, stop) = io::pipe()?;
            // A size that the user chose stays the limit.
            let full = fs.options().cache_size;
            let chosen = (full != default_cache()).then_some(full);
            let fs = fs.clone();
            let work = move || watch(&fs, events, &stopped, Size { full, now: full }, chosen);
            let thread = spawn_named("kedge-memory", work)?;
            Ok(Watch { stop: Some(stop), thread: Some(thread) })
        });
        started.inspect_err(|e| tracing::info!("the cache stays as large as it is: {e}")).ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches memory panicked");
        }
    }
}

fn watch(fs: &FileSystem, mut events: Events, stopped: &io::PipeReader, mut size: Size, chosen: Option<u64>) {
    loop {
        let next = match events.wait(stopped, (size.now < size.full).then_some(&QUIET)) {
            Ok(Event::Stop) => return,
            Ok(Event::Pressure) => size.shrink(chosen.unwrap_or_else(default_cache)),
            Ok(Event::Quiet) => size.grow(),
            Err(e) => return tracing::warn!("memory is not watched any more: {e}"),
        };
        if next.now != size.now {
            tracing::info!("cache of {} MiB, of at most {}", next.now >> 20, next.full >> 20);
            fs.set_cache_size(next.now);
        }
        if next.now < size.now {
            crate::os::give_free_memory_back();
        }
        size = next;
    }
}

enum Event {
    Stop,
    Pressure,
    Quiet,
}

/// Files of the kernel that report when memory is short.
struct Events {
    pressure: File,
    /// The `memory.events` of a group with `memory.high`: read again after each event.
    high: Option<File>,
}

impl Events {
    fn open(root: &Path, group: &str) -> io::Result<Events> {
        let dirs: Vec<PathBuf> = own_dirs(root, group).into_iter().map(|(dir, _)| dir).collect();
        let own = dirs.iter().find_map(|dir| trigger(&dir.join("memory.pressure")).ok());
        let pressure = own.map_or_else(|| trigger(Path::new("/proc/pressure/memory")), Ok)?;
        let mut high = dirs.iter().find_map(|dir| File::open(dir.join("memory.events")).ok());
        if let Some(high) = &mut high {
            read_again(high)?;
        }
        Ok(Events { pressure, high })
    }

    /// Waits for an event: for `Quiet` as long as `patience` says.
    fn wait(&mut self, stopped: &io::PipeReader, patience: Option<&Timespec>) -> io::Result<Event> {
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN), PollFd::new(&self.pressure, PollFlags::PRI)];
        fds.extend(self.high.iter().map(|high| PollFd::new(high, PollFlags::PRI)));
        match poll(&mut fds, patience) {
            Ok(0) => return Ok(Event::Quiet),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return self.wait(stopped, patience),
            Err(e) => return Err(e.into()),
        }
        let came: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        if !came[0].is_empty() {
            return Ok(Event::Stop);
        }
        // The group was removed: it could report no more.
        if came[1].contains(PollFlags::ERR) {
            return Err(io::Error::other("the kernel ended the trigger"));
        }
        if came.get(2).is_some_and(|came| !came.is_empty())
            && let Some(high) = &mut self.high
        {
            read_again(high)?;
        }
        Ok(Event::Pressure)
    }
}

fn trigger(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    file.write_all(TRIGGER)?;
    Ok(file)
}

fn read_again(file: &mut File) -> io::Result<()> {
    file.rewind()?;
    file.read_to_end(&mut Vec::new()).map(drop)
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
