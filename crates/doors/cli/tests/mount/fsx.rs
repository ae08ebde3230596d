//! [`Fsx`] on the real mount, with remounts between. `KEDGE_SEED` repeats one run, `KEDGE_LONG=1`
//! makes a hundred times as many operations.

use crate::common::fsx::Fsx;
use crate::common::keeper::{Killer, keeper};
use crate::common::rings::rings_are_on;
use crate::common::{Place, needs_fuse};
use std::time::Duration;

/// The time between two deaths of a server.
const EVERY: Duration = Duration::from_millis(150);
/// The number of operations between two mounts.
const STEPS: u32 = 500;

fn fsx(options: &'static str) {
    needs_fuse!();
    let mounts = if crate::common::long() { 200 } else { 2 };
    let seeds = kedge_sim::rig::seed_from_env().map_or(vec![1, 2], |seed| vec![seed]);
    for seed in seeds {
        println!("KEDGE_SEED={seed}");
        let place = Place::after(&format!("mount{options} --create 64M disk.kedge mnt"));
        let mut fsx = Fsx::new(&place.path("mnt/file"), seed);
        let killer = options.contains("keeper").then(|| Killer::start(&place, EVERY));
        for _ in 0..mounts {
            fsx.run(STEPS);
            let _alive = killer.as_ref().map(Killer::pause);
            fsx.close();
            place.remount("disk.kedge", options);
            fsx.open_again();
        }
        if let Some(killer) = killer {
            println!("{} servers died: {}", killer.stop(), keeper(&place));
        }
        drop(fsx);
        place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn random_io_with_writes_passed_through() {
    fsx("");
}

#[test]
fn random_io_while_servers_are_killed() {
    fsx(" -o keeper,placement=on");
}

#[test]
fn random_io_through_rings() {
    if rings_are_on() {
        fsx(" -o transport=io_uring");
    }
}

#[test]
fn random_io_with_the_kernels_writeback_cache_on_the_clients_processor() {
    fsx(" -o writeback_cache,placement=on");
}
