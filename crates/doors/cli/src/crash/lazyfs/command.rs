//! The commands that LazyFS reads from its pipe.

use super::config::{Dirs, Injection, operation, timing};
use kedge_crash_record::{Clear, Fault, Named, Op};
use regex::bytes::Regex;

pub enum Command {
    Clear,
    Checkpoint,
    Usage,
    Report,
    Help,
    Fault(Fault),
}

/// The lines that `lazyfs::help` shows.
pub const HELP: [&str; 8] = [
    "'lazyfs::clear-cache' => clears un-fsynced data",
    "'lazyfs::display-cache-usage' => shows how much un-fsynced data there is",
    "'lazyfs::cache-checkpoint' => counts all data as fsynced",
    "'lazyfs::unsynced-data-report' => reports which files have un-fsynced data",
    "'lazyfs::crash::timing=...::op=...::from_rgx=...[::to_rgx=...]' => ends at this operation",
    "'lazyfs::torn-op::file=...::persist=...::parts=...[::occurrence=...]' => tears a write, and ends",
    "'lazyfs::torn-seq::op=write::file=...::persist=...[::occurrence=...]' => keeps some writes, and ends",
    "'lazyfs::help' => displays this message",
];

pub fn parse(line: &str, dirs: &Dirs) -> Result<Command, String> {
    let mut words = line.split("::");
    if words.next() != Some("lazyfs") {
        return Err("a command begins with lazyfs::".into());
    }
    let name = words.next().unwrap_or_default();
    let mut values = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
        if values.iter().any(|(other, _)| *other == key) {
            return Err(format!("{key} is there twice"));
        }
        values.push((key, value));
    }
    let plain = |command| match values.first() {
        Some((key, _)) => Err(format!("{key} does not belong to {name}")),
        None => Ok(command),
    };
    match name {
        "clear-cache" => plain(Command::Clear),
        "cache-checkpoint" => plain(Command::Checkpoint),
        "display-cache-usage" | "cache-usage" => plain(Command::Usage),
        "unsynced-data-report" | "report" => plain(Command::Report),
        "help" => plain(Command::Help),
        "crash" => crash(&values).map(|clear| Command::Fault(Fault::Clear(clear))),
        "torn-op" | "torn-seq" => torn(name, &values)?.fault(dirs).map(Command::Fault),
        _ => Err(format!("there is no command {name:?}")),
    }
}

fn crash(values: &[(&str, &str)]) -> Result<Clear, String> {
    let (mut op, mut when, mut from, mut to) = (None, None, None, None);
    for (key, value) in values {
        let pattern = || Regex::new(value).map(Named::Pattern).map_err(|e| format!("{key}: {e}"));
        match *key {
            "op" => op = Some(operation(value)?),
            "timing" => when = Some(timing(value)?),
            "from_rgx" => from = Some(pattern()?),
            "to_rgx" => to = Some(pattern()?),
            _ => return Err(format!("{key} does not belong to crash")),
        }
    }
    let op: Op = op.ok_or("op is missing")?;
    let timing = when.ok_or("timing is missing")?;
    match (op.has_two_paths(), from.is_some(), to.is_some()) {
        (true, false, false) => Err(format!("op {:?} needs from_rgx or to_rgx", op.name())),
        (false, false, _) | (false, _, true) => {
            Err(format!("op {:?} needs from_rgx, and has no to_rgx", op.name()))
        }
        _ => Ok(Clear { op, timing, from, to, occurrence: None, crash: true }),
    }
}

fn torn(kind: &str, values: &[(&str, &str)]) -> Result<Injection, String> {
    let number =
        |key: &str, text: &str| text.parse::<u64>().map_err(|_| format!("{key}: {text:?} is no number"));
    let numbers =
        |key: &str, text: &str| text.split(',').map(|one| number(key, one)).collect::<Result<Vec<_>, _>>();
    let mut torn = Injection { kind: kind.to_owned(), occurrence: Some(1), ..Injection::default() };
    for (key, value) in values {
        match *key {
            "file" => torn.file = Some((*value).to_owned()),
            "op" => torn.op = Some((*value).to_owned()),
            "occurrence" => torn.occurrence = Some(number(key, value)?),
            "persist" => torn.persist = Some(numbers(key, value)?),
            "parts" => torn.parts = Some(number(key, value)?),
            "parts_bytes" => torn.parts_bytes = Some(numbers(key, value)?),
            _ => return Err(format!("{key} does not belong to {kind}")),
        }
    }
    Ok(torn)
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
