#![allow(clippy::unwrap_used)]

use super::*;
use crate::disk::Disk;
use crate::run::{Case, Verdict};
use std::sync::atomic::AtomicBool;

/// Two log files are not synced, and the state lacks both, as a search leaves it that has no time
/// to shrink it.
#[test]
fn two_calls_are_named_where_no_single_one_helps() {
    let disk = Disk::new();
    let files = ["one", "two", "three"].map(|name| disk.create(name).unwrap());
    disk.settle();
    for file in &files {
        file.write_at(0, b"x").unwrap();
    }
    disk.tell("saved");
    let trace = disk.trace();
    let history = History::new(&trace, crate::Model::by_name("posix").unwrap());
    let checker = |case: &Case<'_>| {
        let disk = Disk::after(case.state.clone());
        let is_kept = |name| disk.read(name).is_ok_and(|bytes| bytes == b"x");
        match case.told.is_empty() || (is_kept("one") && is_kept("two")) {
            true => Verdict::Good,
            false => Verdict::Bad("lost".to_owned()),
        }
    };
    let (stop, budget, paths) = (AtomicBool::new(false), Budget::default(), Paths::of(&trace));
    let watched = Watched::new(&checker, None, &stop, None, 1);
    let explainer =
        Explainer { trace: &trace, paths: &paths, history: &history, watched: &watched, budget: &budget };
    let at = *history.points().end();
    let roots: Vec<u32> = history.pending(at).collect();
    let recipe = Recipe::new(at, Pick::Lose(roots.clone()));
    let shrunk = Shrunk { recipe, roots, message: "lost".to_owned(), checks: 0, is_cut: true };
    let explanation = explainer.explain(&shrunk);
    let calls: Vec<&str> = explanation.fixes.iter().map(|fix| fix.call.as_str()).collect();
    assert_eq!(calls, ["fsync(\"one\")", "fsync(\"two\")"], "{explanation:#?}");
    assert!(
        explanation.sentence.contains("together with") && explanation.sentence.contains(" prevent it: with")
    );
}
