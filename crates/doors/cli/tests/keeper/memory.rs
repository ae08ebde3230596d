//! Servers that the kernel kills for lack of memory.

use crate::common::keeper::{keeper, server};
use crate::common::{Place, needs_fuse, until};
use crate::{beside_programs, seed_from_env, within};
use kedge_base::HANG;
use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KILLS: u64 = 10;
/// The bytes of memory that a server may still use, fewer than any request needs.
const LEFT: &str = "65536";

/// A memory control group with the limit [`LEFT`].
pub struct Group(PathBuf);

impl Group {
    /// Returns `None` where such a group cannot be made.
    pub fn new() -> Option<Group> {
        let old = Path::new("/sys/fs/cgroup/memory");
        let (top, limit) = match old.join("memory.limit_in_bytes").exists() {
            true => (old, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        let group = Group(top.join(format!("kedge-keeper-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(limit), LEFT).ok()?;
        Some(group)
    }

    /// Moves a process into the group. Returns `false` if the process has ended.
    pub fn take(&self, process: Pid) -> bool {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group can be removed only when its processes have ended.
        if let Err(e) = fs::remove_dir(&self.0) {
            eprintln!("{}: {e}", self.0.display());
        }
    }
}

#[test]
fn programs_do_not_notice_a_lack_of_memory() {
    needs_fuse!(root: "only root can limit the memory of a process");
    let Some(group) = Group::new() else {
        return kedge_base::skip::note("no control group for memory");
    };
    let seed = seed_from_env().unwrap_or(2);
    println!("KEDGE_SEED={seed}");
    let place = Place::after("mount --create 512M -o keeper disk.kedge mnt");
    within(HANG, "servers without memory", move || {
        beside_programs(&place, seed, KILLS, Duration::from_millis(100), |kill| {
            let pid = server(&place);
            assert!(group.take(pid));
            until("the kernel kills the server", || server(&place) != pid);
            if kill == KILLS {
                assert_eq!(keeper(&place)["deaths"].as_u64(), Some(KILLS));
            }
        });
    });
}
