//! Finds files outside the mount that the command has open for writing. No crash state contains
//! them, and the report warns of them.
//!
//! The open files of the command and all its descendants are sampled from /proc. A file that is
//! open only briefly can be missed, so an empty list does not prove that no file was written
//! elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most files that the report names; there may be more.
const NAMED_MAX: usize = 16;
/// The most processes that a sample examines.
const PROCESSES_MAX: usize = 256;
/// Directories without durable files.
const NOT_KEPT: [&str; 4] = ["/dev", "/proc", "/sys", "/memfd:"];

pub struct Outside {
    dir: PathBuf,
    /// The files that are expected to be open: the command's output, and the recording.
    given: BTreeSet<(u64, u64)>,
    found: BTreeMap<PathBuf, String>,
}

impl Outside {
    pub fn new(dir: &Path, recording: &Path) -> Outside {
        let streams = (0..3).map(|fd| PathBuf::from(format!("/proc/self/fd/{fd}")));
        let given = streams.chain([recording.to_owned()]).filter_map(|path| identity(&path));
        Outside { dir: dir.to_owned(), given: given.collect(), found: BTreeMap::new() }
    }

    /// Samples the open files of a process and all its descendants.
    pub fn look(&mut self, process: u32) {
        let mut todo = vec![process];
        let mut seen = BTreeSet::new();
        while let Some(pid) = todo.pop() {
            if self.found.len() >= NAMED_MAX || seen.len() >= PROCESSES_MAX || !seen.insert(pid) {
                continue;
            }
            self.look_at(pid);
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
            todo.extend(
                children.flat_map(|c| c.split(' ').filter_map(|n| n.parse().ok()).collect::<Vec<u32>>()),
            );
        }
    }

    fn look_at(&mut self, pid: u32) {
        for fd in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            // A link that cannot be read belongs to a file that was closed or a process that ended.
            let Ok(path) = fs::read_link(fd.path()) else { continue };
            let is_of_no_interest = path.starts_with(&self.dir)
                || NOT_KEPT.iter().any(|place| path.starts_with(place))
                || path.to_string_lossy().ends_with(" (deleted)")
                || self.found.contains_key(&path);
            if is_of_no_interest || !is_for_writing(pid, &fd.file_name().to_string_lossy()) {
                continue;
            }
            if identity(&fd.path()).is_some_and(|file| !self.given.contains(&file)) {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                self.found.insert(path, format!("{pid} {}", name.trim()));
            }
        }
    }

    /// The files that were found, each with the process that had it open.
    pub fn told(&self) -> Vec<String> {
        self.found.iter().map(|(path, who)| format!("{} (by {who})", path.display())).collect()
    }
}

/// The device and inode number of a regular file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

fn is_for_writing(pid: u32, fd: &str) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|l| l.strip_prefix("flags:"));
    let flags = flags.and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
    // O_RDONLY is zero: any other access mode can write.
    flags.is_some_and(|f| f & 3 != 0)
}
