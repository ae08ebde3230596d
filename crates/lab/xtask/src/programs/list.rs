//! The list of all programs in `docs/hunt/TABLE.md`: the rows of the hunt, and the rows of
//! `crash-programs` whose settings the documentation calls safe, each with its verdict. It is made
//! from the tables of the two documents.

use super::hunt::NOT_RUN;
use super::rows::IN_SAFE_SETTINGS;
use std::fmt::Write;

/// The marks around the list.
pub const MARKS: (&str, &str) = ("<!-- all programs -->", "<!-- end of all programs -->");
const HEAD: &str = "| program | model | verdict | in |\n|---|---|---|---|\n";
const HUNT: &str = "above";
const ZOO: &str = "CRASH_TESTING";
/// Suffix of the names of rows that repeat published faults.
const PUBLISHED: &str = "(published)";

fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let inner = line.strip_prefix('|').and_then(|rest| rest.strip_suffix('|')).unwrap_or_default();
    inner.split('|').map(str::trim).collect()
}

/// The verdict on a row of `crash-programs`. A program that fails where it should pass was compared
/// with its documentation by hand.
fn zoo_verdict(documented: &str, found: &str) -> &'static str {
    match (documented, found) {
        (_, "passes") => "keeps it",
        ("passes", "fails") => "fails (model only, see there)",
        (_, "fails") => "loses, as documented",
        _ => "no verdict",
    }
}

/// Returns program, model, verdict and document of the lines that have a verdict.
fn lines(hunt: &str, zoo: &str) -> Vec<(String, String, String, &'static str)> {
    let mut lines = Vec::new();
    for line in hunt.lines() {
        if let [program, model, _, _, verdict, _, _, _] = cells(line)[..]
            && program != "program"
            && !verdict.starts_with(NOT_RUN)
            && !verdict.starts_with('-')
        {
            lines.push((program.to_owned(), model.to_owned(), verdict.to_owned(), HUNT));
        }
    }
    for line in zoo.lines() {
        if let [program, model, documented, found, _, _] = cells(line)[..]
            && IN_SAFE_SETTINGS.contains(&program)
        {
            let verdict = zoo_verdict(documented, found).to_owned();
            lines.push((program.to_owned(), model.to_owned(), verdict, ZOO));
        }
    }
    // Programs are sorted by name without regard to case. The models of a program keep their order.
    lines.sort_by_key(|(program, ..)| program.to_lowercase());
    lines
}

/// Makes the list, which begins with the number of rows.
pub fn list(hunt: &str, zoo: &str) -> String {
    let lines = lines(hunt, zoo);
    let mut programs: Vec<&str> = lines.iter().map(|(program, ..)| program.as_str()).collect();
    programs.dedup();
    let published = programs.iter().filter(|program| program.ends_with(PUBLISHED)).count();
    let today = programs.len() - published;
    let mut text =
        format!("{today} rows of programs of today, and {published} of published faults.\n\n{HEAD}");
    for (program, model, verdict, place) in &lines {
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {program} | {model} | {verdict} | {place} |");
    }
    text
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
