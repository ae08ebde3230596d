use super::*;
use std::collections::{BTreeSet, HashSet};

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
            assert!(workload.settled < workload.ops.len(), "{workload}");
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
        for pairs in exchanges(&[*core]) {
            assert_eq!(core.exchanged(pairs).exchanged(pairs), *core);
            assert!(all.contains(&core.exchanged(pairs)), "{core:?}");
        }
    }
}

/// Returns a catalogue of these skeletons, whether they are kept or not.
fn catalogue_of(skeletons: Vec<Vec<Core>>) -> Catalogue {
    let (seq, cores) = (skeletons[0].len() as u8, Vec::new());
    Catalogue { kind: Kind::All, seq, seed: 0, skeletons, cores }
}

/// A skeleton that is left out has the same operations as one that is kept, with names exchanged.
#[test]
fn skeletons_that_are_left_out_differ_by_names_alone() {
    let all = Core::all();
    let pairs = all.iter().flat_map(|a| all.iter().map(|b| vec![*a, *b]));
    // `Core::Exchange` sorts its names, and exchanging names in the text does not. So exchanges are
    // left out.
    let left_out =
        |cores: &Vec<Core>| !is_kept(cores) && !cores.iter().any(|core| matches!(core, Core::Exchange(..)));
    let mut count = 0;
    for cores in pairs.filter(left_out).step_by(97) {
        let exchanged = |pairs: u8| cores.iter().map(|core| core.exchanged(pairs)).collect::<Vec<Core>>();
        let pairs = exchanges(&cores).find(|pairs| is_kept(&exchanged(*pairs))).expect("one is kept");
        let [out, kept] =
            [cores.clone(), exchanged(pairs)].map(|cores| catalogue_of(vec![cores]).variants(0));
        assert_eq!(out.len(), kept.len(), "{cores:?}");
        for (out, kept) in out.iter().zip(&kept) {
            // The names of a directory are sorted when it is emptied, so the order of the lines may
            // differ.
            let sorted = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
            let renamed = with_names_exchanged(&print_ops(&out.ops), pairs);
            assert_eq!(sorted(renamed), sorted(print_ops(&kept.ops)), "{cores:?}");
        }
        count += 1;
    }
    assert!(count > 150, "{count} skeletons");
}

fn with_names_exchanged(ops: &str, pairs: u8) -> String {
    let names = FILES.into_iter().filter(|name| pair(name) & pairs != 0);
    let to = |name: &str, mark: &str| format!("\"{mark}{name}\"");
    let marked = names.clone().fold(ops.to_owned(), |ops, name| ops.replace(&to(name, ""), &to(name, "*")));
    names.fold(marked, |ops, name| ops.replace(&to(name, "*"), &to(other(name, pairs), "")))
}

/// A fork prepares `foo`, so `foo` and `bar` are not interchangeable after it.
#[test]
fn a_fork_is_followed_by_operations_on_both_names() {
    let catalogue = Catalogue::new(2, 0);
    for core in [Core::Rename("foo", "bar", true), Core::Rename("bar", "foo", true), Core::Append("bar")] {
        assert!(catalogue.skeletons.contains(&vec![Core::Fork(TREE), core]), "{core:?}");
    }
}

/// Crashes that a workload leaves to others are judged in exactly one of them.
#[test]
fn each_crash_is_judged_once() {
    for cores in Catalogue::new(2, 0).skeletons.iter().step_by(499) {
        let (one, two) = (catalogue_of(vec![cores[..1].to_vec()]), catalogue_of(vec![cores.clone()]));
        let mut judged: HashSet<Vec<Op>> = HashSet::new();
        let mut judge = |workload: Workload, again: bool| {
            for at in workload.settled..workload.ops.len() {
                let new = judged.insert(workload.ops[..=at].to_vec());
                assert!(new || again, "operation {at} of {workload}");
            }
        };
        two.variants(0).into_iter().for_each(|workload| judge(workload, false));
        one.variants(0).into_iter().for_each(|workload| judge(workload, true));
        for settle in [Some(Op::Sync), None] {
            let (mut script, mut all) = (two.script(), Vec::new());
            let needed = script.prepare(cores[0]).map_or(0, |()| script.ops.len());
            let settled = if settle.is_some() { needed + 1 } else { 0 };
            let _ = two.settle(cores, settle, &mut all);
            for (ops, _) in all {
                for at in settled..ops.len() {
                    assert!(judged.contains(&ops[..=at]), "operation {at} of {}", print_ops(&ops));
                }
            }
        }
    }
}
