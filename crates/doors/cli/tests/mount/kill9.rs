//! SIGKILL for the serving process while writers work on the real mount: data that fsync confirmed
//! is there afterwards, read through the kernel, and fsck finds no error.
//!
//! This process, not the file system, keeps the acknowledgements. `KEDGE_SEED` repeats one
//! image's rounds.

use crate::common::rings::rings_are_on;
use crate::common::seeks::{Seeks, couriers, is_gone, stop_in_a_seek};
use crate::common::{Place, Run, long, needs_fuse, pid, until, until_dead};
use kedge_base::HANG;
use kedge_sim::backend::{Backend, Mounted};
use kedge_sim::rig::{seed_from_env, within};
use kedge_sim::writers::{Snapshot, Writers, verify_after};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::time::Duration;

const IMAGES: u64 = 5;
const ROUNDS: u64 = 10;
const WRITERS: usize = 8;

fn round(place: &Place, round: u64, rng: &mut SmallRng) -> (Snapshot, Snapshot) {
    let backend: Arc<dyn Backend> = Arc::new(Mounted(place.path("mnt")));
    let writers = Writers::start(&backend, WRITERS, &format!("round{round}-"), rng.random()).unwrap();
    let enough = rng.random_range(10..500);
    while writers.operations() < enough && !writers.ended() {
        std::thread::sleep(Duration::from_micros(300));
    }
    assert!(!writers.ended(), "writers end before the kill: {:?}", writers.snapshot().errors());
    let pid = place.info("mnt")["mount"]["pid"].as_i64().unwrap() as i32;
    let acked = writers.snapshot();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // Wait until all writers have failed at the dead mount. The last request may be aborted before
    // the mount is dead.
    while !writers.ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    until_dead(place, "mnt");
    (acked, writers.stop())
}

/// Checks the image. The killed process releases the image a moment after its mount is dead, so
/// this retries.
fn fsck(place: &Place) -> Run {
    let mut judged = None;
    until("the image is free", || {
        let run = place.run("fsck disk.kedge");
        let busy = run.err.contains("in use by another process");
        judged = Some(run);
        !busy
    });
    judged.unwrap()
}

fn kill_again_and_again(options: &str, seed: u64, rounds: u64) {
    let place = Place::new();
    let mut rng = SmallRng::seed_from_u64(seed);
    place.run(&format!("mount --create 512M{options} disk.kedge mnt")).ok();
    let mut past = Vec::new();
    let mut fsyncs = 0;
    for number in 0..rounds {
        let (acked, begun) = round(&place, number, &mut rng);
        fsyncs += acked.fsyncs();
        past.push((acked, begun));
        let judged = fsck(&place);
        assert_eq!(judged.code, 0, "round {number}: {}{}", judged.out, judged.err);
        place.run(&format!("mount{options} disk.kedge mnt")).ok();
        for (i, (acked, begun)) in past.iter().enumerate() {
            if let Err(e) = verify_after(&Mounted(place.path("mnt")), acked, begun) {
                panic!("round {number}, files of round {i}: {e}");
            }
        }
    }
    assert!(fsyncs > 10 * rounds, "{fsyncs} acknowledged fsyncs");
    place.run("umount mnt").ok();
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

#[test]
fn what_fsync_confirmed_to_many_writers_survives_a_kill() {
    needs_fuse!();
    let seeds = seed_from_env().map_or_else(|| (1..=IMAGES).collect(), |seed| vec![seed]);
    for seed in seeds {
        let what = format!("KEDGE_SEED={seed}");
        println!("{what}");
        within(HANG, &what, move || kill_again_and_again("", seed, ROUNDS));
    }
}

/// The kernel ends the requests in the rings of a killed server, so neither a writer waits forever
/// nor sync(2), which calls all file systems of the machine.
#[test]
fn a_server_with_rings_is_killed_and_no_process_waits_without_end() {
    needs_fuse!();
    if !rings_are_on() {
        return;
    }
    let images = if long() { 50 } else { 1 };
    for seed in seed_from_env().map_or_else(|| (1..=images).collect(), |seed| vec![seed]) {
        let what = format!("KEDGE_SEED={seed} with rings");
        println!("{what}");
        within(HANG, &what, move || {
            kill_again_and_again(" -o transport=io_uring", seed, ROUNDS);
            rustix::fs::sync();
        });
    }
}

/// Before a seek in a file with stored pages the kernel writes them, and waits for the server in
/// uninterruptible sleep.
#[test]
fn a_server_that_is_killed_beside_a_seek_ends_the_mount() {
    needs_fuse!();
    for options in ["nokeeper", "nokeeper,fuse"] {
        let place = Place::after(&format!("mount --create 128M -o {options} disk.kedge mnt"));
        let seeks = Seeks::start(&place);
        let server = pid(&place, "mnt");
        stop_in_a_seek(server);
        kill_process(server, Signal::KILL).unwrap();
        until("the server is gone", || is_gone(server));
        println!("{options}: {}", seeks.failed());
        until_dead(&place, "mnt");
        assert_eq!(fsck(&place).code, 0);
    }
}

/// The server sends notifications through another process, its courier, which a user may kill.
#[test]
fn a_courier_that_is_killed_is_replaced() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o nokeeper disk.kedge mnt");
    let seeks = Seeks::start(&place);
    let server = pid(&place, "mnt");
    for _ in 0..5 {
        let courier = stop_in_a_seek(server);
        assert_ne!(courier, server, "the server itself does not wait");
        kill_process(courier, Signal::KILL).unwrap();
        kill_process(server, Signal::CONT).unwrap();
        until("the courier is gone", || is_gone(courier));
    }
    assert!(seeks.stop() > 0);
    assert!(couriers(server).len() <= 1);
    place.run("umount mnt").ok();
    assert_eq!(place.run("fsck disk.kedge").code, 0);
}

/// When no process is left that could reply, the kernel ends the mount on request.
#[test]
fn a_forced_unmount_ends_a_wait_for_a_server_and_a_courier_that_are_killed() {
    needs_fuse!(root: "umount -f needs root");
    let place = Place::after("mount --create 128M -o nokeeper disk.kedge mnt");
    let seeks = Seeks::start(&place);
    let server = pid(&place, "mnt");
    let courier = stop_in_a_seek(server);
    kill_process(courier, Signal::KILL).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    // The unmount fails because the program uses the mount, but it ends the program's requests.
    let _busy = rustix::mount::unmount(place.path("mnt"), rustix::mount::UnmountFlags::FORCE);
    println!("{}", seeks.failed());
    until("both are gone", || is_gone(courier) && is_gone(server));
    assert_eq!(fsck(&place).code, 0);
}
