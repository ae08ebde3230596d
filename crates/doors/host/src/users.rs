//! Finds the processes that use a mount, for the message about a mount that is in use.
//!
//! Everything is read from /proc, and no path inside the mount is accessed: the kernel makes the
//! text of a process's links from cached names. A process that ends meanwhile, or that belongs to
//! another user, is left out, because the result only helps the user and decides nothing.
//!
//! Bounds: `PROCESSES_MAX` processes, `FILES_MAX` descriptors of each, `MAPS_MAX` bytes of
//! its mappings; the search ends with `NAMED_MAX` found.

use kedge_fuse::MountEntry;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const PROCESSES_MAX: usize = 16_384;
const FILES_MAX: usize = 4096;
const MAPS_MAX: u64 = 1 << 20;
/// The most users that a message names.
const NAMED_MAX: usize = 4;

/// The users of a mount on `dir`, as text for a message: mounts below `dir`, loop devices, and
/// processes with the way in which they use it. `dir` must be absolute.
pub fn of(dir: &Path) -> Vec<String> {
    let below = kedge_fuse::mounts().into_iter().filter(|m| m.dir != dir && m.dir.starts_with(dir));
    let mut found: Vec<String> =
        below.map(|m| format!("a mount on {}", m.dir.display())).take(NAMED_MAX).collect();
    found.extend(loop_devices(dir));
    let links = processes().filter_map(|process| process.link_into(dir)).take(NAMED_MAX);
    found.extend(links);
    if found.is_empty() {
        // Read mappings only if no other use was found: the kernel takes the process's mmap lock
        // for them, which the process may hold while it waits for the mount.
        found.extend(processes().filter_map(|process| process.map_of(dir)).take(NAMED_MAX));
    }
    found.truncate(NAMED_MAX);
    found
}

/// A process in whose mount namespace the file system is still mounted after an unmount in this
/// one.
pub fn elsewhere(mount: &MountEntry) -> Option<String> {
    let ours = fs::read_link("/proc/self/ns/mnt").ok()?;
    let mut seen = vec![ours];
    for process in processes() {
        let Ok(namespace) = fs::read_link(process.dir.join("ns/mnt")) else { continue };
        if seen.contains(&namespace) {
            continue;
        }
        seen.push(namespace);
        let table = read_some(&process.dir.join("mountinfo"));
        let device = |line: &[u8]| line.split(|&b| b == b' ').nth(2).map(<[u8]>::to_vec);
        if table.split(|&b| b == b'\n').any(|line| device(line).as_deref() == Some(mount.device.as_bytes())) {
            return Some(process.name());
        }
    }
    None
}

struct Process {
    pid: u32,
    dir: PathBuf,
}

/// All processes in /proc except this one.
fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let me = std::process::id();
    pids.filter(move |pid| *pid != me)
        .take(PROCESSES_MAX)
        .map(|pid: u32| Process { pid, dir: PathBuf::from(format!("/proc/{pid}")) })
}

impl Process {
    /// `4711 (bash)`. A process chooses its own name, so terminal control characters are escaped.
    fn name(&self) -> String {
        let name = read_some(&self.dir.join("comm"));
        let name = String::from_utf8_lossy(&name);
        format!("process {} ({})", self.pid, name.trim_end().escape_debug())
    }

    /// The process's working directory, root or open file below `dir`.
    fn link_into(&self, dir: &Path) -> Option<String> {
        let leads_into = |link: &Path| fs::read_link(link).is_ok_and(|target| is_below(&target, dir));
        if leads_into(&self.dir.join("cwd")) {
            return Some(format!("{}, whose working directory is there", self.name()));
        }
        if leads_into(&self.dir.join("root")) {
            return Some(format!("{}, whose root is there", self.name()));
        }
        let files = fs::read_dir(self.dir.join("fd")).ok()?.flatten().take(FILES_MAX);
        let file = files.filter_map(|file| fs::read_link(file.path()).ok()).find(|f| is_below(f, dir))?;
        Some(format!("{}, with {} open", self.name(), file.display().to_string().escape_debug()))
    }

    /// A file below `dir` that the process has mapped.
    fn map_of(&self, dir: &Path) -> Option<String> {
        let maps = read_some(&self.dir.join("maps"));
        let path = |line: &[u8]| {
            let at = line.iter().position(|&b| b == b'/')?;
            Some(PathBuf::from(std::ffi::OsStr::from_bytes(&line[at..])))
        };
        let file = maps.split(|&b| b == b'\n').filter_map(path).find(|file| is_below(file, dir))?;
        Some(format!("{}, with {} mapped", self.name(), file.display().to_string().escape_debug()))
    }
}

fn is_below(path: &Path, dir: &Path) -> bool {
    path.starts_with(dir)
}

/// Loop devices whose file lies below `dir`.
fn loop_devices(dir: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backed = devices.filter(|device| {
        let file = read_some(&device.path().join("loop/backing_file"));
        is_below(Path::new(std::ffi::OsStr::from_bytes(file.trim_ascii_end())), dir)
    });
    backed.map(|device| format!("loop device {}", device.file_name().display())).take(NAMED_MAX).collect()
}

/// Reads up to [`MAPS_MAX`] bytes; empty if the file cannot be read.
fn read_some(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    match fs::File::open(path).and_then(|file| file.take(MAPS_MAX).read_to_end(&mut bytes)) {
        Ok(_) => bytes,
        Err(_) => Vec::new(),
    }
}
