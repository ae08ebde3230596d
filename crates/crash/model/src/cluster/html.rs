//! The HTML page of a cluster: each cause with the loss of each node, and the calls of all nodes.

use super::campaign::ClusterReport;
use super::clock::Cluster;
use crate::report::html::{Recorded, begin, calls, lost, missing, page, put, recoveries};
use crate::report::{Summary, escape};
use std::collections::BTreeMap;

const REPLAY: &str = "kedge crash cluster replay";

pub(super) fn render(cluster: &Cluster, report: &ClusterReport, summary: &Summary<'_>) -> String {
    let recordings = { cluster.traces.iter().zip(&cluster.histories) }
        .map(|(trace, history)| Recorded::of(trace, history));
    let nodes: BTreeMap<&str, Recorded<'_>> =
        cluster.names.iter().map(String::as_str).zip(recordings).collect();
    page(summary, |page| {
        for (number, cause) in report.causes.iter().enumerate() {
            begin(page, number + 1, cause.is_early, &cause.opening(&cluster.names));
            put(page, format_args!("<p>The checker said:</p><pre>{}</pre>\n", escape(&cause.message)));
            for loss in &cause.losses {
                let sentence = escape(&loss.explanation.sentence);
                put(
                    page,
                    format_args!(
                        "<h3>Node {}</h3>\n<p class=\"sentence\">{sentence}</p>\n",
                        escape(&loss.node)
                    ),
                );
                missing(page, &loss.explanation);
                lost(page, &loss.explanation, &nodes[&*loss.node]);
            }
            if let Some(effect) = cause.effect() {
                put(page, format_args!("<p class=\"fix\">{}</p>\n", escape(&effect)));
            }
            put(
                page,
                format_args!(
                    "<p class=\"again\">See it again: <code>{REPLAY} {} --model {} --state {} --keep DIR</code></p></section>\n",
                    escape(summary.name),
                    summary.model.name,
                    escape(&cause.state)
                ),
            );
        }
        recoveries(page, report.again.as_ref(), summary, REPLAY);
        for name in &cluster.names {
            calls(page, &format!("All calls of node {}", escape(name)), &nodes[&**name]);
        }
    })
}
