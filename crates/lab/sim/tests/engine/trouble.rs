//! Sweeps over failing devices. Each run is checked by the rules of [`kedge_sim::trouble`], with
//! threads, small caches, a tree larger than its cache, the commit timer and the flushers.
//!
//! Each sweep prints its counts. `KEDGE_FAULT=BadBlock` selects the faults whose names contain the
//! text, `KEDGE_SEED` and `KEDGE_RUNS` the seeds.

use crate::common::seeds;
use kedge_sim::rig::panic_text;
use kedge_sim::trouble::{Class, Fault, Report, Scene, Stage, run};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn sweep(name: &str, scene: &Scene, count: u64) {
    let wanted = std::env::var("KEDGE_FAULT").unwrap_or_default();
    let stage = Stage::new(scene).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut total = Report::default();
    for fault in Fault::ALL {
        if !format!("{fault:?}").contains(&wanted) {
            continue;
        }
        let mut of_it = Report::default();
        for seed in seeds(count) {
            let scene = Scene { setup: scene.setup.clone().switched(seed), ..scene.clone() };
            let one = catch_unwind(AssertUnwindSafe(|| run(&stage, &scene, fault, seed)));
            let one = one.unwrap_or_else(|panic| {
                let text = panic_text(&*panic);
                Report { runs: 1, findings: vec![(Class::Panic, text)], ..Report::default() }
            });
            of_it.add(one, &format!("{fault:?} KEDGE_SEED={seed}"));
        }
        println!("{name}, {fault:?}: {of_it}");
        assert!(of_it.runs < 10 || of_it.met > 0, "{name}, {fault:?}: no fault was ever met");
        total.add(of_it, name);
    }
    println!("{name}: {total}");
    let first: Vec<String> =
        total.findings.iter().take(8).map(|(class, e)| format!("{class:?}: {e}")).collect();
    assert!(
        total.findings.is_empty(),
        "{} findings, the first of them:\n{}",
        total.findings.len(),
        first.join("\n")
    );
}

/// Returns `count`, or a few seeds in a build with debug assertions, which is slower.
fn share(count: u64) -> u64 {
    if cfg!(debug_assertions) { count.div_ceil(10) } else { count }
}

#[test]
fn one_thread() {
    sweep("one thread", &Scene::alone(), share(20));
}

#[test]
fn more_of_the_tree_than_the_cache_holds() {
    sweep("wide", &Scene::wide(), share(10));
}

#[test]
fn a_crowd_at_one_file() {
    sweep("crowd", &Scene::crowd(4), share(20));
}

#[test]
fn threads() {
    sweep("four threads", &Scene::threads(4), share(10));
}

#[test]
fn threads_beside_the_commit_timer() {
    sweep("three threads and the timer", &Scene::background(3), share(10));
}
