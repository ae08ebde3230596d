//! SARIF 2.1.0, the format in which servers and editors accept findings. There is one result for
//! each cause.
//!
//! A result needs a position in a file. If callers were recorded, this is the position of the
//! innermost caller whose source file lies below the directory of the sources. The callers are
//! those of the call before which a persistence call is missing, otherwise those of the first lost
//! call. Without callers the position is the recording. Everything that is no finding (no verdict,
//! states that were not tried) is a notification of the run.

use super::{Finding, Summary, escape_json, last_lines};
use crate::explain::Explanation;
use crate::page::digest_of;
use serde_json::{Value, json};
use std::path::Path;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";
/// The most callers of one call in a result.
const FRAMES_MAX: usize = 32;

/// Identifier, short description and advice of a rule.
type Rule = (&'static str, &'static str, &'static str);

const RULES: [Rule; 4] = [
    (
        "missing-persistence-call",
        "A persistence call is missing",
        "Without an fsync of this file or directory a crash can lose a call that the program relies on later. The \
         message names the call and its place.",
    ),
    (
        "not-atomic",
        "A crash leaves a state from which the program does not recover",
        "No single persistence call prevents it. Write a new file and rename it over the old one, or keep a log with \
         checksums.",
    ),
    (
        "recovery",
        "A crash during the recovery leaves a state from which the program does not recover",
        "Power can fail again while a program recovers. Make each step of the recovery one that can be repeated.",
    ),
    (
        "unexplained",
        "Crash states fail",
        "The failing states were not examined. Search again with more time for explaining.",
    ),
];

pub fn render(summary: &Summary<'_>, sources: &Path) -> String {
    escape_json(&format!("{:#}\n", value(summary, sources)))
}

fn value(summary: &Summary<'_>, sources: &Path) -> Value {
    let is_judged = summary.is_judged;
    let mut results: Vec<Value> = match is_judged {
        true => summary.findings.iter().map(|finding| result(summary, sources, finding)).collect(),
        false => Vec::new(),
    };
    if let (true, true, Some((state, message))) = (is_judged, results.is_empty(), &summary.first) {
        let finding = Finding {
            state,
            sentence: summary.verdict.clone(),
            message,
            in_recovery: false,
            losses: Vec::new(),
            place: summary.name.to_owned(),
        };
        results.push(result(summary, sources, &finding));
    }
    let rules = RULES.map(|(id, short, help)| {
        json!({
            "id": id,
            "shortDescription": { "text": short },
            "fullDescription": { "text": help },
            "help": { "text": help },
            "defaultConfiguration": { "level": "error" },
        })
    });
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "kedge crash",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            } },
            "automationDetails": { "id": format!("kedge-crash/{}/", summary.model.name) },
            "invocations": [{
                "executionSuccessful": is_judged,
                "toolExecutionNotifications": notifications(summary),
            }],
            "results": results,
        }],
    })
}

/// Everything besides the results that the reader must know: the verdict, what was not tried, and
/// what was wrong with the recording.
fn notifications(summary: &Summary<'_>) -> Vec<Value> {
    let note = |level: &str, text: &str| json!({ "level": level, "message": { "text": text } });
    let level = if summary.is_judged { "note" } else { "error" };
    let mut all = vec![note(level, &summary.verdict)];
    all.push(note(if summary.is_whole { "note" } else { "warning" }, &summary.coverage));
    let cuts = summary.cuts.iter().map(|cut| format!("the recording is not whole: {cut}"));
    all.extend(cuts.map(|cut| note("warning", &cut)));
    all.extend(summary.explaining_cut.iter().map(|cut| note("warning", cut)));
    all.extend(summary.recoveries.iter().map(|coverage| note("note", coverage)));
    all
}

/// The index of the finding's rule.
fn rule(finding: &Finding<'_>) -> usize {
    match finding {
        Finding { in_recovery: true, .. } => 2,
        Finding { losses, .. } if losses.is_empty() => 3,
        Finding { losses, .. } => usize::from(losses.iter().all(|(_, loss)| loss.fixes.is_empty())),
    }
}

fn result(summary: &Summary<'_>, sources: &Path, finding: &Finding<'_>) -> Value {
    let rule = rule(finding);
    let stacks: Vec<(String, &[String])> =
        finding.losses.iter().flat_map(|(node, loss)| stacks(*node, loss)).collect();
    let place = stacks.iter().find_map(|(_, frames)| frames.iter().find_map(|frame| source(frame, sources)));
    // A server shows a result only with a line. A recording has no lines, so use line 1.
    let (uri, line) = place.unwrap_or_else(|| (uri(&finding.place), 1));
    let said = last_lines(finding.message).join("\n");
    let text = match said.is_empty() {
        true => finding.sentence.clone(),
        false => format!("{} The checker said: {said}", finding.sentence),
    };
    // The fingerprint is equal for the same cause in other recordings of the same program.
    let causes: Vec<&str> = finding.losses.iter().map(|(_, loss)| &*loss.cause).collect();
    let cause = if causes.is_empty() { finding.message.to_owned() } else { causes.join("; ") };
    let print = digest_of(format!("{}: {cause}", RULES[rule].0).as_bytes());
    let stacks = stacks.iter().map(|(call, frames)| {
        let frames = frames.iter().take(FRAMES_MAX).map(|frame| {
            let mut location = json!({ "message": { "text": frame } });
            if let Some((uri, line)) = source(frame, sources) {
                location["physicalLocation"] = physical(&uri, line);
            }
            json!({ "location": location })
        });
        json!({ "message": { "text": call }, "frames": frames.collect::<Vec<_>>() })
    });
    json!({
        "ruleId": RULES[rule].0,
        "ruleIndex": rule,
        "level": "error",
        "message": { "text": text },
        "locations": [{ "physicalLocation": physical(&uri, line) }],
        "partialFingerprints": { "cause/v1": format!("{print:032x}") },
        "stacks": stacks.collect::<Vec<_>>(),
        "properties": { "model": summary.model.name, "state": finding.state },
    })
}

/// The calls with their callers. Those before which a call is missing come first.
fn stacks<'a>(node: Option<&str>, explanation: &'a Explanation) -> Vec<(String, &'a [String])> {
    let on = node.map_or_else(String::new, |node| format!("{node}: "));
    let fixes = explanation.fixes.iter().map(|fix| {
        let text = format!("{on}{} is missing before #{} {}", fix.call, fix.before, fix.before_text);
        (text, &fix.before_stack[..])
    });
    let lost = explanation
        .lost
        .iter()
        .map(|call| (format!("{on}lost: #{} {}", call.number, call.text), &call.stack[..]));
    fixes.chain(lost).filter(|(_, frames)| !frames.is_empty()).collect()
}

fn physical(uri: &str, line: u64) -> Value {
    json!({ "artifactLocation": { "uri": uri }, "region": { "startLine": line } })
}

/// The source file and line of a frame, `function at file:line`, if the file lies below the
/// directory of the sources.
fn source(frame: &str, sources: &Path) -> Option<(String, u64)> {
    let (_, place) = frame.rsplit_once(" at ")?;
    let (file, line) = place.rsplit_once(':')?;
    let line = line.parse().ok().filter(|line| *line > 0)?;
    let path = Path::new(file);
    let below = match path.is_absolute() {
        true => path.strip_prefix(sources).ok()?,
        false => path,
    };
    let is_plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let is_there = is_plain && sources.join(below).is_file();
    is_there.then(|| (uri(&below.to_string_lossy()), line))
}

/// Encodes a path as a relative URI reference.
fn uri(path: &str) -> String {
    let mut out = if path.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
#[path = "sarif_tests.rs"]
mod tests;
