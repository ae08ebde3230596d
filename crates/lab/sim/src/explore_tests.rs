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

/// The shrinks of the workloads are no idle ones: written blocks lie between the new end and the
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
                // Not a copy of the superblock.
                Event::Write { offset, .. } => (IMAGE..DEVICE - BLOCK_SIZE as u64).contains(offset),
                _ => false,
            };
            assert!(run.recording.events.iter().any(is_beyond), "{workload}");
            shrinks += 1;
        }
        assert!(shrinks > 0);
    }
}
