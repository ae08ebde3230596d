use super::*;
use std::collections::HashSet;

#[test]
fn all_operations_of_a_workload_succeed() {
    for kind in [Kind::All, Kind::Edges] {
        all_operations_succeed(&Catalogue::of(kind, 1, 0));
    }
}

fn all_operations_succeed(catalogue: &Catalogue) {
    for skeleton in 0..catalogue.len() {
        let variants = catalogue.variants(skeleton);
        assert!(variants.len() >= 3, "{:?}", catalogue.skeletons[skeleton as usize]);
        for workload in variants {
            let mut model = Model::new();
            for op in &workload.ops {
                assert!(model.apply(op).unwrap().outcome.is_ok(), "{op:?} in {workload}");
            }
            let (ops, settled) = (&workload.ops, workload.settled);
            assert!(settled == 0 || ops[settled - 1] == Op::Sync || ops[settled] == Op::Freeze);
        }
    }
}

#[test]
fn a_workload_is_found_by_its_name() {
    for seq in 1..=3 {
        let catalogue = Catalogue::new(seq, 7);
        for skeleton in (0..catalogue.len()).step_by(1009).take(30) {
            for workload in catalogue.variants(skeleton).into_iter().step_by(5) {
                let id: WorkloadId = workload.id.to_string().parse().unwrap();
                assert_eq!(Catalogue::workload(Kind::All, id), Some(workload));
            }
        }
    }
}

#[test]
fn no_workload_comes_twice() {
    let catalogue = Catalogue::new(1, 0);
    let mut seen = HashSet::new();
    for workload in (0..catalogue.len()).flat_map(|i| catalogue.variants(i)) {
        assert!(seen.insert(workload.ops.clone()), "{workload}");
    }
    assert!(seen.len() > 500, "{} workloads", seen.len());
}

#[test]
fn exchanging_the_names_twice_changes_nothing() {
    let all: HashSet<Core> = Core::all().into_iter().collect();
    for core in &all {
        assert_eq!(core.exchanged().exchanged(), *core);
        assert!(all.contains(&core.exchanged()), "{core:?}");
    }
}
