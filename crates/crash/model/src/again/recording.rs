//! The recording of one program, or of its recovery, as a subject.

use super::{Crashed, Searched, Subject};
use crate::campaign::Campaign;
use crate::early::Early;
use crate::explore::Plan;
use crate::history::History;
use crate::model::Model;
use crate::recipe::{Pick, Recipe};
use crate::recoveries::FailingRecovery;
use crate::run::{Budget, Checker};
use crate::trace::Trace;
use std::borrow::Cow;
use std::sync::OnceLock;

pub(super) struct Recording<'a> {
    trace: Cow<'a, Trace>,
    model: Model,
    /// Built on demand: it is needed only if recoveries from the states are recorded, which is not
    /// the case at the last depth.
    history: OnceLock<History>,
}

impl<'a> Recording<'a> {
    pub fn of(trace: &'a Trace, model: Model) -> Recording<'a> {
        Recording { trace: Cow::Borrowed(trace), model, history: OnceLock::new() }
    }

    fn history(&self) -> &History {
        self.history.get_or_init(|| History::new(&self.trace, self.model))
    }
}

impl Subject for Recording<'_> {
    type Recipe = Recipe;
    type Recorded = Trace;
    const STATES_OF_ONE: u64 = 1000;

    fn crash_states<'s>(&'s self, budget: &Budget) -> Box<dyn FnMut() -> Recipe + 's> {
        let mut plan = Plan::new(&self.trace, self.history(), budget.seed, budget.order);
        Box::new(move || plan.next())
    }

    fn crashed(&self, recipe: &Recipe) -> Crashed {
        Crashed {
            state: self.history().state(recipe),
            recipe: recipe.clone(),
            within: String::new(),
            moment: self.trace.time_before(recipe.at),
        }
    }

    fn marks(&self, recipe: &Recipe) -> Vec<&str> {
        self.trace.marks(recipe.at as usize)
    }

    fn is_early(&self, recipe: &Recipe) -> bool {
        Early::of(&self.trace, self.history()).has(recipe.at)
    }

    fn whole(&self) -> String {
        Recipe::new(self.trace.events.len() as u32, Pick::All).to_string()
    }

    fn recovery(&self, recorded: Trace) -> Self {
        Recording { trace: Cow::Owned(recorded), model: self.model, history: OnceLock::new() }
    }

    fn end(&self) -> Option<i32> {
        self.trace.end()
    }

    fn is_idle(&self) -> bool {
        self.trace.is_unchanged()
    }

    fn search(&self, checker: &dyn Checker, budget: Budget) -> Searched {
        let report = Campaign { trace: &self.trace, model: self.model, checker, budget, hear: None }.run();
        let passed = report.passed();
        let causes = report.failures.into_iter().map(|explanation| FailingRecovery {
            state: explanation.state.clone(),
            sentence: explanation.sentence.clone(),
            message: explanation.message.clone(),
            is_refusal: false,
            explanation: Some(explanation),
            losses: Vec::new(),
        });
        let outcome = report.outcome;
        Searched {
            states: outcome.states,
            failing: outcome.failing,
            is_cut: outcome.ended.is_cut(outcome.unreached),
            broken: outcome.broken,
            passed,
            fails_uncrashed: report.fails_uncrashed,
            causes: causes.collect(),
            first: outcome.failures.into_iter().next().map(|f| (f.recipe.to_string(), f.message)),
        }
    }
}
