//! The results of a run as text for a terminal, JSON, JUnit XML and SARIF for CI servers, and an
//! HTML page.

pub(crate) mod html;
pub(crate) mod junit;
pub(crate) mod sarif;
mod summary;

pub(crate) use summary::{Finding, Summary};

use crate::campaign::Report;
use crate::describe::count;
use crate::history::History;
use crate::recoveries::Recoveries;
use crate::run::{Ended, ONLY_COMPLETE};
use crate::trace::Trace;
use kedge_base::{is_acted_upon, printable};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// The most lines of the checker's output that the text shows besides the first one.
const CHECKER_LINES: usize = 4;
/// The text before the failures that lie before the first promise.
const EARLY: &str = "Before the first promise";
/// The most callers that are shown for a call.
const FRAMES_MAX: usize = 8;

/// A report and its context.
pub struct Told<'a> {
    pub report: &'a Report,
    pub trace: &'a Trace,
    /// The recording's name.
    pub name: &'a str,
    /// The checker, as the user gave it.
    pub checker: &'a str,
    /// Why reading the recording stopped before the end of the file, if it did.
    pub cut: Option<&'a str>,
}

impl Told<'_> {
    /// How much was tried, and why the search ended.
    pub fn coverage(&self) -> String {
        let outcome = &self.report.outcome;
        coverage_of(outcome.planned, outcome.unreached, outcome.ended)
    }

    /// The verdict in one line.
    pub fn verdict(&self) -> String {
        let of_search = self.verdict_of_search();
        match &self.report.again {
            Some(again) if again.has_failed() && of_search == ONLY_COMPLETE => again.verdict(),
            Some(again) => format!("{of_search}; {}", again.verdict()),
            None => of_search,
        }
    }

    fn verdict_of_search(&self) -> String {
        let (report, outcome) = (self.report, &self.report.outcome);
        let states = count(outcome.states, "distinct crash state");
        if let Some(why) = &outcome.broken {
            return format!("no verdict: {why}");
        }
        if let Some(why) = &report.fails_uncrashed {
            return format!("no verdict: the checker fails without any crash, on the complete state: {why}");
        }
        if outcome.states == 0 {
            return "no verdict: the search ended before any state was judged".to_owned();
        }
        if outcome.failing == 0 && !outcome.has_crash_states() {
            return ONLY_COMPLETE.to_owned();
        }
        match (outcome.failing, outcome.unreached) {
            (0, 0) => format!("no failure in {states} under {}", report.model.name),
            (0, _) => {
                format!("no failure so far, in {states} under {}; not all was tried", report.model.name)
            }
            (n, _) if report.failures.is_empty() => {
                format!("{n} of {states} fail under {}; none was examined", report.model.name)
            }
            (n, _) => format!(
                "{n} of {states} fail under {}, of {}{}",
                report.model.name,
                count(report.failures.len() as u64, "cause"),
                self.early().map_or_else(String::new, |early| format!("; {early}"))
            ),
        }
    }

    /// A text with the number of failures before the first promise, if there are any.
    fn early(&self) -> Option<String> {
        let outcome = &self.report.outcome;
        match outcome.failing_early {
            0 => None,
            n if n == outcome.failing => {
                Some("all of them before the first promise, with nothing to lose yet".to_owned())
            }
            n => Some(format!("{n} of them before the first promise, with nothing to lose yet")),
        }
    }

    /// A text about the effect of all missing calls together.
    pub fn mended(&self) -> Option<String> {
        let (states, failing) = self.report.mended?;
        let calls = self.report.failures.iter().map(|f| f.fixes.len() as u64).sum();
        let states = count(states, "state");
        Some(match (failing, calls) {
            (0, 1) => format!("With this call, none of {states} fails."),
            (0, _) => format!("With all {calls} missing calls put in, none of {states} fails."),
            (n, _) => format!("With {} put in, {n} of {states} still fail.", count(calls, "missing call")),
        })
    }

    /// A text with the duration of the run: search and explaining separately.
    pub fn took(&self) -> String {
        let (outcome, explaining) = (&self.report.outcome, &self.report.explaining);
        let search = format!(
            "searching took {:.1} s ({})",
            outcome.took.as_secs_f64(),
            count(outcome.states, "state")
        );
        match explaining.checks {
            0 => search,
            n => {
                format!("{search}, explaining {:.1} s ({})", explaining.took.as_secs_f64(), count(n, "check"))
            }
        }
    }

    /// A text that explaining reached its limit and what was left unexplained; `None` if it did
    /// not.
    pub fn explaining_cut(&self) -> Option<String> {
        let limit = self.report.explaining.cut_at?;
        let left = match self.report.unexplained {
            0 => "all failing states were examined, some incompletely".to_owned(),
            n => format!("{} not examined", count(n, "failing state")),
        };
        Some(format!(
            "explaining was cut off at its limit of {:.1} s (--explain): {left}",
            limit.as_secs_f64()
        ))
    }

    fn plain_text(&self) -> String {
        let mut text = format!("{}\n", self.verdict());
        if let Some(cut) = self.cut {
            writeln!(text, "the recording is not whole: {cut}; what comes before is used")
                .expect("strings take any text");
        }
        for (i, failure) in self.report.failures.iter().enumerate() {
            let is_first_early = failure.is_early && !self.report.failures[..i].iter().any(|f| f.is_early);
            if is_first_early {
                writeln!(text, "\n{EARLY}:").expect("strings take any text");
            }
            write!(
                text,
                "\n{}. {}\n{}   state:   {}\n",
                i + 1,
                failure.sentence,
                said(&failure.message),
                failure.state
            )
            .expect("strings take any text");
            for also in &failure.also {
                writeln!(text, "   prevented as well: {} (state {})", also.loss, also.state)
                    .expect("strings take any text");
            }
            for (call, stack) in failure.stacks() {
                writeln!(text, "   {call}").expect("strings take any text");
                for frame in stack.iter().take(FRAMES_MAX) {
                    writeln!(text, "     in {frame}").expect("strings take any text");
                }
            }
        }
        if let Some(mended) = self.mended() {
            writeln!(text, "\n{mended}").expect("strings take any text");
        }
        if self.report.unexplained > 0 && self.report.explaining.cut_at.is_none() {
            writeln!(text, "\n{} more failing states were not examined", self.report.unexplained)
                .expect("strings take any text");
        }
        if let (true, Some(first)) = (self.report.failures.is_empty(), self.report.outcome.failures.first()) {
            write!(text, "the first failing state is {}\n{}", first.recipe, said(&first.message))
                .expect("strings take any text");
        }
        for failure in self.report.again.iter().flat_map(|again| &again.failures) {
            let said = said(&failure.message);
            write!(text, "\n{}\n{said}   state:   {}\n", failure.sentence, failure.state)
                .expect("strings take any text");
        }
        if let Some(cut) = self.explaining_cut() {
            writeln!(text, "\n{cut}").expect("strings take any text");
        }
        writeln!(text, "\n{}; seed {}\n{}", self.coverage(), self.report.seed, self.took())
            .expect("strings take any text");
        if let Some(again) = &self.report.again {
            writeln!(text, "{}", again.coverage()).expect("strings take any text");
        }
        text
    }

    /// The report as JSON for programs. Later versions only add members.
    pub fn json(&self) -> Value {
        let outcome = &self.report.outcome;
        json!({
            "version": 1,
            "recording": self.name,
            "recording_cut": self.cut,
            "checker": self.checker,
            "model": self.report.model.name,
            "seed": self.report.seed,
            "verdict": self.verdict(),
            "passed": self.report.passed(),
            "complete": outcome.is_whole(),
            "coverage": self.coverage(),
            "states": outcome.states,
            "recipes": outcome.recipes,
            "systematic": outcome.planned,
            "systematic_not_tried": outcome.unreached,
            "failing": outcome.failing,
            "failing_before_first_promise": outcome.failing_early,
            "seconds": outcome.took.as_secs_f64(),
            "explain_seconds": self.report.explaining.took.as_secs_f64(),
            "explain_checks": self.report.explaining.checks,
            "explain_cut": self.explaining_cut(),
            "fails_uncrashed": self.report.fails_uncrashed,
            "broken": outcome.broken,
            "causes": self.report.failures,
            "mended_states": self.report.mended.map(|m| m.0),
            "mended_failing": self.report.mended.map(|m| m.1),
            "unexplained": self.report.unexplained,
            "again": self.report.again.as_ref().map(Recoveries::json),
        })
    }

    fn summary(&self) -> Summary<'_> {
        let (report, outcome) = (self.report, &self.report.outcome);
        let of_search = report.failures.iter().map(|failure| Finding {
            state: &failure.state,
            sentence: failure.sentence.clone(),
            message: &failure.message,
            in_recovery: false,
            losses: vec![(None, failure)],
            place: self.name.to_owned(),
        });
        let again = report.again.as_ref();
        let of_recoveries = again.into_iter().flat_map(|again| again.findings(|_| self.name.to_owned()));
        let took = outcome.took + report.explaining.took + again.map_or(Duration::ZERO, |again| again.took);
        Summary {
            name: self.name,
            model: report.model,
            checker: self.checker,
            seed: report.seed,
            verdict: self.verdict(),
            coverage: self.coverage(),
            is_whole: outcome.is_whole(),
            is_judged: outcome.broken.is_none()
                && report.fails_uncrashed.is_none()
                && outcome.states > 0
                && (report.failed() || report.passed()),
            failed: report.failed(),
            took: self.took(),
            seconds: took.as_secs_f64(),
            cuts: self.cut.iter().map(|cut| (*cut).to_owned()).collect(),
            explaining_cut: self.explaining_cut(),
            recoveries: again.map(Recoveries::coverage),
            findings: of_search.chain(of_recoveries).collect(),
            first: outcome.failures.first().map(|first| (first.recipe.to_string(), &*first.message)),
        }
    }
}

/// A report in each of its forms.
pub trait Rendered {
    /// Text for a terminal. Control characters are escaped: names, stacks and the checker's output
    /// are untrusted.
    fn text(&self) -> String;
    /// The JSON as text. It may be printed to a terminal, so control characters are escaped.
    fn json_text(&self) -> String;
    /// JUnit XML for CI servers.
    fn junit(&self) -> String;
    /// SARIF for code scanning. Files below `sources` are named relative to it.
    fn sarif(&self, sources: &Path) -> String;
    /// A self-contained HTML page.
    fn html(&self) -> String;
}

impl Rendered for Told<'_> {
    fn text(&self) -> String {
        printable(&self.plain_text())
    }

    fn json_text(&self) -> String {
        escape_json(&format!("{:#}\n", self.json()))
    }

    fn junit(&self) -> String {
        junit::render(&self.summary())
    }

    fn sarif(&self, sources: &Path) -> String {
        sarif::render(&self.summary(), sources)
    }

    fn html(&self) -> String {
        html::render(self, &History::new(self.trace, self.report.model))
    }
}

/// How many systematic states were tried, and why the search ended.
pub(crate) fn coverage_of(planned: u64, unreached: u64, ended: Ended) -> String {
    let systematic = match unreached {
        0 => format!("all {planned} systematic states were tried"),
        n => format!("{n} of {planned} systematic states were NOT tried"),
    };
    match ended {
        Ended::Covered => format!("{systematic}, and chance finds no other"),
        Ended::States => format!("the budget of states ended the search; {systematic}"),
        Ended::Time => format!("the budget of time ended the search; {systematic}"),
        Ended::Failures => format!("the limit of failures ended the search; {systematic}"),
        Ended::Stopped => format!("the search was interrupted; {systematic}"),
        Ended::Broken => "the search ended early".to_owned(),
    }
}

/// The lines of the checker's message that are shown: the first, which has the exit code, and the
/// last ones. The last line alone may be only the mark of a compiler, such as `^`.
fn last_lines(message: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = message.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.len() > CHECKER_LINES + 1 {
        let left_out = lines.len() - CHECKER_LINES;
        lines.splice(1..left_out, ["…"]);
    }
    lines
}

/// The checker's message as it is shown on a terminal.
pub(crate) fn said(message: &str) -> String {
    let lines = last_lines(message);
    let mut text = format!("   checker: {}\n", lines.first().unwrap_or(&""));
    for line in lines.iter().skip(1) {
        writeln!(text, "            {line}").expect("strings take any text");
    }
    text
}

/// Replaces control characters in JSON, where they occur only in strings, by escapes.
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            c if is_acted_upon(c) => write!(out, "\\u{:04x}", c as u32).expect("strings take any text"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text inside an element or attribute of XML or HTML. Characters that XML does not permit,
/// and those that reorder a line (bidi), become a box.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if is_acted_upon(c) || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{25a1}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
