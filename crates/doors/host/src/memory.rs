//! How much memory a mount's cache uses: by default a fraction of what the process may use, and
//! less while memory is short.
//!
//! Dirty file pages may take three sixteenths of the cache; writers beyond that wait for the
//! device. With a small cache, a burst of writes waits that the kernel's own page cache (which may
//! use a fifth of the memory for dirty pages) would absorb. But the kernel cannot reclaim clean
//! pages of this process, as it can from its page cache. So the default is a small, bounded
//! fraction of the memory, and [`Watch`] shrinks the cache under pressure.
//!
//! # Under pressure
//! The kernel wakes the watching thread when tasks wait for memory (PSI) in the process's control
//! group, or on the machine if the group cannot be watched, and when the group exceeds its
//! `memory.high`. Each wakeup halves the cache, down to 64 MiB. After 30 seconds without a wakeup
//! the cache doubles, up to its full size. At full size the thread sleeps without a time limit, so
//! an idle mount costs nothing.

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
/// Wakes the thread when tasks have waited 0.1 s within 2 s. Windows that are no multiple of 2 s
/// need privileges.
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

/// The smallest limit of the process's control group and its ancestors, in bytes. `group` is the
/// text of `/proc/self/cgroup`, `root` the directory where the groups are mounted. `None` if there
/// is no limit or no readable group. In a container the process may see its own group as the root,
/// so the root counts as well.
fn limit_of_groups(root: &Path, group: &str) -> Option<u64> {
    let limits = own_dirs(root, group).into_iter().flat_map(|(dir, files)| {
        let above: Vec<PathBuf> =
            dir.ancestors().take_while(|d| d.starts_with(root)).map(Into::into).collect();
        above.into_iter().flat_map(move |dir| files.iter().map(move |file| dir.join(file)))
    });
    // Version 1 has a number near 2^63 for "no limit", more than any machine has.
    limits.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// The directories of the process's group that may limit its memory, with the names of the limit
/// files: of version 2, even if it is mounted beside version 1, and of version 1.
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

/// The present size of the cache, and its upper limit, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Size {
    full: u64,
    now: u64,
}

impl Size {
    /// Halves the cache because memory is short. `full` is the new upper limit.
    fn shrink(self, full: u64) -> Size {
        Size { full, now: (self.now / 2).clamp(full.min(LEAST), full) }
    }

    fn grow(self) -> Size {
        Size { now: self.now.saturating_mul(2).min(self.full), ..self }
    }
}

/// Shrinks a mount's cache while memory is short. Dropping it ends the watch.
pub struct Watch {
    /// Closed by `drop`, which ends the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts a watch. `None` if the kernel does not report memory pressure, or no thread can be
    /// started.
    pub fn start(fs: &FileSystem) -> Option<Watch> {
        let started = Events::open(Path::new(GROUPS), &own_groups()).and_then(|events| {
            let (stopped, stop) = io::pipe()?;
            // A size other than the default was chosen by the user, and stays the upper limit.
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

/// Kernel files that report memory pressure.
struct Events {
    pressure: File,
    /// The `memory.events` of the group, for `memory.high`. It must be read again after each event.
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

    /// Waits for an event. Returns `Quiet` if none arrives within `patience`.
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
        // The group was removed, so the trigger will report nothing more.
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
