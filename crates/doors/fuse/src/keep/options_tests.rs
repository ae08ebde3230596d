use super::*;
use crate::keep::steps::die_after;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_death_leaves_the_list_of_before_or_the_new_one() {
    const LISTS: [&str; 3] = ["commit=40,noplug", "new_name=sync,noatime,discard,commit=300", "commit=7"];
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    for last in 0..LISTS.len() {
        for store in 1.. {
            let area = Area::make().unwrap();
            let mut options = Options::load(&area).unwrap();
            for list in &LISTS[..last] {
                options.change(&area, list.as_bytes(), || Ok(())).unwrap();
            }
            let before = load(&area).unwrap();
            die_after(store);
            let changed = || options.change(&area, LISTS[last].as_bytes(), || Ok(())).unwrap();
            let died = catch_unwind(AssertUnwindSafe(changed)).is_err();
            die_after(0);
            let found = load(&area).unwrap();
            let mut after = before;
            after.add(&LISTS[last].parse().unwrap());
            assert_ne!(before, after);
            if !died {
                assert_eq!(found, after);
                assert!(store > 2, "there were deaths between stores");
                break;
            }
            assert!(found == before || found == after, "store {store} of {}: {found}", LISTS[last]);
        }
    }
    std::panic::set_hook(hook);
}

#[test]
fn a_change_that_is_refused_is_not_noted() {
    let area = Area::make().unwrap();
    let mut options = Options::load(&area).unwrap();
    assert_eq!(options.change(&area, b"commit=40", || Err(EINVAL)), Err(EINVAL));
    assert!(!area.has_options());
}
