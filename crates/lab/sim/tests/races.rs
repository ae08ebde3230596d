//! Races between threads. They are certain where a thread stops at a mark in the engine, or likely
//! where all threads are slow there.
//!
//! The marks apply to the whole process, so the tests run one at a time.

use kedge_base::HANG;
use kedge_sim::races;
use kedge_sim::rig::seed_from_env;
use kedge_sim::rig::within;
use parking_lot::Mutex;

static TURN: Mutex<()> = Mutex::new(());

fn certain(race: fn() -> Result<(), String>) {
    let _turn = TURN.lock();
    within(HANG, "race", race).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn an_inode_deleted_while_it_is_read_stays_deleted() {
    certain(races::deleted_while_read);
}

#[test]
fn an_inode_linked_while_it_is_read_has_both_names() {
    certain(races::linked_while_read);
}

#[test]
fn a_name_given_between_two_steps_of_a_truncate_harms_neither() {
    certain(races::linked_between_truncate_steps);
}

#[test]
fn a_crash_after_a_name_given_between_two_steps_of_a_truncate_brings_nothing_back() {
    certain(races::linked_between_truncate_steps_then_crash);
}

#[test]
fn a_name_taken_beside_the_last_step_of_a_truncate_leaves_an_orphan() {
    certain(races::unlinked_beside_the_last_truncate_step);
}

#[test]
fn a_name_given_beside_the_last_step_of_a_truncate_leaves_none() {
    certain(races::linked_beside_the_last_truncate_step);
}

#[test]
fn a_removal_that_fails_keeps_the_bytes_that_were_written() {
    certain(races::failed_removals_keep_the_bytes);
}

/// `KEDGE_SEED` repeats one seed, as far as thread scheduling allows.
#[test]
fn a_cache_too_small_for_the_files_shows_none_of_them_as_it_was() {
    let _turn = TURN.lock();
    let seeds = seed_from_env().map_or(1..5, |seed| seed..seed + 1);
    let (mut reads, mut awaited) = (0, 0);
    for seed in seeds {
        let run = move || races::small_cache(seed, 3000);
        let counts = within(HANG, "stress", run).unwrap_or_else(|e| panic!("{e}"));
        reads += counts.0;
        awaited += counts.1;
    }
    println!("{reads} inodes read, {awaited} waits for the read of another thread");
    assert!(reads > 1000 && awaited > 0, "{reads} reads, {awaited} waits: the cache was not small");
}
