//! The results of a cluster's run as text and as JSON.

use super::campaign::ClusterReport;
use super::clock::Cluster;
use super::html;
use super::manifest::{Manifest, recording_of};
use crate::describe::count;
use crate::recoveries::Recoveries;
use crate::report::{Finding, Rendered, Summary, coverage_of, escape_json, junit, said, sarif};
use crate::run::ONLY_COMPLETE;
use kedge_base::printable;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// A report and its context.
pub struct ClusterTold<'a> {
    pub report: &'a ClusterReport,
    pub cluster: &'a Cluster,
    /// The directory of the recordings.
    pub name: &'a str,
    /// The checker, as the user gave it.
    pub checker: &'a str,
    /// The incomplete recordings, each with the reason.
    pub cut: &'a [String],
}

impl ClusterTold<'_> {
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
        if report.outcome.failing == 0 && !report.outcome.has_crash_states() {
            return ONLY_COMPLETE.to_owned();
        }
        let states = count(report.outcome.states, "distinct crash state");
        let of = format!("{states} of {} nodes", self.cluster.len());
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

    /// The number of failing states that no cause explains.
    fn unexplained(&self) -> u64 {
        let explained: u64 = self.report.causes.iter().map(|cause| 1 + cause.also).sum();
        self.report.outcome.failing.saturating_sub(explained)
    }

    /// A text with the duration of the run: search and explaining separately.
    fn took(&self) -> String {
        let (outcome, explaining) = (&self.report.outcome, &self.report.explaining);
        format!(
            "searching took {:.1} s ({}), explaining {:.1} s ({})",
            outcome.took.as_secs_f64(),
            count(outcome.states, "state"),
            explaining.took.as_secs_f64(),
            count(explaining.checks, "check")
        )
    }

    fn explaining_cut(&self) -> Option<String> {
        let limit = self.report.explaining.cut_at?;
        Some(format!("explaining was cut off at its limit of {:.1} s (--explain)", limit.as_secs_f64()))
    }

    fn coverage(&self) -> String {
        coverage_of(self.report.outcome.planned, self.report.outcome.unreached, self.report.outcome.ended)
    }

    fn plain_text(&self) -> String {
        let report = self.report;
        let mut text = format!("{}\n", self.verdict());
        let mut line = |words: String| writeln!(text, "{words}").expect("strings take any text");
        for cut in self.cut {
            line(format!("a recording is not whole: {cut}"));
        }
        let nodes = &self.cluster.names;
        for (number, cause) in report.causes.iter().enumerate() {
            line(format!("\n{}. {}", number + 1, cause.opening(nodes)));
            for loss in &cause.losses {
                line(format!("   {}: {}", loss.node, loss.explanation.sentence));
            }
            line(said(&cause.message).trim_end().to_owned());
            line(format!("   state:   {}", cause.state));
            if let Some(effect) = cause.effect() {
                line(format!("   {effect}"));
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
        for failure in report.again.iter().flat_map(|again| &again.failures) {
            line(format!("\n{}", failure.sentence));
            line(format!("{}   state:   {}", said(&failure.message), failure.state));
        }
        if let Some(cut) = self.explaining_cut() {
            line(cut);
        }
        line(format!("\n{}; seed {}\n{}", self.coverage(), report.outcome.seed, self.took()));
        if let Some(again) = &report.again {
            line(again.coverage());
        }
        text
    }

    /// The report as JSON for programs. Later versions only add members.
    pub fn json(&self) -> Value {
        let report = self.report;
        json!({
            "version": 1,
            "recording": self.name,
            "recording_cut": self.cut,
            "nodes": self.cluster.names,
            "checker": self.checker,
            "model": report.outcome.model.name,
            "seed": report.outcome.seed,
            "verdict": self.verdict(),
            "passed": report.passed(),
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
            "again": report.again.as_ref().map(Recoveries::json),
        })
    }

    fn summary(&self) -> Summary<'_> {
        let (report, outcome) = (self.report, &self.report.outcome);
        let recording = |node: Option<&str>| {
            let file = node.map_or_else(|| Manifest::FILE.to_owned(), recording_of);
            Path::new(self.name).join(file).to_string_lossy().into_owned()
        };
        let of_search = report.causes.iter().map(|cause| Finding {
            state: &cause.state,
            sentence: cause.sentence(&self.cluster.names),
            message: &cause.message,
            in_recovery: false,
            place: recording(cause.losses.first().map(|loss| &*loss.node)),
            losses: cause.losses.iter().map(|loss| (Some(&*loss.node), &loss.explanation)).collect(),
        });
        let again = report.again.as_ref();
        let of_recoveries = again.into_iter().flat_map(|again| again.findings(recording));
        let took = outcome.took + report.explaining.took + again.map_or(Duration::ZERO, |again| again.took);
        Summary {
            name: self.name,
            model: outcome.model,
            checker: self.checker,
            seed: outcome.seed,
            verdict: self.verdict(),
            coverage: self.coverage(),
            is_whole: outcome.is_whole(),
            is_judged: outcome.is_judged() && (report.failed() || report.passed()),
            failed: report.failed(),
            took: self.took(),
            seconds: took.as_secs_f64(),
            cuts: self.cut.to_vec(),
            explaining_cut: self.explaining_cut(),
            recoveries: again.map(Recoveries::coverage),
            findings: of_search.chain(of_recoveries).collect(),
            first: outcome.failures.first().map(|first| (first.name.clone(), &*first.message)),
        }
    }
}

impl Rendered for ClusterTold<'_> {
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
        html::render(self.cluster, self.report, &self.summary())
    }
}
