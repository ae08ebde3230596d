//! For tests: a death at a step of a request, and rules that are broken on purpose.

use super::injected;
pub(crate) use super::step::Step;
use std::cell::{Cell, RefCell};

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    Nothing,
    /// A request that is sent again is served as a new one.
    AnswerRepeated,
    /// A change that the journal does not cover is served as a new one, although it is made.
    ForcedRepeated,
    /// Changes whose record is durable are made again.
    MarkIgnored,
    /// The first word of a field, which makes it valid, is stored before the others.
    FirstWordFirst,
    /// What an older use of the journal has left is taken for an entry.
    OldEntryTaken,
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
    /// Stores to the memory until the death, while it is above 0; then those that were made.
    static STORES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) };
}

/// The calling thread panics at this step, after `first`.
#[cfg(test)]
pub(crate) fn die_at(step: Step, first: Box<dyn Fn()>) {
    DEATH.set((step, first));
}

/// The calling thread panics after this many stores to the memory; 0: never. Returns the number of
/// stores since the last call.
#[cfg(test)]
pub(crate) fn die_after(stores: u64) -> u64 {
    STORES.replace((stores, 0)).1
}

/// Calls `each` after each change that the calling thread makes again.
#[cfg(test)]
pub(crate) fn redoing(each: Option<Box<dyn Fn()>>) {
    REDOING.set(each);
}

/// The life of this process begins.
pub(crate) fn begin(life: u64) {
    if super::INJECTS {
        injected::begin(life);
    }
}

pub(crate) fn redone(opcode: u32) {
    at(Step::Redone, opcode);
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

/// A request of this kind is at this step.
pub(crate) fn at(step: Step, opcode: u32) {
    if cfg!(test) {
        DEATH.with_borrow(|(death, first)| {
            if *death == step {
                first();
                panic!("dies at {step:?}");
            }
        });
    }
    if super::INJECTS {
        injected::at(step, opcode);
    }
}

/// A word of the memory was stored.
#[inline]
pub(crate) fn stored() {
    if cfg!(test) {
        let (left, made) = STORES.get();
        STORES.set((left.saturating_sub(1), made + 1));
        assert!(left != 1, "dies after {made} stores");
    }
}

#[inline]
pub(crate) fn is_broken(rule: Broken) -> bool {
    cfg!(test) && BROKEN.get() == rule
}
