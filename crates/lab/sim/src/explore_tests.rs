use super::*;
use crate::workload::{Catalogue, DEVICE, IMAGE, Kind};
use kedge_device::sim::Event;

#[test]
fn a_workload_records_the_same_twice() {
    let workload = Catalogue::new(2, 0).variants(4321).pop().unwrap();
    let explorer = Explorer::new(&base_image(false).unwrap(), Plan::quick(1));
    let media = |run: Run| -> Vec<u64> {
        run.recording.states(explorer.plan.states).map(|s| s.medium.difference_hash(&explorer.base)).collect()
    };
    let (first, second) = (explorer.record(&workload).unwrap(), explorer.record(&workload).unwrap());
    assert_eq!(media(first), media(second));
}

/// For this reason a workload need not judge crashes among operations with which others begin.
#[test]
fn operations_in_common_leave_the_same_media() {
    let base = base_image(false).unwrap();
    let (quick, thorough) = (Plan::quick(1), Plan::thorough(1));
    let media = |plan: Plan, workload: &Workload, until: usize| -> HashSet<(Option<u64>, u64)> {
        let run = Explorer::new(&base, plan).record(workload).unwrap();
        let states = run.recording.states(plan.states).take_while(|s| s.mark < Some(until as u64));
        states.map(|s| (s.mark, s.medium.difference_hash(&base))).collect()
    };
    let ones = Catalogue::new(1, 0);
    let ones: Vec<Workload> = (0..ones.len()).flat_map(|skeleton| ones.variants(skeleton)).collect();
    let mut beginnings = 0;
    for skeleton in [4321, 12_345, 20_000] {
        let workloads = Catalogue::new(2, 0).variants(skeleton);
        for pair in workloads.windows(2).step_by(9) {
            let same = pair[0].ops.iter().zip(&pair[1].ops).take_while(|(a, b)| a == b).count();
            let [a, b] = [&pair[0], &pair[1]].map(|workload| media(quick, workload, same));
            assert!(a == b, "{} media, {} of {}", a.len(), b.len(), pair[1]);
            let Some(one) = ones.iter().find(|one| pair[1].ops.starts_with(&one.ops)) else { continue };
            let all = media(thorough, one, one.ops.len());
            let left = media(quick, &pair[1], one.ops.len());
            assert!(left.is_subset(&all), "{} media, {} of {}", all.len(), left.len(), pair[1]);
            beginnings += 1;
        }
    }
    assert!(beginnings > 5, "{beginnings} beginnings");
}

/// If a medium gets the result of another recovery, since that read no block in which the two media
/// differ, its own recovery has the same result.
#[test]
fn a_recovery_that_reads_the_same_finds_the_same() {
    for inline in [false, true] {
        let base = base_image(inline).unwrap();
        let plan = Plan { recovery_every: 16, use_every: 8, ..Plan::quick(1) };
        let (mut taken, mut run) = (0, 0);
        for (seq, skeleton) in [(1, 3), (1, 11), (2, 4321), (2, 12_345), (2, 20_000)] {
            let workload = Catalogue::new(seq, 0).variants(skeleton).pop().unwrap();
            let mut explorer = Explorer::new(&base, plan);
            let recorded = explorer.record(&workload).unwrap();
            let mut seen = HashSet::new();
            for state in recorded.recording.states(plan.closing) {
                let hash = state.medium.difference_hash(&base);
                if !seen.insert(hash) {
                    continue;
                }
                let before = explorer.tally.distinct;
                let known = explorer.recover(hash, &state.medium);
                run += 1;
                if explorer.tally.distinct > before {
                    continue;
                }
                taken += 1;
                let anew = explorer.recover_anew(&state.medium, &Reads::of(&state.medium));
                assert_eq!(*known.recovered, anew, "{state:?} of {workload}");
            }
        }
        println!("{taken} of {run} media took the result of another");
        assert!(taken * 4 > run, "{taken} of {run} media took the result of another");
    }
}

/// The shrinks in the workloads have blocks to move: written blocks lie between the new end and the
/// old one.
#[test]
fn a_shrink_has_something_to_move() {
    for (kind, inline) in [(Kind::All, false), (Kind::Edges, true)] {
        let catalogue = Catalogue::of(kind, 1, 0);
        let explorer = Explorer::new(&base_image(inline).unwrap(), Plan::quick(1));
        let mut shrinks = 0;
        for workload in (0..catalogue.len()).filter_map(|skeleton| catalogue.variants(skeleton).pop()) {
            if !workload.ops.contains(&Op::Resize { bytes: IMAGE }) {
                continue;
            }
            let run = explorer.record(&workload).unwrap();
            let is_beyond = |event: &Event| match event {
                // The last block is a copy of the superblock, and does not count.
                Event::Write { offset, .. } => (IMAGE..DEVICE - BLOCK_SIZE as u64).contains(offset),
                _ => false,
            };
            assert!(run.recording.events.iter().any(is_beyond), "{workload}");
            shrinks += 1;
        }
        assert!(shrinks > 0);
    }
}
