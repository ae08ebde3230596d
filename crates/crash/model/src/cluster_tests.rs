//! The common clock, the order of states, and the names of states.

use super::clock::{BadState, Cluster};
use super::plan::Plan;
use crate::model::Model;
use crate::recipe::Pick;
use crate::state::ROOT;
use crate::trace::{Call, Event, Trace};

fn event(time: u64, call: Call) -> Event {
    Event { time, pid: 1, tid: 1, errno: 0, call, stack: Vec::new() }
}

fn create(ino: u64, name: &[u8]) -> Call {
    let (mode, uid, gid) = (0o100_644, 0, 0);
    Call::Create { dir: ROOT, name: name.to_vec(), ino, mode, uid, gid, target: None }
}

fn mark(text: &str) -> Call {
    Call::Mark { text: text.to_owned() }
}

/// Node `a` makes a file and syncs its directory, then a promise is made, then `b` makes a file.
fn cluster() -> Cluster {
    let fsync = Call::Fsync { ino: ROOT, datasync: false, since: 2 };
    let a = [event(1, Call::Baseline), event(10, create(2, b"x")), event(20, fsync), event(30, mark("done"))];
    let b = [event(2, Call::Baseline), event(40, create(2, b"y")), event(50, Call::End { code: 0 })];
    let trace = |events: &[Event]| Trace { events: events.to_vec() };
    let model = Model::by_name("posix").expect("a model");
    Cluster::new(vec![("a".to_owned(), trace(&a)), ("b".to_owned(), trace(&b))], model)
}

#[test]
fn crash_points_are_consistent_cuts_of_the_common_clock() {
    let at: Vec<Vec<u32>> = cluster().moments().iter().map(|m| m.at.clone()).collect();
    // Both recordings have the promise at the same moment.
    assert_eq!(at, [[1, 1], [2, 1], [3, 1], [4, 2], [4, 3], [4, 4]]);
}

#[test]
fn a_promise_counts_for_every_node_and_a_sync_covers_what_it_covered() {
    let cluster = cluster();
    assert_eq!(cluster.traces[1].events[1].call, mark("done"));
    let recipes = cluster.all(3, &Pick::Durable);
    assert_eq!(cluster.told(&recipes), ["done"]);
    assert!(cluster.states(&recipes)[0].find(b"x").is_some(), "its name was synced before the promise");
    assert!(cluster.is_early(&cluster.all(2, &Pick::All)) && !cluster.is_early(&recipes));
}

#[test]
fn a_state_has_a_directory_for_each_node() {
    let cluster = cluster();
    let joined = cluster.join(&cluster.states(&cluster.all(5, &Pick::All)));
    assert!(joined.find(b"a/x").is_some() && joined.find(b"b/y").is_some());
    assert!(joined.find(b"a/y").is_none() && joined.find(b"x").is_none());
    let states = cluster.states(&cluster.all(5, &Pick::All));
    for (name, state) in cluster.names.iter().zip(&states) {
        assert_eq!(joined.below(name).map(|tree| tree.digest()), Some(state.digest()), "{name}");
    }
    assert!(joined.below("c").is_none());
    let joined = cluster.join(&cluster.states(&cluster.all(5, &Pick::Durable)));
    assert!(joined.find(b"a/x").is_some() && joined.find(b"b").is_some() && joined.find(b"b/y").is_none());
}

#[test]
fn all_nodes_alike_come_first_then_one_that_differs() {
    let cluster = cluster();
    let mut plan = Plan::new(&cluster, 1);
    let kinds: Vec<(usize, usize)> = std::iter::from_fn(|| (!plan.is_random()).then(|| plan.next()))
        .take(2000)
        .map(|recipes| {
            let moment = cluster.moment_of(&recipes).expect("each state is at one moment");
            (moment, recipes.iter().filter(|r| r.pick != recipes[0].pick).count())
        })
        .collect();
    // The order begins with the end and the promise, with all nodes in the same kind of state.
    assert_eq!(kinds[..4], [(5, 0), (5, 0), (3, 0), (3, 0)]);
    let first_different = kinds.iter().position(|(_, different)| *different > 0).expect("one differs");
    assert!(kinds[..first_different].iter().any(|(moment, _)| *moment == 1), "before the sync");
    let (taken, left) = plan.finish();
    assert!(taken as usize >= kinds.len() - 1 && left == 0, "{taken} taken, {left} left");
}

#[test]
fn a_state_is_found_by_its_name() {
    let cluster = cluster();
    let mut recipes = cluster.all(4, &Pick::Durable);
    recipes[1].pick = Pick::Lose(vec![0]);
    let name = cluster.name(&recipes);
    assert_eq!(name, "a=4.durable,b=3.lose-0");
    assert_eq!(cluster.parse(&name), Ok(recipes));
    assert!(matches!(cluster.parse("a=4.durable"), Err(BadState::Form(..))));
    assert!(matches!(cluster.parse("a=4,c=3"), Err(BadState::Form(..))));
    // Node a made its promise before b made a file, so this state is impossible.
    assert!(matches!(cluster.parse("a=2,b=3"), Err(BadState::Moment(..))));
}
