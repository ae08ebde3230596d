//! For tests: kills a thread at a step of a request, and breaks rules on purpose.

use super::injected;
pub(crate) use super::step::Step;
use std::cell::{Cell, RefCell};

/// A rule that a test breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    Nothing,
    /// A resent request is served like a new one, although its change is made.
    AnswerRepeated,
    /// A resent request outside the journal is served like a new one, although its change is made.
    ForcedRepeated,
    /// Changes are redone although their record is durable.
    MarkIgnored,
    /// The first word of a field, which makes the field valid, is stored before the others.
    FirstWordFirst,
    /// Bytes from an earlier use of the journal are taken for an entry.
    OldEntryTaken,
    /// The pins of the last life are ignored.
    OrphanDropped,
    /// All writes are redone, even with bytes that have newer values.
    OlderValueAgain,
    /// Times are redone that are older than those of a later, durable change of the content.
    OlderTimeAgain,
    /// The bits that a redone change of content clears are cleared after it.
    BitsClearedLate,
    /// Marks of old lives are not renewed, and each start of a server takes a life.
    LivesUsedUp,
    /// The journal is freed although the redone changes are not durable, and a resent fsync returns
    /// at once.
    UnforcedIsDurable,
}

thread_local! {
    static DEATH: RefCell<(Step, Box<dyn Fn()>)> = RefCell::new((Step::Never, Box::new(|| ())));
    static REDOING: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
    /// The number of stores to the memory until the death (0 for none), and the number of stores
    /// made.
    static STORES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static BROKEN: Cell<Broken> = const { Cell::new(Broken::Nothing) };
}

/// Makes the calling thread call `first` and then panic at this step.
#[cfg(test)]
pub(crate) fn die_at(step: Step, first: Box<dyn Fn()>) {
    DEATH.set((step, first));
}

/// Makes the calling thread panic after this many stores to the memory; 0 means never. Returns the
/// number of stores since the last call.
#[cfg(test)]
pub(crate) fn die_after(stores: u64) -> u64 {
    STORES.replace((stores, 0)).1
}

/// Makes the calling thread call `each` after each change that it redoes.
#[cfg(test)]
pub(crate) fn redoing(each: Option<Box<dyn Fn()>>) {
    REDOING.set(each);
}

/// Called at the begin of this process's life.
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

/// Called when a request of this kind reaches this step.
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

/// Called after each store of a word to the memory.
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
