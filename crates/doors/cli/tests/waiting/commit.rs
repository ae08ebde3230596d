//! Without any fsync: a killed server loses no work that had completed more than `commit=` seconds
//! before it (G14).
//!
//! That includes data, but not with a writeback cache, because there the kernel decides when it
//! sends the data.

use crate::common::{Place, no_fuse};
use kedge_base::{Clock, HANG, SystemClock};
use kedge_sim::ops::Fill;
use kedge_sim::rig::{seed_from_env, with_lateness, within};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Duration;

const COMMIT: Duration = Duration::from_secs(1);
/// Shorter than `COMMIT`, so that the test fails if the timer misses one interval.
const SLACK: Duration = Duration::from_millis(700);
/// How many threads may have to wait for a processor, one after another, on a busy machine.
const HOPS: u32 = 8;
/// The most measurements for each seed until one is in time. A delay of a busy machine does not
/// repeat; a timer that is late repeats.
const TRIES: usize = 3;

/// Works for some seconds and kills the server. Returns the age of the oldest lost change at the
/// kill.
fn lost_age(options: &str, seed: u64) -> Duration {
    let data = !options.contains(",writeback_cache");
    let bytes =
        |number: u32| Fill::Seed(number).bytes(0, if data { number as usize * 977 % 9000 } else { 0 });
    let place = Place::after(&format!("mount --create 256M{options} disk.kedge mnt"));
    let pid = place.info("mnt")["mount"]["pid"].as_i64().unwrap() as i32;
    let clock = SystemClock::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    let end = COMMIT * 2 + rng.random_range(Duration::ZERO..COMMIT * 2);
    let mut done = Vec::new();
    while clock.monotonic() < end {
        let number = done.len() as u32;
        let dir = place.path(&format!("mnt/dir{}", number / 50));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("new"), bytes(number)).unwrap();
        fs::rename(dir.join("new"), dir.join(number.to_string())).unwrap();
        done.push(clock.monotonic());
        std::thread::sleep(Duration::from_millis(8));
    }
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let killed = clock.monotonic();
    // Exit code 8 means that the process has not ended yet, and that it or its mount still holds
    // the image.
    crate::common::until("the image is free", || place.run("fsck disk.kedge").code != 8);
    assert_eq!(place.run("fsck disk.kedge").code, 0);
    place.run("mount disk.kedge mnt").ok();
    let whole = |number: u32| {
        let path = place.path(&format!("mnt/dir{}/{number}", number / 50));
        fs::read(path).is_ok_and(|found| found == bytes(number))
    };
    let lost = (0..).zip(&done).find(|(number, _)| !whole(*number));
    place.unmount_and_check("disk.kedge");
    lost.map_or(Duration::ZERO, |(_, at)| killed.saturating_sub(*at))
}

fn check(options: &'static str) {
    for seed in seed_from_env().map_or_else(|| (1..=4).collect(), |seed| vec![seed]) {
        let what = format!("KEDGE_SEED={seed}{options}");
        let mut measured = Vec::new();
        let in_time = (0..TRIES).any(|_| {
            let (lost, late) = with_lateness(|| within(HANG, &what, move || lost_age(options, seed)));
            println!("{what}: work of the last {lost:?} is lost; the machine was {late:?} late");
            measured.push((lost, late));
            lost <= COMMIT + SLACK + late * HOPS
        });
        assert!(in_time, "{what}: the age of lost work, and the machine's delay: {measured:?}");
    }
}

#[test]
fn names_are_durable_in_time_below_a_writeback_cache() {
    if !no_fuse() {
        check(" -o commit=1,writeback_cache");
    }
}

#[test]
fn names_and_data_are_durable_in_time() {
    if !no_fuse() {
        check(" -o commit=1");
    }
}

/// The test can detect losses: with a long interval changes are lost.
#[test]
fn with_a_long_interval_work_is_lost() {
    if !no_fuse() {
        let lost = within(HANG, "commit=300", || lost_age(" -o commit=300", 1));
        assert!(lost > COMMIT + SLACK, "{lost:?}");
    }
}
