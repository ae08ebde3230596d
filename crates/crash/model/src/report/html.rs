//! The HTML page: the verdict, each cause with its sentence and a picture of what was lost, and all
//! calls on a time line.
//!
//! It is one file without scripts or external resources, so that it can be stored with a CI run and
//! read in any browser. Colours follow the reader's choice of light or dark.

use super::{EARLY, FRAMES_MAX, Summary, Told, escape};
use crate::describe::{Paths, count};
use crate::explain::Explanation;
use crate::history::History;
use crate::recipe::{Pick, Recipe};
use crate::recoveries::Recoveries;
use crate::state::{Body, State};
use crate::trace::{Call, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The most calls that are shown before and after a failure.
const AROUND: u32 = 12;
/// The most calls that are shown in the list of all calls.
const CALLS_MAX: usize = 2000;
/// The most bytes of a file that are shown in a difference.
const SHOWN_BYTES: usize = 160;
const DIFFERENCES_MAX: usize = 20;

const STYLE: &str = include_str!("style.css");

/// A recording with its history, for the sections of the page.
pub(crate) struct Recorded<'a> {
    pub trace: &'a Trace,
    pub history: &'a History,
    pub paths: Paths,
}

impl<'a> Recorded<'a> {
    pub fn of(trace: &'a Trace, history: &'a History) -> Recorded<'a> {
        Recorded { trace, history, paths: Paths::of(trace) }
    }
}

pub fn render(told: &Told<'_>, history: &History) -> String {
    let summary = told.summary();
    let recorded = Recorded::of(told.trace, history);
    page(&summary, |page| {
        for (i, failure) in told.report.failures.iter().enumerate() {
            cause(page, i + 1, failure, told, &recorded);
        }
        recoveries(page, told.report.again.as_ref(), &summary, "kedge crash replay");
        if let Some(mended) = told.mended() {
            put(page, format_args!("<p class=\"fix\">{}</p>\n", escape(&mended)));
        }
        calls(page, "All calls", &recorded);
    })
}

/// The page of a run: its head and end, and between them what `fill` adds.
pub(crate) fn page(summary: &Summary<'_>, fill: impl FnOnce(&mut String)) -> String {
    let mut page = String::new();
    let title = escape(summary.name);
    let class = match (summary.failed, summary.is_judged) {
        (true, _) => "bad",
        (false, true) => "good",
        (false, false) => "none",
    };
    put(
        &mut page,
        format_args!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>kedge crash: {title}</title><style>{STYLE}</style></head><body><main>\n\
         <h1>Crash test of <code>{title}</code></h1>\n<p class=\"verdict {class}\">{}</p>\n",
            escape(&sentence_case(&summary.verdict))
        ),
    );
    facts(&mut page, summary);
    fill(&mut page);
    page.push_str("</main></body></html>\n");
    page
}

/// Adds the failures in recoveries to the page.
pub(crate) fn recoveries(page: &mut String, again: Option<&Recoveries>, summary: &Summary<'_>, replay: &str) {
    for failure in again.iter().flat_map(|again| &again.failures) {
        let title = if failure.is_refusal { "Failing state" } else { "Failure in a recovery" };
        put(
            page,
            format_args!(
                "<section><h2>{title}</h2>\n<p class=\"sentence\">{}</p>\n\
                 <p>The checker said:</p><pre>{}</pre>\n<p class=\"again\">See it again: \
                 <code>{replay} {} --model {} --state {} --check CMD --keep DIR</code></p></section>\n",
                escape(&failure.sentence),
                escape(&failure.message),
                escape(summary.name),
                summary.model.name,
                escape(&failure.state)
            ),
        );
    }
}

pub(crate) fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("strings take any text");
}

fn sentence_case(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect::<String>() + ".")
}

fn facts(page: &mut String, summary: &Summary<'_>) {
    page.push_str("<dl class=\"facts\">");
    let mut fact = |name: &str, value: &str| {
        put(page, format_args!("<div><dt>{name}</dt><dd>{}</dd></div>", escape(value)));
    };
    fact("Model", &format!("{} ({})", summary.model.name, summary.model.about));
    fact("Checker", summary.checker);
    fact("Coverage", &summary.coverage);
    summary.recoveries.iter().for_each(|coverage| fact("Recoveries", coverage));
    summary.cuts.iter().for_each(|cut| fact("Recording", &format!("not whole: {cut}")));
    fact("Run", &format!("{}; seed {}", summary.took, summary.seed));
    summary.explaining_cut.iter().for_each(|cut| fact("Limit", cut));
    page.push_str("</dl>\n");
}

fn cause(page: &mut String, number: usize, failure: &Explanation, told: &Told<'_>, recorded: &Recorded<'_>) {
    begin(page, number, failure.is_early, &failure.sentence);
    missing(page, failure);
    put(page, format_args!("<p>The checker said:</p><pre>{}</pre>\n", escape(&failure.message)));
    if lost(page, failure, recorded) {
        put(
            page,
            format_args!(
                "<p class=\"again\">See it again: <code>kedge crash replay {} --model {} --state {} --keep DIR</code></p>",
                escape(told.name),
                told.report.model.name,
                escape(&failure.state)
            ),
        );
    }
    page.push_str("</section>\n");
}

/// Adds the beginning of a failure's section.
pub(crate) fn begin(page: &mut String, number: usize, is_early: bool, sentence: &str) {
    put(
        page,
        format_args!(
            "<section><h2>Failure {number}{}</h2>\n<p class=\"sentence\">{}</p>\n",
            if is_early { format!(": {}", EARLY.to_lowercase()) } else { String::new() },
            escape(sentence)
        ),
    );
}

/// Adds the missing calls and their positions.
pub(crate) fn missing(page: &mut String, failure: &Explanation) {
    for also in &failure.also {
        put(
            page,
            format_args!(
                "<p>Prevented as well: {} (state <code>{}</code>)</p>\n",
                escape(&also.loss),
                escape(&also.state)
            ),
        );
    }
    for fix in &failure.fixes {
        put(
            page,
            format_args!(
                "<p class=\"fix\"><b>Missing:</b> <code>{}</code> before call #{} <code>{}</code>{}</p>\n",
                escape(&fix.call),
                fix.before,
                escape(&fix.before_text),
                match fix.also_before.len() {
                    0 => String::new(),
                    n => format!(", and at {} like it", count(n as u64, "place")),
                }
            ),
        );
    }
    for (call, stack) in failure.stacks() {
        let frames: Vec<String> = stack.iter().take(FRAMES_MAX).map(|frame| escape(frame)).collect();
        put(
            page,
            format_args!(
                "<details open><summary><code>{}</code>, in</summary><pre>{}</pre></details>\n",
                escape(&call),
                frames.join("\n")
            ),
        );
    }
}

/// Adds the calls around the failure, and the directory after it. Returns `false` if the name is
/// not that of a state of this recording.
pub(crate) fn lost(page: &mut String, failure: &Explanation, recorded: &Recorded<'_>) -> bool {
    let Ok(recipe) = failure.state.parse::<Recipe>() else { return false };
    picture(page, failure, &recipe, recorded);
    difference(page, failure, &recipe, recorded.history);
    true
}

/// Adds the calls around the failure, each with its fate.
fn picture(page: &mut String, failure: &Explanation, recipe: &Recipe, recorded: &Recorded<'_>) {
    let Recorded { trace, history, paths } = recorded;
    let set = history.set(recipe);
    let first = failure.lost.iter().map(|c| c.number).min().unwrap_or(recipe.at.saturating_sub(1));
    let start = *history.points().start();
    let from = first.saturating_sub(AROUND / 2).max(start);
    let to = recipe.at.min(first + AROUND);
    let fix_at = |n: u32| failure.fixes.iter().filter(move |f| f.before == n);
    page.push_str("<table class=\"calls\"><thead><tr><th>#</th><th>call</th><th>after the crash</th></tr></thead><tbody>\n");
    let row = |page: &mut String, n: u32| {
        for fix in fix_at(n) {
            put(
                page,
                format_args!(
                    "<tr class=\"missing\"><td></td><td><code>{}</code></td><td>missing here</td></tr>\n",
                    escape(&fix.call)
                ),
            );
        }
        let event = &trace.events[n as usize];
        if matches!(event.call, Call::Process { .. }) {
            return;
        }
        let edits: Vec<u32> = history.of_event(n).collect();
        let lost = edits.iter().filter(|e| !set.has(**e)).count();
        let is_torn = recipe.torn.as_ref().is_some_and(|t| edits.contains(&t.micro));
        let (class, fate) = match (lost, is_torn) {
            (_, true) => ("part", "torn"),
            (0, _) if edits.is_empty() => ("note", ""),
            (0, _) if edits.iter().all(|e| history.is_durable(*e, recipe.at)) => ("safe", "safe"),
            (0, _) => ("kept", "there by chance"),
            (n, _) if n == edits.len() => ("lost", "lost"),
            _ => ("part", "lost in part"),
        };
        put(
            page,
            format_args!(
                "<tr class=\"{class}\"><td>{n}</td><td><code>{}</code></td><td>{fate}</td></tr>\n",
                escape(&paths.call(n as usize, event))
            ),
        );
    };
    for n in from..to {
        row(page, n);
    }
    if to < recipe.at {
        put(
            page,
            format_args!(
                "<tr class=\"note\"><td></td><td>… {} …</td><td></td></tr>\n",
                count(u64::from(recipe.at - to - 1), "more call")
            ),
        );
        row(page, recipe.at - 1);
    }
    for fix in fix_at(recipe.at) {
        put(
            page,
            format_args!(
                "<tr class=\"missing\"><td></td><td><code>{}</code></td><td>missing here</td></tr>\n",
                escape(&fix.call)
            ),
        );
    }
    page.push_str("<tr class=\"crash\"><td></td><td>crash</td><td></td></tr></tbody></table>\n");
}

/// Adds the directory after the crash, compared with the last good state, or with what the program
/// saw if no good state is known.
fn difference(page: &mut String, failure: &Explanation, recipe: &Recipe, history: &History) {
    let good = failure.last_good_state.as_ref().and_then(|name| name.parse::<Recipe>().ok());
    let beside = if good.is_some() { "the last good state" } else { "the program had" };
    let other = good.unwrap_or_else(|| Recipe::new(recipe.at, Pick::All));
    match failure.last_good_state {
        Some(_) if other.at == recipe.at => page.push_str(
            "<p>With nothing lost, the check passes at that moment. That is the last good state.</p>\n",
        ),
        Some(_) => put(
            page,
            format_args!(
                "<p>The check last passes after call #{}, with nothing lost. That is the last good state.</p>\n",
                other.at.saturating_sub(1)
            ),
        ),
        None if failure.is_cut => page.push_str(
            "<p>There was no time to look for a good state; beside it stands what the program had.</p>\n",
        ),
        None => page.push_str(
            "<p>No complete state shortly before passes the check; beside it stands what the program had.</p>\n",
        ),
    }
    let whole = history.state(&other);
    let found = history.state(recipe);
    let (had, has) = (files(&whole), files(&found));
    let names: BTreeSet<&Vec<u8>> = had.keys().chain(has.keys()).collect();
    let changed: Vec<&Vec<u8>> = names.into_iter().filter(|n| had.get(*n) != has.get(*n)).collect();
    if changed.is_empty() {
        page.push_str("<p>After the crash the directory is the same.</p>\n");
        return;
    }
    put(
        page,
        format_args!(
            "<table class=\"diff\"><thead><tr><th>file</th><th>{beside}</th><th>after the crash</th></tr></thead><tbody>\n"
        ),
    );
    for name in changed.iter().take(DIFFERENCES_MAX) {
        put(
            page,
            format_args!(
                "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n",
                escape(&String::from_utf8_lossy(name)),
                show(&whole, name),
                show(&found, name)
            ),
        );
    }
    page.push_str("</tbody></table>\n");
    if changed.len() > DIFFERENCES_MAX {
        put(page, format_args!("<p>and {} more.</p>\n", changed.len() - DIFFERENCES_MAX));
    }
}

fn files(state: &State) -> BTreeMap<Vec<u8>, (u32, Option<u128>)> {
    let mut files = BTreeMap::new();
    state.walk(&mut |path, _, node| {
        if !path.is_empty() {
            let digest = match node.body {
                Body::File(_) => state.content_digest(path),
                _ => None,
            };
            files.insert(path.to_vec(), (node.meta.kind(), digest));
        }
    });
    files
}

fn show(state: &State, path: &[u8]) -> String {
    let Some((_, node)) = state.find(path) else { return "<i>missing</i>".to_owned() };
    match &node.body {
        Body::Dir(entries) => {
            format!("directory, {}", count(entries.len() as u64, "entry").replace("entrys", "entries"))
        }
        Body::Symlink(target) => format!("→ <code>{}</code>", escape(&String::from_utf8_lossy(target))),
        Body::Special => "special file".to_owned(),
        Body::File(file) => {
            let mut head = [0; SHOWN_BYTES];
            let len = file.read(0, &mut head);
            let head = &head[..len];
            let text = if !head.is_empty() && head.iter().all(|b| *b == 0) {
                ", <i>all zeros</i>".to_owned()
            } else {
                let text: String = String::from_utf8_lossy(head)
                    .chars()
                    .map(|c| if c.is_control() && c != '\n' { '·' } else { c })
                    .collect();
                format!("<pre>{}</pre>", escape(&text))
            };
            format!("{}{text}", count(file.size, "byte"))
        }
    }
}

/// Adds all calls of a recording, each with the call that made it durable.
pub(crate) fn calls(page: &mut String, title: &str, recorded: &Recorded<'_>) {
    let Recorded { trace, history, paths } = recorded;
    let start = *history.points().start() as usize;
    let events = &trace.events[start..];
    put(
        page,
        format_args!(
            "<section><h2>{title}</h2>\n<p>{} of {} on {}. <b>Safe by</b> is the persistence call that made it durable \
         under this model.</p>\n<div class=\"scroll\"><table class=\"calls\"><thead><tr><th>#</th><th>ms</th><th>process</th><th>call</th>\
         <th>safe by</th></tr></thead><tbody>\n",
            count(events.iter().filter(|e| !e.call.is_note()).count() as u64, "call"),
            count(
                events.iter().map(|e| e.pid).filter(|p| *p != 0).collect::<BTreeSet<_>>().len() as u64,
                "process"
            )
            .replace("processs", "processes"),
            count(
                events
                    .iter()
                    .filter_map(|e| match e.call {
                        Call::Fsync { ino, .. } | Call::Write { ino, .. } => Some(ino),
                        _ => None,
                    })
                    .collect::<BTreeSet<_>>()
                    .len() as u64,
                "file"
            )
        ),
    );
    let mut names: BTreeMap<u32, &str> = BTreeMap::new();
    for (i, event) in events.iter().enumerate().take(CALLS_MAX) {
        if let Call::Process { pid, name, .. } = &event.call {
            names.insert(*pid, name);
            continue;
        }
        let number = (start + i) as u32;
        let safe = safe_by(history, number);
        let class = match (&event.call, safe.as_str()) {
            (Call::Fsync { .. } | Call::Msync { .. } | Call::SyncRange { .. } | Call::Sync { .. }, _) => {
                "sync"
            }
            (Call::Mark { .. } | Call::Baseline | Call::End { .. }, _) => "mark",
            (_, "never") => "never",
            _ => "",
        };
        let process = names.get(&event.pid).map_or_else(String::new, |n| format!("{n} {}", event.pid));
        put(
            page,
            format_args!(
                "<tr class=\"{class}\"><td>{number}</td><td>{:.1}</td><td>{}</td><td><code>{}</code></td><td>{safe}</td></tr>\n",
                event.time as f64 / 1e6,
                escape(&process),
                escape(&paths.call(start + i, event))
            ),
        );
    }
    page.push_str("</tbody></table></div>\n");
    if events.len() > CALLS_MAX {
        put(page, format_args!("<p>and {} more.</p>\n", events.len() - CALLS_MAX));
    }
    page.push_str("</section>\n");
}

fn safe_by(history: &History, event: u32) -> String {
    let end = *history.points().end();
    let edits: Vec<u32> = history.of_event(event).collect();
    if edits.is_empty() {
        return String::new();
    }
    if edits.iter().any(|n| !history.is_durable(*n, end)) {
        return "never".to_owned();
    }
    edits.iter().map(|n| history.last_without(*n)).max().map_or_else(String::new, |n| format!("#{n}"))
}
