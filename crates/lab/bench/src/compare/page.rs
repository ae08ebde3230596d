//! The report as one self-contained HTML file, with a chart for each load.
//!
//! The bars of a chart are linear and begin at zero. The scale ends a little above the fastest
//! mounted file system that keeps its data. Faster contestants (the library, file systems in
//! memory) would make the other bars too short, so their bars end in an arrow, and the figure
//! beside it gives the value.

use super::Peer;
use crate::bars::Bar;
use crate::contest::{Outcome, Side};
use crate::report::{Report, SPREAD_NOTED};
use crate::sample::number;
use clap::ValueEnum;
use std::fmt::Write;

/// Width of a chart, in its own units.
const WIDTH: f64 = 640.0;
const LABEL: f64 = 150.0;
const FIGURE: f64 = 130.0;
const ROW: f64 = 26.0;
/// The scale's end relative to the fastest contestant that determines it.
const ROOM: f64 = 1.25;

const STYLE: &str = "
:root { color-scheme: light dark; --back: #ffffff; --text: #1c2430; --soft: #5b6675; --line: #d9dee5;
  --card: #f6f8fa; --ours: #0b63ce; --library: #69a5ee; --peer: #8a94a3; --reference: #c3cad3; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --back: #11151b; --text: #e4e8ee; --soft: #9aa5b4; --line: #2c3440;
  --card: #191f28; --ours: #58a6ff; --library: #2f6db5; --peer: #748091; --reference: #434d5b; --bad: #ff8a7a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 24px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 24px 0 2px; } figure h2 { margin-top: 0; }
table { border-collapse: collapse; font-size: 13px; margin: 8px 0; }
th, td { text-align: left; padding: 3px 18px 3px 0; border-bottom: 1px solid var(--line); }
tr.missed td:last-child { color: var(--bad); }
p { margin: 4px 0 12px; } .soft { color: var(--soft); font-size: 13px; }
.bad { color: var(--bad); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 560px), 1fr)); gap: 16px; }
figure { margin: 0; padding: 14px 16px; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .ours-name { font-weight: 600; } svg .bad { fill: var(--bad); }
.ours { fill: var(--ours); } .library { fill: var(--library); } .peer { fill: var(--peer); }
.reference { fill: var(--reference); } .zero { stroke: var(--line); }
.key { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0 16px; padding: 0; list-style: none; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
i.ours { background: var(--ours); } i.library { background: var(--library); } i.peer { background: var(--peer); }
i.reference { background: var(--reference); }
pre { overflow-x: auto; padding: 12px; background: var(--card); border: 1px solid var(--line); border-radius: 8px; font-size: 12px; }
";

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

fn peer_of(side: &Side) -> Option<Peer> {
    Peer::value_variants().iter().copied().find(|peer| peer.name() == side.name)
}

fn class(peer: Option<Peer>) -> &'static str {
    match peer {
        Some(Peer::Kedge | Peer::Rings | Peer::Before) => "ours",
        Some(Peer::Library) => "library",
        Some(peer) if peer.is_reference() => "reference",
        _ => "peer",
    }
}

/// The value of a bar of full length.
fn scale(outcome: &Outcome) -> f64 {
    let most = |of: &dyn Fn(Option<Peer>) -> bool| {
        let sides = outcome.sides.iter().filter(|side| of(peer_of(side)));
        sides.filter_map(|side| side.median(0)).filter(|v| v.is_finite()).fold(0.0, f64::max)
    };
    let decides = |peer: Option<Peer>| peer.is_some_and(|p| p != Peer::Library && !p.is_reference());
    let (kept, all) = (most(&decides), most(&|_| true));
    match kept * ROOM {
        at if at > 0.0 => at.min(all),
        _ if all > 0.0 => all,
        _ => 1.0,
    }
}

fn chart(outcome: &Outcome) -> String {
    let unit = outcome.metrics.first().map_or("", |m| m.unit);
    let (full, room) = (scale(outcome), WIDTH - LABEL - FIGURE);
    let height = ROW * outcome.sides.len() as f64 + 4.0;
    let mut out = format!(
        "<figure><h2>{}</h2><div class=\"soft\">{}, higher is better</div>\n<svg viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-label=\"{}\">\n",
        escape(&outcome.title),
        escape(unit),
        escape(&outcome.title)
    );
    for (i, side) in outcome.sides.iter().enumerate() {
        let (top, peer) = (i as f64 * ROW + 2.0, peer_of(side));
        let class = class(peer);
        let base = top + 17.0;
        let bold = if peer == Some(Peer::Kedge) { " class=\"ours-name\"" } else { "" };
        write!(
            out,
            "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\"{bold}>{}</text>",
            LABEL - 10.0,
            escape(side.name)
        )
        .expect("a String takes all");
        let Some(value) = side.median(0).filter(|v| v.is_finite()) else {
            writeln!(out, "<text x=\"{LABEL}\" y=\"{base}\" class=\"bad\">failed</text>")
                .expect("a String takes all");
            continue;
        };
        let length = (value / full).min(1.0) * room;
        let y = top + 4.0;
        write!(
            out,
            "<rect class=\"{class}\" x=\"{LABEL}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" rx=\"2\"/>",
            ROW - 8.0
        )
        .expect("a String takes all");
        let mut end = LABEL + length;
        if value > full {
            let (a, b) = (y, y + ROW - 8.0);
            write!(out, "<path class=\"{class}\" d=\"M{end:.1} {a} l9 {h} l-9 {h} z\"/>", h = (b - a) / 2.0)
                .expect("a String takes all");
            end += 9.0;
        }
        let spread = side.samples.first().map_or(0.0, |s| s.spread());
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{base}\">{} <tspan class=\"{}\">±{:.0} %</tspan></text>",
            end + 6.0,
            number(value),
            if spread > SPREAD_NOTED { "bad" } else { "soft" },
            spread * 100.0
        )
        .expect("a String takes all");
    }
    writeln!(
        out,
        "<line class=\"zero\" x1=\"{LABEL}\" x2=\"{LABEL}\" y1=\"0\" y2=\"{height}\"/></svg></figure>"
    )
    .expect("a String takes all");
    out
}

/// The goals and what was reached.
fn bars(bars: &[Bar]) -> String {
    let mut out = String::new();
    if bars.is_empty() {
        return out;
    }
    out.push_str(
        "<h2>Bars</h2><table><tr><th>bar</th><th>wanted</th><th>reached</th><th>verdict</th></tr>\n",
    );
    for bar in bars {
        let cells: String = bar.row().iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let class = if bar.met { "" } else { " class=\"missed\"" };
        writeln!(out, "<tr{class}>{cells}</tr>").expect("a String takes all");
    }
    out.push_str("</table>\n");
    out
}

/// The whole page.
pub fn html(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>KedgeFS beside its peers</title><style>{STYLE}</style></head><body>\n\
         <h1>KedgeFS {} beside its peers</h1>\n<p class=\"soft\">{}. Median of {} alternating rounds, ± is the round \
         farthest from it.</p>\n",
        escape(report.version),
        escape(&report.machine_line()),
        report.rounds
    );
    out.push_str("<ul class=\"key\">");
    for peer in Peer::value_variants().iter().copied() {
        let there = report.outcomes().any(|o| o.sides.iter().any(|s| peer_of(s) == Some(peer)));
        if there {
            write!(
                out,
                "<li><i class=\"{}\"></i>{} <span class=\"soft\">{}</span></li>",
                class(Some(peer)),
                escape(peer.name()),
                escape(peer.is())
            )
            .expect("a String takes all");
        }
    }
    out.push_str("</ul>\n");
    out.push_str(
        "<p class=\"soft\">Bars begin at zero. One with an arrow goes on beyond the chart, as its figure says: else it \
         would press the others together.</p>\n<div class=\"charts\">\n",
    );
    report.outcomes().for_each(|outcome| out.push_str(&chart(outcome)));
    out.push_str("</div>\n");
    out.push_str(&bars(&report.bars));
    out.push_str("<h2>Remarks</h2><ul>");
    for remark in report.remarks() {
        let class = if remark.starts_with("FAILED") { " class=\"bad\"" } else { "" };
        write!(out, "<li{class}>{}</li>", escape(&remark)).expect("a String takes all");
    }
    out.push_str(
        "</ul>\n<details><summary>How the contestants were made, and what each round did</summary><pre>",
    );
    for section in &report.sections {
        section.commands().iter().for_each(|line| {
            out.push_str(&escape(line));
            out.push('\n');
        });
    }
    out.push_str("</pre></details></body></html>\n");
    out
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
