//! The protocol keeps every guarantee in every state. Without any one of its rules it does not.
//!
//! `KEDGE_BOUNDS=2,1,2` explores two operations, one checkpoint and two crashes.

use kedge_protocol::explore::{Bounds, Explored, Protocol, Search, explore};
use kedge_protocol::rule::{Guarantee, Rule};
use kedge_protocol::world::Action;

fn print(what: &str, bounds: Bounds, found: &Explored) {
    println!(
        "{what}: {bounds:?}: {} states, {} steps, {} crash states, depth {}, {} violations",
        found.states,
        found.steps,
        found.crash_states,
        found.depth,
        found.violations.len()
    );
}

/// Reads `KEDGE_BOUNDS`: operations, checkpoints and crashes, as `3,2,2`.
fn bounds() -> Bounds {
    let Ok(text) = std::env::var("KEDGE_BOUNDS") else { return Bounds::QUICK };
    let numbers: Vec<u8> = text.split(',').filter_map(|number| number.parse().ok()).collect();
    let [operations, checkpoints, crashes] = numbers[..] else { panic!("KEDGE_BOUNDS={text}") };
    Bounds { operations, checkpoints, crashes, ..Bounds::QUICK }
}

fn lines(way: &[Action]) -> String {
    way.iter().map(|action| format!("{action:?}\n")).collect()
}

#[test]
fn the_protocol_keeps_its_guarantees() {
    let bounds = bounds();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = explore(Protocol { bounds, without: None }, Search::Depth { threads });
    print("all rules", bounds, &found);
    if let Some((name, way)) = found.violations.first() {
        panic!("{name}:\n{}", lines(way));
    }
    assert!(found.states > 1000, "hardly anything was explored");
}

#[test]
fn without_any_rule_a_guarantee_breaks() {
    let only = std::env::var("KEDGE_RULE").ok();
    let mut missed = Vec::new();
    for rule in Rule::ALL {
        if only.as_ref().is_some_and(|only| *only != format!("{rule:?}")) {
            continue;
        }
        if let Some(why) = rule.unexplored() {
            println!("without {rule:?}: not explored, {why}");
            continue;
        }
        let found = explore(
            Protocol { bounds: bounds_for(rule), without: Some(rule) },
            Search::Breadth { threads: 1 },
        );
        let broken: Vec<String> =
            found.violations.iter().map(|(name, way)| format!("{name} in {} steps", way.len())).collect();
        println!("without {rule:?}: breaks {}, after {} states", broken.join("; "), found.states);
        let expected = rule.breaks().map(Guarantee::name);
        if !found.violations.iter().any(|(name, _)| Some(*name) == expected) {
            missed.push(format!("without {rule:?} {expected:?} does not break"));
        }
        if only.is_some() {
            found.violations.iter().for_each(|(_, way)| println!("{}", lines(way)));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// Limits at which the protocol without this rule breaks a guarantee.
fn bounds_for(rule: Rule) -> Bounds {
    let quick = Bounds::QUICK;
    match rule {
        Rule::TailBoundsHead => Bounds { ring: 2, ..quick },
        Rule::BlockQuarantine => Bounds { operations: 3, checkpoints: 0, ..quick },
        Rule::DiscardQuarantine => Bounds { checkpoints: 0, discards: 1, ..quick },
        // A fault in a recovery shows only in the next recovery.
        Rule::NewEpoch => Bounds { operations: 3, checkpoints: 0, crashes: 2, ..quick },
        Rule::OverlayBeforeSlot => Bounds { operations: 1, checkpoints: 0, crashes: 2, ..quick },
        _ => quick,
    }
}
