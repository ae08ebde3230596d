//! The results of a cluster's run as text and as JSON.

use super::campaign::ClusterReport;
use super::explain::ClusterExplanation;
use crate::describe::count;
use crate::report::{coverage_of, escape_json, said};
use kedge_base::printable;
use serde_json::{Value, json};
use std::fmt::Write;

/// A report and its context.
pub struct ClusterTold<'a> {
    pub report: &'a ClusterReport,
    /// The names of the nodes.
    pub nodes: &'a [String],
    /// The directory of the recordings.
    pub name: &'a str,
    /// The checker, as the user gave it.
    pub checker: &'a str,
    /// Which recordings are not whole, and why.
    pub cut: &'a [String],
}

impl ClusterTold<'_> {
    /// The verdict in one line.
    pub fn verdict(&self) -> String {
        let report = self.report;
        if let Some(why) = &report.outcome.broken {
            return format!("no verdict: {why}");
        }
        if let Some(why) = &report.outcome.fails_uncrashed {
            return format!("no verdict: the checker fails without any crash, on the complete state: {why}");
        }
        if report.outcome.states == 0 {
            return "no verdict: the search ended before any state was judged".to_owned();
        }
        let states = count(report.outcome.states, "distinct crash state");
        let of = format!("{states} of {} nodes", self.nodes.len());
        let early = match report.outcome.failing_early {
            0 => String::new(),
            n if n == report.outcome.failing => "; all of them before the first promise".to_owned(),
            n => format!("; {n} of them before the first promise"),
        };
        match (report.outcome.failing, report.outcome.unreached) {
            (0, 0) => format!("no failure in {of} under {}", report.outcome.model.name),
            (0, _) => {
                format!("no failure so far, in {of} under {}; not all was tried", report.outcome.model.name)
            }
            (n, _) => format!("{n} of {of} fail under {}{early}", report.outcome.model.name),
        }
    }

    /// Failing states that no cause accounts for.
    fn unexplained(&self) -> u64 {
        let explained: u64 = self.report.causes.iter().map(|cause| 1 + cause.also).sum();
        self.report.outcome.failing.saturating_sub(explained)
    }

    fn coverage(&self) -> String {
        coverage_of(self.report.outcome.planned, self.report.outcome.unreached, self.report.outcome.ended)
    }

    /// Text for a terminal. Control characters are escaped.
    pub fn text(&self) -> String {
        printable(&self.plain_text())
    }

    fn plain_text(&self) -> String {
        let report = self.report;
        let mut text = format!("{}\n", self.verdict());
        let mut line = |words: String| writeln!(text, "{words}").expect("strings take any text");
        for cut in self.cut {
            line(format!("a recording is not whole: {cut}"));
        }
        for (number, cause) in report.causes.iter().enumerate() {
            line(format!("\n{}. {}", number + 1, self.opening(cause)));
            for loss in &cause.losses {
                line(format!("   {}: {}", loss.node, loss.explanation.sentence));
            }
            line(said(&cause.message).trim_end().to_owned());
            line(format!("   state:   {}", cause.state));
            if let Some((states, failing)) = cause.mended {
                let states = count(states, "state");
                line(match failing {
                    0 => format!("   With the missing calls put in, none of {states} of the cluster fails."),
                    n => format!(
                        "   With the missing calls put in, {n} of {states} of the cluster still fail."
                    ),
                });
            }
            if cause.also > 0 {
                line(format!("   {} prevented as well", count(cause.also, "other failing state")));
            }
        }
        if let (true, Some(first)) = (report.causes.is_empty(), report.outcome.failures.first()) {
            line(format!("the first failing state is {}", first.name));
            line(said(&first.message).trim_end().to_owned());
        }
        if self.unexplained() > 0 && report.outcome.is_judged() {
            line(format!("\n{} not examined", count(self.unexplained(), "failing state")));
        }
        if let Some(limit) = report.explaining.cut_at {
            line(format!("explaining was cut off at its limit of {:.1} s (--explain)", limit.as_secs_f64()));
        }
        line(format!("\n{}; seed {}", self.coverage(), report.outcome.seed));
        line(format!(
            "searching took {:.1} s ({}), explaining {:.1} s ({})",
            report.outcome.took.as_secs_f64(),
            count(report.outcome.states, "state"),
            report.explaining.took.as_secs_f64(),
            count(report.explaining.checks, "check")
        ));
        text
    }

    fn opening(&self, cause: &ClusterExplanation) -> String {
        let when = match &cause.told {
            Some(told) => format!("after the promise {told:?}"),
            None => "before the first promise".to_owned(),
        };
        let lossy: Vec<&str> = cause.losses.iter().map(|loss| loss.node.as_str()).collect();
        let what = match lossy.len() {
            0 => "no node loses anything, and the state does not pass the check".to_owned(),
            n if n == self.nodes.len() => "every node loses something".to_owned(),
            _ => format!("{} must lose something, and the others nothing", lossy.join(" and ")),
        };
        format!("All nodes lose power {when}: {what}.")
    }

    /// JSON for programs. Members are only ever added.
    pub fn json(&self) -> Value {
        let report = self.report;
        json!({
            "version": 1,
            "recording": self.name,
            "recording_cut": self.cut,
            "nodes": self.nodes,
            "checker": self.checker,
            "model": report.outcome.model.name,
            "seed": report.outcome.seed,
            "verdict": self.verdict(),
            "passed": report.outcome.is_judged() && report.outcome.failing == 0,
            "complete": report.outcome.is_whole(),
            "coverage": self.coverage(),
            "states": report.outcome.states,
            "systematic": report.outcome.planned,
            "systematic_not_tried": report.outcome.unreached,
            "failing": report.outcome.failing,
            "failing_before_first_promise": report.outcome.failing_early,
            "seconds": report.outcome.took.as_secs_f64(),
            "explain_seconds": report.explaining.took.as_secs_f64(),
            "explain_checks": report.explaining.checks,
            "explain_cut": report.explaining.cut_at.is_some(),
            "fails_uncrashed": report.outcome.fails_uncrashed,
            "broken": report.outcome.broken,
            "causes": report.causes,
            "unexplained": self.unexplained(),
        })
    }

    /// The JSON as text, without control characters.
    pub fn json_text(&self) -> String {
        escape_json(&format!("{:#}\n", self.json()))
    }
}
