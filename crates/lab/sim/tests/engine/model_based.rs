//! Random operations on the file system and on the model must have the same results and leave the
//! same tree, through remounts and crashes.
//!
//! A failure prints its seed (`KEDGE_SEED=… cargo test -p kedge-sim --test engine model_based`
//! repeats it) and the shortest list of operations found; `KEDGE_OPS=file` runs such a list.

use crate::common::{check_random, seeds};
use kedge_sim::crash::Promise;
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::ops::Op;
use kedge_sim::rig::{Rig, Setup, run_ops};

#[test]
fn answers_and_state_are_those_of_the_model() {
    let mut done = 0;
    for seed in seeds(10) {
        let profile = Profile { shifts: 40, clones: 60, ..Profile::default() };
        done += check_random(&Setup::default(), profile, seed, 800);
    }
    assert!(done > 0);
}

#[test]
fn so_they_are_with_a_small_log_and_cache() {
    for seed in seeds(8) {
        let profile = Profile { persists: 150, shifts: 40, clones: 60, ..Profile::default() };
        check_random(&Setup::cramped(), profile, seed, 800);
    }
}

#[test]
fn crashes_leave_an_allowed_state_to_go_on_from() {
    for seed in seeds(12) {
        let profile = Profile { crashes: 25, clones: 60, ..Profile::default() };
        check_random(&Setup::default(), profile, seed, 600);
    }
}

#[test]
fn crashes_with_a_small_log_and_cache() {
    for seed in seeds(8) {
        let profile = Profile { crashes: 25, persists: 150, clones: 60, ..Profile::default() };
        check_random(&Setup::cramped(), profile, seed, 600);
    }
}

/// The random clones really share blocks, most of them.
#[test]
fn random_clones_share_blocks() {
    let profile = Profile { remounts: 0, extremes: 0, clones: 300, ..Profile::default() };
    let mut rig = Rig::new(Setup::default()).unwrap();
    let mut generator = Generator::new(1, profile);
    let (mut clones, mut done) = (0, 0);
    for _ in 0..1500 {
        let op = generator.next(&rig.model);
        let outcome = rig.step(&op).unwrap();
        if matches!(op, Op::Clone { .. } | Op::CloneFile { .. }) {
            clones += 1;
            done += usize::from(outcome.is_some_and(|outcome| outcome.is_ok()));
        }
    }
    assert!(clones > 100 && done * 3 > clones, "{done} of {clones} clones");
}

/// One directory with many names: leaves are split, hashes collide, and readdir continues from
/// cookies.
#[test]
fn large_files_and_many_names() {
    for seed in seeds(3) {
        let profile = Profile {
            names: 8,
            depth_max: 4,
            offset_max: 3 << 20,
            write_max: 1 << 20,
            crashes: 10,
            ..Profile::default()
        };
        let setup = Setup { image: 512 << 20, promise: Promise::LastChange, ..Setup::default() };
        check_random(&setup, profile, seed, 400);
    }
}

#[test]
fn a_given_list_of_operations() {
    let Ok(path) = std::env::var("KEDGE_OPS") else { return };
    let text = std::fs::read_to_string(path).expect("KEDGE_OPS names a readable file");
    let ops = kedge_sim::ops::parse_ops(&text).expect("one operation a line");
    for setup in [Setup::default(), Setup::cramped()] {
        if let Err(e) = run_ops(&setup, &ops) {
            panic!("{setup:?}: {e}");
        }
    }
}

/// Forks, deletions and replacements of trees, and limits, between all other operations.
#[test]
fn trees_are_those_of_the_model() {
    let mut done = 0;
    for seed in seeds(8) {
        let profile = Profile { trees: 80, clones: 40, ..Profile::default() };
        done += check_random(&Setup::default(), profile, seed, 600);
    }
    assert!(done > 0);
}

#[test]
fn trees_survive_crashes() {
    for seed in seeds(8) {
        let profile = Profile { trees: 60, crashes: 25, persists: 150, ..Profile::default() };
        let setup = if seed % 2 == 0 { Setup::default() } else { Setup::cramped() };
        check_random(&setup, profile, seed, 500);
    }
}
