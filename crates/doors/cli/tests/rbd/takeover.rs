//! The process that serves a mount is killed during log writes and checkpoints, and another host
//! takes the image over: fsck finds no error, and all acknowledged data is there.

use crate::common::Place;
use crate::{Host, cluster, directory, long, mkfs, until, uri};
use kedge_sim::rig::seed_from_env;
use kedge_sim::writers::{Snapshot, Writers, verify_after};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::time::Duration;

const ROUNDS: u64 = 4;
const ROUNDS_LONG: u64 = 50;
const WRITERS: usize = 3;

/// What a mount had done when it was killed.
struct Killed {
    acked: Snapshot,
    begun: Snapshot,
    /// The number of completed background checkpoints; another had begun or was about to begin.
    checkpoints: u64,
}

/// Mounts on a host, runs writers there, and kills the mount. In every other round the cluster
/// hangs at that moment, so that writes of the log or of a checkpoint are in flight and arrive
/// after the death of their sender.
fn round(cluster: &kedge_ceph::Cluster, host: &Host, dir: &Path, number: u64, rng: &mut SmallRng) -> Killed {
    let backend = host.backend(dir);
    let writers = Writers::start(&backend, WRITERS, &format!("round{number}-"), rng.random()).unwrap();
    let enough = rng.random_range(20..200);
    until("the writers are at work", || writers.operations() >= enough || writers.ended());
    assert!(!writers.ended(), "{:?}", writers.snapshot().errors());
    let pid = *host.served.lock().last().unwrap();
    let stats = host.kedge(["stats", "--json", dir.to_str().unwrap()]).ok();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let checkpoints = stats["checkpoint"]["ns"]["count"].as_u64().unwrap();
    let hangs = number % 2 == 1;
    if hangs {
        cluster.pause().unwrap();
        std::thread::sleep(Duration::from_millis(rng.random_range(0..100)));
    }
    let acked = writers.snapshot();
    kill_process(pid, Signal::KILL).unwrap();
    until("the writers see that their mount is dead", || writers.ended());
    if hangs {
        cluster.resume().unwrap();
    }
    Killed { acked, begun: writers.stop(), checkpoints }
}

#[test]
fn another_host_takes_over_what_a_killed_one_left() {
    let Some(cluster) = cluster() else { return };
    let seed = seed_from_env().unwrap_or(1);
    println!("KEDGE_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let place = Place::new();
    let hosts = [Host::new(&cluster, "alpha"), Host::new(&cluster, "beta")];
    let (dir, uri) = (directory(&place, "mnt"), uri(&cluster, "takeover"));
    mkfs(&hosts[0], &uri, &["--size", "256M", "--log-size", "4M"]);
    // A checkpoint begins when a hundredth of the log is in use, so one nearly always runs.
    hosts[0].mount(&dir, &uri, &["-o", "async_checkpoint=99"]);
    let (mut past, mut checkpoints, mut fsyncs) = (Vec::new(), 0, 0);
    let rounds = if long() { ROUNDS_LONG } else { ROUNDS };
    for number in 0..rounds {
        let (old, new) = (&hosts[number as usize % 2], &hosts[(number as usize + 1) % 2]);
        let killed = round(&cluster, old, &dir, number, &mut rng);
        fsyncs += killed.acked.fsyncs();
        checkpoints += killed.checkpoints;
        past.push((killed.acked, killed.begun));
        new.mount(&dir, &uri, &["--takeover", "-o", "async_checkpoint=99"]);
        for (i, (acked, begun)) in past.iter().enumerate() {
            if let Err(e) = verify_after(&*new.backend(&dir), acked, begun) {
                panic!("KEDGE_SEED={seed}, round {number}, files of round {i}: {e}");
            }
        }
        new.unmount(&dir);
        new.fsck(&uri);
        // Detach the dead mount, and make the mount of the next round.
        old.kedge(["umount".as_ref(), dir.as_os_str()]).refused(1, &["the serving process had died"]);
        new.mount(&dir, &uri, &["-o", "async_checkpoint=99"]);
    }
    println!("{rounds} rounds, {fsyncs} acknowledged fsyncs, {checkpoints} checkpoints");
    assert!(fsyncs > 5 * rounds, "{fsyncs} acknowledged fsyncs");
    assert!(checkpoints > 0, "no checkpoint was near when the mounts were killed");
    hosts[rounds as usize % 2].unmount(&dir);
}
