//! The default cache size of a mount: a part of the memory that the process may use.
//!
//! Dirty file pages get three sixteenths of a cache, and writers beyond that wait for the device.
//! With a small cache a burst of writes waits that a kernel file system, which may use a fifth of
//! the memory, would accept immediately. But the kernel cannot reclaim clean pages here, as it can
//! in its own cache. So the default is a small part of the memory, and bounded.

use std::fs;
use std::path::Path;

const PART: u64 = 16;
const LEAST: u64 = 64 << 20;
const MOST: u64 = 1 << 30;

/// The default size of a mount's cache in bytes.
pub fn default_cache() -> u64 {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit_of_groups(Path::new("/sys/fs/cgroup"), &group);
    cache_of(machine().min(limit.unwrap_or(u64::MAX)))
}

fn cache_of(memory: u64) -> u64 {
    (memory / PART).clamp(LEAST, MOST)
}

fn machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// The lowest limit of the control groups (version 2) around the process; `group` is the content of
/// `/proc/self/cgroup`. `None` if there is no limit or no group can be read.
fn limit_of_groups(root: &Path, group: &str) -> Option<u64> {
    let path = group.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limits = Path::new(path).ancestors().flat_map(|group| {
        ["memory.max", "memory.high"].map(|file| fs::read_to_string(root.join(group).join(file)))
    });
    limits.filter_map(|text| text.ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
