#![allow(clippy::unwrap_used)]

use super::*;
use crate::disk::Disk;
use crate::explore::{Plan, SearchOrder};
use crate::model::Model;
use crate::run::{Budget, Case, Search, Verdict};

/// Appends records to a log and promises each. The last record is not synced.
fn appends(count: usize) -> Trace {
    let disk = Disk::new();
    let log = disk.create("log").unwrap();
    disk.sync("").unwrap();
    for n in 0..count {
        log.append(&[n as u8; 100]).unwrap();
        if n + 1 < count {
            log.sync_data().unwrap();
        }
        disk.tell(&n.to_string());
    }
    disk.trace()
}

fn history(trace: &Trace) -> History {
    History::new(trace, Model::by_name("posix").unwrap())
}

/// How many states are judged up to the first failure.
fn states_to_failure(trace: &Trace, order: SearchOrder) -> u64 {
    let history = history(trace);
    let checker = |case: &Case<'_>| {
        let len = case.state.content(b"log").map_or(0, |bytes| bytes.len());
        match len >= case.told.len() * 100 {
            true => Verdict::Good,
            false => Verdict::Bad("too short".to_owned()),
        }
    };
    let budget = Budget { failures: Some(1), order, ..Budget::default() };
    let outcome = Search { trace, history: &history, checker: &checker, budget, hear: None }.run();
    assert_eq!(outcome.failing, 1);
    outcome.states
}

#[test]
fn states_that_repeat_an_update_come_after_one_of_them() {
    let count = 40;
    let trace = appends(count);
    assert_eq!(states_to_failure(&trace, SearchOrder::Updates), 2);
    assert!(states_to_failure(&trace, SearchOrder::Turns) > 2 * count as u64);
}

/// A recording that is ten times as long has no more classes.
#[test]
fn the_number_of_representatives_does_not_grow_with_repetition() {
    let number = |count: usize| {
        let trace = appends(count);
        let history = history(&trace);
        let mut plan = Plan::new(&trace, &history, 1, SearchOrder::Updates);
        let first = plan.representatives();
        while !plan.is_random() {
            plan.next();
        }
        let (taken, left) = plan.finish();
        assert!(left == 0 && taken > first as u64);
        first
    };
    // A log that reaches its second page has additional classes.
    assert_eq!(number(10), number(30));
    assert!(number(400) <= 3 * number(10), "{} and {}", number(400), number(10));
}

#[test]
fn states_after_a_promise_come_first() {
    let trace = appends(5);
    let history = history(&trace);
    let first_promise = trace.events.iter().position(|event| is_promise(&event.call)).unwrap();
    let mut plan = Plan::new(&trace, &history, 1, SearchOrder::Updates);
    let representatives: Vec<Recipe> = (0..plan.representatives()).map(|_| plan.next()).collect();
    let is_early = |recipe: &Recipe| recipe.at as usize <= first_promise;
    let late = representatives.iter().take_while(|recipe| !is_early(recipe)).count();
    assert!(late > 2 && representatives[late..].iter().all(is_early), "{representatives:?}");
    assert!(representatives.len() > late + 2, "{representatives:?}");
    // The state at the last promise comes first.
    assert_eq!(representatives[0], Recipe::new(*history.points().end(), Pick::Durable));
    let unique: HashSet<&Recipe> = representatives.iter().collect();
    assert_eq!(unique.len(), representatives.len());
}
