use super::{Entries, ToFree, first_entry};
use kedge_format::trees::{TreeEntry, TreeKind};

fn entry(kind: TreeKind, point: u32) -> TreeEntry {
    TreeEntry { kind, point, ..first_entry(0) }
}

/// The number of the tree or point that is freed next, with its heir if the two are merged.
fn next(entries: &Entries, quiet: bool) -> Option<(u32, u32)> {
    match entries.to_free(quiet) {
        ToFree::Nothing | ToFree::NeedsQuiet => None,
        ToFree::Tree(number, _) | ToFree::Point(number) => Some((number, 0)),
        ToFree::Merge((point, _), (heir, _)) => Some((point, heir)),
    }
}

#[test]
fn what_is_found_is_what_a_walk_over_all_entries_finds() {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    let mut random = SmallRng::seed_from_u64(1);
    let mut entries = Entries::default();
    for step in 0..3000 {
        let number = random.random_range(1..12);
        match random.random_range(0..3) {
            0 => drop(entries.remove(number)),
            1 => entries.change(number, |entry| entry.kind = TreeKind::Dying),
            _ => {
                let kind = if random.random() { TreeKind::Head } else { TreeKind::Point };
                entries.insert(number, entry(kind, random.random_range(0..number)));
            }
        }
        let heirs = |point: u32| -> Vec<u32> {
            entries.iter().filter(|(_, entry)| entry.point == point).map(|(number, _)| *number).collect()
        };
        for point in 1..12 {
            assert_eq!(entries.heirs(point).collect::<Vec<_>>(), heirs(point), "step {step}, point {point}");
        }
        let dying = entries.iter().find(|(_, entry)| entry.kind == TreeKind::Dying);
        for quiet in [false, true] {
            let point = entries.iter().find_map(|(number, entry)| match heirs(*number).as_slice() {
                _ if entry.kind != TreeKind::Point => None,
                [] => Some((*number, 0)),
                [heir] if quiet || entries[heir].kind == TreeKind::Point => Some((*number, *heir)),
                _ => None,
            });
            let expected = dying.map(|(number, _)| (*number, 0)).or(point);
            assert_eq!(next(&entries, quiet), expected, "step {step}");
            assert!(expected.is_none() || !entries.is_all_in_use(), "step {step}");
        }
        let left = entries.iter().any(|(number, entry)| match entry.kind {
            TreeKind::Head => false,
            TreeKind::Point => heirs(*number).len() < 2,
            TreeKind::Dying => true,
        });
        assert_eq!(entries.is_all_in_use(), !left, "step {step}");
    }
}
