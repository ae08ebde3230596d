//! `crash-programs --hunt`: current programs in settings that their documentation calls safe.
//!
//! Each directory below `programs/hunt` describes one row by `row.toml` and the scripts `run.sh`
//! (prints `ack …` for each promise), `check.sh` and optionally `prepare.sh`. Rows may share
//! scripts.
//!
//! A model says which states a crash may leave, and may allow too many. So a row that fails is
//! replayed on the kernel's file systems (module `cut`). Its failure is called shown only if one of
//! them fails, too. Reports are kept in the cache's directory `hunt`.
//!
//! A row with `nodes` is a cluster: module `clusters`.
//!
//! A row may also repeat a *published* fault, in a version that has it. The search must find the
//! fault within its usual limits, and no fault is placed by hand.

use super::needs::Need;
use super::rows::Row;
use super::{Suite, clusters, cut, states_in, text};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::path::Path;
use std::time::Instant;

pub const DOCUMENT: &str = "docs/hunt/TABLE.md";
pub const HEAD: &str = "| program | model | version | settings | verdict | states | replayed | s |\n\
                        |---|---|---|---|---|---|---|---|";
/// The marks around the list of promises.
pub const SOURCES: (&str, &str) = ("<!-- promises -->", "<!-- end of promises -->");
/// Prefix of the verdict of a row that cannot run.
pub const NOT_RUN: &str = "not run:";
const FOLDER: &str = "hunt";
/// Distinct states for each row and model, unless the row gives another number.
const STATES: u32 = 80;
/// Number of failing states after which the search of a row ends.
const FAILURES: u32 = 3;
/// Time limit in seconds for explaining one row.
const EXPLAIN: &str = "10";

/// The content of `row.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    name: String,
    settings: String,
    /// A command that prints the version.
    #[serde(default)]
    version: String,
    /// The promise, in the words of the documentation.
    promise: String,
    /// The address of that text.
    source: String,
    /// The directory with the scripts; by default the row's own.
    scripts: Option<String>,
    /// Arguments of `run.sh` and of `check.sh`.
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    needs: Vec<Requirement>,
    #[serde(default = "usual_models")]
    models: Vec<String>,
    /// Names of the nodes if the program is a cluster: module `clusters`.
    #[serde(default)]
    nodes: Vec<String>,
    /// Whether stores through shared mappings are recorded before the next call.
    #[serde(default)]
    mappings: bool,
    states: Option<u32>,
    /// States of the device for each try of the replay. A row with a quick check has more if its
    /// fault shows only in few states.
    device_states: Option<u32>,
    /// Whether the documentation promises nothing after a power failure. A failure is then no
    /// fault.
    #[serde(default)]
    promises_nothing: bool,
    /// The reason if the row cannot run here.
    unavailable: Option<String>,
    /// File name of the report of a confirmed fault, in docs/hunt.
    report: Option<String>,
    /// The fault that others have published and that the search must find again.
    published: Option<Published>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    /// The publication, and the fault's name in it.
    by: String,
    /// Words that the check prints and the search's report contains. Failures without these words
    /// do not count.
    finds: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Requirement {
    Root,
    /// A program and its package.
    Debian(String, String),
    /// A module and its package.
    Python(String, String),
    Go(String),
    Rust(String),
    /// A directory of `programs/` with a script `get.sh`.
    Script(String),
}

fn usual_models() -> Vec<String> {
    vec!["ext4".to_owned()]
}

/// Makes a text of a description live as long as the program, as the texts of the rows in the
/// source do.
fn keep(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

pub struct Quarry {
    pub row: Row,
    about: Description,
}

impl Quarry {
    fn new(dir: &Path) -> Result<Quarry> {
        let path = dir.join("row.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let about: Description = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let here = dir.file_name().context("a directory")?.to_string_lossy().into_owned();
        let scripts = format!("{FOLDER}/{}", about.scripts.as_deref().unwrap_or(&here));
        let root = dir.parent().and_then(Path::parent).context("the directory of the programs")?;
        let need = |requirement: &Requirement| match requirement {
            Requirement::Root => Need::Root,
            Requirement::Debian(program, package) => {
                Need::Debian(keep(program.clone()), keep(package.clone()))
            }
            Requirement::Python(module, package) => Need::Python(keep(module.clone()), keep(package.clone())),
            Requirement::Go(dir) => Need::Go(keep(dir.clone())),
            Requirement::Rust(dir) => Need::Rust(keep(dir.clone())),
            Requirement::Script(dir) => Need::Script(keep(dir.clone())),
        };
        let prepare = format!("{scripts}/prepare.sh");
        let run: Vec<&'static str> = std::iter::once(format!("{scripts}/run.sh"))
            .chain(about.args.iter().cloned())
            .map(keep)
            .collect();
        let check = format!("sh '$PROGRAMS/{scripts}/check.sh' {}", about.args.join(" "));
        let check = match &about.published {
            Some(published) => only_with(&check, &published.finds),
            None => check,
        };
        let row = Row {
            name: keep(about.name.clone()),
            needs: Box::leak(about.needs.iter().map(need).collect()),
            program: "sh",
            prepare: root.join(&prepare).is_file().then(|| keep(prepare)),
            run: Box::leak(run.into_boxed_slice()),
            mappings: about.mappings,
            check: keep(check),
            show: "",
            expect: &[],
            states: about.states.unwrap_or(STATES),
            // The first failures that the search finds may be others than the published fault.
            failures: if about.published.is_some() { about.states.unwrap_or(STATES) } else { FAILURES },
        };
        Ok(Quarry { row, about })
    }

    /// The beginning of this row's line in the table for this model.
    fn key(&self, model: &str) -> String {
        format!("| {} | {model} |", self.row.name)
    }

    pub fn keys(&self) -> impl Iterator<Item = String> {
        self.about.models.iter().map(|model| self.key(model))
    }

    /// The line of the table for a row without results.
    fn unavailable_line(&self, model: &str, reason: &str) -> String {
        format!("{} | {} | {NOT_RUN} {reason} | | | |", self.key(model), self.about.settings)
    }

    /// What is missing or wrong in the description.
    #[cfg(test)]
    pub fn complaints(&self, programs: &Path) -> Vec<String> {
        let about = &self.about;
        let is_run = about.unavailable.is_none();
        let check = self.row.check.split('\'').nth(1).unwrap_or_default();
        let scripts = [self.row.run[0], check.trim_start_matches("$PROGRAMS/")];
        let missing = scripts.iter().filter(|script| is_run && !programs.join(script).is_file());
        let mut complaints: Vec<String> = missing.map(|script| format!("{script} is missing")).collect();
        if is_run && about.version.is_empty() {
            complaints.push("no command prints the version".to_owned());
        }
        if !about.source.starts_with("http") {
            complaints.push(format!("{:?} is no address", about.source));
        }
        if about.promise.len() < 20 || about.settings.is_empty() || about.models.is_empty() {
            complaints.push("it lacks a promise, its settings or models".to_owned());
        }
        if about.published.as_ref().is_some_and(|fault| fault.finds.is_empty() || fault.finds.contains('\''))
        {
            complaints.push("what is to be found stands between quotes in a command".to_owned());
        }
        if about.published.is_some() != about.name.ends_with("(published)") {
            complaints.push("the name of a published fault, and only it, ends with (published)".to_owned());
        }
        if let Some(report) = &about.report {
            let path = programs.join("../../../../docs/hunt").join(report);
            if !path.is_file() {
                complaints.push(format!("docs/hunt/{report} is missing"));
            }
        }
        complaints
    }
}

/// Returns a check that fails only with these words, so that the row of a published fault does not
/// end with another fault.
fn only_with(check: &str, words: &str) -> String {
    format!(
        "said=$({check} 2>&1) && exit 0; echo \"$said\"; case \"$said\" in *'{words}'*) exit 1 ;; esac; exit 0"
    )
}

/// The verdict on a published fault: whether the exit code and the report of `explore` show it.
fn found_again(code: Option<i32>, report: &str, finds: &str) -> &'static str {
    match code {
        Some(1) if report.contains(finds) => "found again",
        Some(4) if report.contains(finds) => "found again, before the first promise",
        Some(0 | 1 | 4) => "NOT found again",
        _ => "no verdict",
    }
}

/// The verdict by the exit code of `explore` and by the replay.
fn verdict(code: Option<i32>, promises_nothing: bool, is_shown: bool) -> &'static str {
    match (code, promises_nothing, is_shown) {
        (Some(0), ..) => "keeps it",
        (Some(1), true, _) => "loses, as documented",
        (Some(1), false, true) => "shown",
        (Some(1), false, false) => "suspected (model only)",
        (Some(4), ..) => "only before the first promise",
        _ => "no verdict",
    }
}

/// All rows, in the order of their directories.
pub fn rows(programs: &Path) -> Result<Vec<Quarry>> {
    let folder = programs.join(FOLDER);
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut dirs = Vec::new();
    for entry in entries {
        let dir = entry.with_context(|| folder.display().to_string())?.path();
        if dir.join("row.toml").is_file() {
            dirs.push(dir);
        }
    }
    dirs.sort();
    dirs.iter().map(|dir| Quarry::new(dir)).collect()
}

/// Lists the promises of the rows that have a line in the table, each with its source.
pub fn sources(rows: &[Quarry], table: &str) -> String {
    let mut text = String::new();
    let is_listed = |quarry: &&Quarry| quarry.keys().any(|key| table.contains(&key));
    for Quarry { row, about } in rows.iter().filter(is_listed) {
        let report = about.report.as_ref().map(|name| format!(" Report: [{name}]({name})."));
        let report = report.unwrap_or_default();
        let by = about.published.as_ref().map(|fault| format!("{}. ", fault.by)).unwrap_or_default();
        let line = format!("- **{}**: {by}{} <{}>{report}\n", row.name, about.promise.trim(), about.source);
        text.push_str(&crate::wrap::wrap(&line));
    }
    text
}

impl Suite {
    pub fn hunt(&mut self, quarry: &Quarry) -> Result<()> {
        let unavailable = match &quarry.about.unavailable {
            Some(reason) => Some(reason.clone()),
            None if self.is_available(&quarry.row) => None,
            // The programs that are missing are named at the end of the run.
            None => return Ok(()),
        };
        if let Some(reason) = unavailable {
            for model in &quarry.about.models {
                let line = quarry.unavailable_line(model, &reason);
                println!("{line}");
                self.results.push((quarry.key(model), line));
            }
            return Ok(());
        }
        match &quarry.about.nodes[..] {
            [] => self.prepare_and_record(&quarry.row)?,
            nodes => self.prepare_and_record_cluster(&quarry.row, nodes)?,
        }
        let version = self.version(quarry)?;
        for model in &quarry.about.models {
            self.judge(quarry, model, &version)?;
        }
        Ok(())
    }

    fn version(&self, quarry: &Quarry) -> Result<String> {
        let output = self.command("sh").args(["-c", &quarry.about.version]).output().context("start sh")?;
        ensure!(output.status.success(), "no version: {}", text(&output));
        let printed = text(&output);
        Ok(printed.lines().next().unwrap_or_default().trim().to_owned())
    }

    #[allow(clippy::disallowed_methods)]
    fn judge(&mut self, quarry: &Quarry, model: &str, version: &str) -> Result<()> {
        let (row, start) = (&quarry.row, Instant::now());
        let check = row.check.replace("$PROGRAMS", &self.dir.to_string_lossy());
        let explore = |failures: u32, explain: &str| {
            let (kind, recording): (&[&str], _) = match quarry.about.nodes.is_empty() {
                true => (&["crash", "explore"], "run.kcr"),
                false => (&clusters::EXPLORE, clusters::RECORDINGS),
            };
            self.command(&self.kedge)
                .args(kind)
                .args(["--quiet", "--timeout", "1m", "--explain", explain])
                .args(["--budget", &row.states.to_string(), "--max-failures", &failures.to_string()])
                .args(["--model", model, "--check", &check])
                .arg(self.temp.join(recording))
                .output()
                .context("explore")
        };
        let mut explored = explore(row.failures, EXPLAIN)?;
        // Exit code 4: the failures that ended the search all lie before the first promise. A
        // second search with the limit of all states looks for later failures.
        if explored.status.code() == Some(4) {
            explored = explore(row.states, "0")?;
        }
        let report = text(&explored);
        self.save_report(row, model, &report)?;
        let Some(states) = states_in(&report) else { bail!("under {model}: {report}") };
        let more = if report.contains("NOT tried") { "+" } else { "" };
        let code = explored.status.code();
        let about = &quarry.about;
        let real = match code {
            // A row without a promise has no fault to show.
            Some(1) if !about.promises_nothing && about.published.is_none() && about.nodes.is_empty() => {
                self.cut(row, &check, about.device_states.unwrap_or(cut::STATES))?
            }
            _ => String::new(),
        };
        let verdict = match &about.published {
            Some(published) => found_again(code, &report, &published.finds),
            None => verdict(code, about.promises_nothing, real.starts_with(cut::FAILS)),
        };
        let (settings, seconds) = (&about.settings, start.elapsed().as_secs_f64());
        let key = quarry.key(model);
        let line =
            format!("{key} {version} | {settings} | {verdict} | {states}{more} | {real} | {seconds:.0} |");
        println!("{line}");
        self.results.push((key, line));
        Ok(())
    }
}

#[cfg(test)]
#[path = "hunt_tests.rs"]
mod tests;
