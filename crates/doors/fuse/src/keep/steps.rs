//! For tests: a death at a step of a change, and rules that are broken on purpose.

use std::cell::{Cell, RefCell};

/// A moment of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Never,
    /// The entry is written, the change not made.
    Begun,
    /// The record is in the log and noted, and cannot be durable.
    Marked,
    /// The change is made, without an outcome.
    Made,
    /// The outcome is noted, and the reply not sent.
    Finished,
}

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    Nothing,
    /// A request that is sent again is served as a new one.
    AnswerRepeated,
    /// Changes whose record is durable are made again.
    MarkIgnored,
    /// Pins of the last life are forgotten.
    OrphanDropped,
    /// All writes are made again, also those whose bytes have newer values.
    OlderValueAgain,
    /// The journal is freed although what was made again is not durable, and an fsync that is sent
    /// again returns at once.
    UnforcedIsDurable,
}

thread_local! {
    static DEATH: RefCell<(Step, Box<dyn Fn()>)> = RefCell::new((Step::Never, Box::new(|| ())));
    static REDOING: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) };
}

/// The calling thread panics at this step, after `first`.
#[cfg(test)]
pub(crate) fn die_at(step: Step, first: Box<dyn Fn()>) {
    DEATH.set((step, first));
}

/// Calls `each` after each change that the calling thread makes again.
#[cfg(test)]
pub(crate) fn redoing(each: Option<Box<dyn Fn()>>) {
    REDOING.set(each);
}

pub(crate) fn redone() {
    if cfg!(test) {
        REDOING.with_borrow(|each| {
            if let Some(each) = each {
                each();
            }
        });
    }
}

#[cfg(test)]
pub(crate) fn break_rule(rule: Broken) {
    BROKEN.set(rule);
}

pub(crate) fn at(step: Step) {
    if cfg!(test) {
        DEATH.with_borrow(|(death, first)| {
            if *death == step {
                first();
                panic!("dies at {step:?}");
            }
        });
    }
}

pub(crate) fn is_broken(rule: Broken) -> bool {
    cfg!(test) && BROKEN.get() == rule
}
