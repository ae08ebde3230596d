//! `cargo xtask crash-programs`: crash tests of common programs, whose results are compared with
//! the promises in their documentation.
//!
//! A row that must fail has to fail with the call that the documentation names. A program with a
//! known violation has to fail with that violation. A row that must pass has to have tried all
//! systematic states, or as many as the budget allows; the table says which. A row whose program is
//! not available is named at the end and does not count.
//!
//! With `--hunt` the rows are those of `programs/hunt`, and the table is `docs/hunt/TABLE.md`:
//! module `hunt`.
//!
//! With `--infer` and `--order` the same recordings measure the search itself: modules `inferred`
//! and `order`. With `--cost`, other programs measure the recorder: module `cost`.
//!
//! `--write` puts the results into the table of `docs/CRASH_TESTING.md`; rows that were not run
//! keep theirs.

mod clusters;
mod cost;
mod cut;
mod hunt;
mod inferred;
mod list;
mod needs;
mod order;
mod rows;

use anyhow::{Context, Result, bail};
use needs::{Cache, Need};
use rows::{Expect, ROWS, Row};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

const DOCUMENT: &str = "docs/CRASH_TESTING.md";
const BEGIN: &str = "<!-- results of crash-programs -->";
const END: &str = "<!-- end of results -->";
const HEAD: &str = "| program | model | documented | found | states | s |\n|---|---|---|---|---|---|";

struct Suite {
    kedge: PathBuf,
    dir: PathBuf,
    cache: Cache,
    temp: PathBuf,
    /// For each result: its key, which is the names of program and model, and its line of the
    /// table.
    results: Vec<(String, String)>,
    wrong: Vec<String>,
    left_out: Vec<String>,
}

/// What the run does with the recordings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Compares the verdicts of the written checkers with the documentation.
    Documented,
    /// Compares the verdicts of `explore --infer` with those of the written checkers.
    Inferred,
    /// Counts the states up to the first failure, in each order of the search.
    Order,
    /// Tests the programs of `programs/hunt`, in settings that are documented as safe.
    Hunt,
    /// Measures programs that commit, on a plain mount and under the recorder.
    Cost,
}

pub fn run(words: &[String], write: bool, purpose: Purpose) -> Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let target =
        cargo_metadata::MetadataCommand::new().no_deps().exec()?.target_directory.into_std_path_buf();
    let kedge = match std::env::var_os("KEDGE") {
        Some(path) => PathBuf::from(path),
        None => build(&target)?,
    };
    let temp = std::env::temp_dir().join(format!("kedge-programs-{}", std::process::id()));
    let (results, wrong, left_out) = (Vec::new(), Vec::new(), Vec::new());
    let mut suite = Suite { kedge, cache: Cache::new(&dir, &target)?, dir, temp, results, wrong, left_out };
    let head = match purpose {
        Purpose::Documented => HEAD,
        Purpose::Inferred => inferred::HEAD,
        Purpose::Order => order::HEAD,
        Purpose::Hunt => hunt::HEAD,
        Purpose::Cost => cost::HEAD,
    };
    println!("{head}");
    if purpose == Purpose::Hunt {
        return suite.hunt_all(words, write);
    }
    let (mut inferred, mut order) = (inferred::Tally::default(), order::Tally::default());
    let is_wanted = |row: &&Row| words.is_empty() || words.iter().any(|w| row.name.contains(w.as_str()));
    let rows = if purpose == Purpose::Cost { cost::ROWS } else { ROWS };
    for row in rows.iter().filter(is_wanted) {
        suite.with_temp(row.name, |suite| match purpose {
            Purpose::Documented => suite.row(row),
            Purpose::Inferred => suite.infer(row, &mut inferred),
            Purpose::Order => suite.compare_orders(row, &mut order),
            Purpose::Cost => suite.cost(row),
            Purpose::Hunt => Ok(()),
        })?;
        // Results are written after each row, so that an interrupted run keeps them.
        if write && purpose == Purpose::Documented {
            suite.write()?;
        }
    }
    match purpose {
        Purpose::Documented | Purpose::Hunt | Purpose::Cost => {}
        Purpose::Inferred => inferred.print(),
        Purpose::Order => order.print(),
    }
    suite.end()
}

fn build(target: &Path) -> Result<PathBuf> {
    crate::tools::cargo(&["build", "--quiet", "--profile", "soak", "-p", "kedge"])?;
    Ok(target.join("soak/kedge"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

impl Suite {
    /// Puts the results into the document.
    fn write(&self) -> Result<()> {
        let keys =
            ROWS.iter().flat_map(|r| r.expect.iter().map(|(model, _)| format!("| {} | {model} |", r.name)));
        change(DOCUMENT, |text| with_results(text, keys, HEAD, &self.results))
    }

    /// Calls `f` while `temp` is a temporary directory.
    fn with_temp(&mut self, name: &str, f: impl FnOnce(&mut Suite) -> Result<()>) -> Result<()> {
        std::fs::create_dir_all(&self.temp).with_context(|| format!("create {}", self.temp.display()))?;
        if let Err(e) = f(self) {
            self.wrong.push(format!("{name}: {e:#}"));
        }
        std::fs::remove_dir_all(&self.temp).with_context(|| format!("remove {}", self.temp.display()))
    }

    /// Prints which rows were not run. Fails if results are wrong.
    fn end(&self) -> Result<()> {
        for row in &self.left_out {
            println!("left out: {row}");
        }
        if !self.wrong.is_empty() {
            bail!("{}", self.wrong.join("\n"));
        }
        Ok(())
    }

    /// Keeps the report of a row, since the table has only its verdict.
    fn save_report(&self, row: &Row, model: &str, report: &str) -> Result<()> {
        let dir = self.cache.reports();
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let name: String =
            row.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = dir.join(format!("{name}.{model}.txt"));
        std::fs::write(&path, report).with_context(|| path.display().to_string())
    }

    fn hunt_all(&mut self, words: &[String], write: bool) -> Result<()> {
        let rows = hunt::rows(&self.dir)?;
        for quarry in &rows {
            if !words.is_empty() && !words.iter().any(|w| quarry.row.name.contains(w.as_str())) {
                continue;
            }
            self.with_temp(quarry.row.name, |suite| suite.hunt(quarry))?;
            if write {
                let keys = rows.iter().flat_map(hunt::Quarry::keys);
                change(hunt::DOCUMENT, |text| {
                    let text = with_results(text, keys, hunt::HEAD, &self.results)?;
                    let text = between(&text, hunt::SOURCES, &hunt::sources(&rows, &text))?;
                    let (from, to) = bounds(&text, BEGIN, END)?;
                    between(&text, list::MARKS, &list::list(&text[from..to], &read(DOCUMENT)?))
                })?;
            }
        }
        self.end()
    }

    /// Whether everything that the row needs is available.
    fn is_available(&mut self, row: &Row) -> bool {
        let missing: Vec<String> = row
            .needs
            .iter()
            .filter_map(|need: &Need| self.cache.get(*need).err())
            .map(|e| format!("{e:#}"))
            .collect();
        if !missing.is_empty() {
            self.left_out.push(format!("{}: {}", row.name, missing.join("; ")));
        }
        missing.is_empty()
    }

    fn row(&mut self, row: &Row) -> Result<()> {
        if !self.is_available(row) {
            return Ok(());
        }
        self.prepare_and_record(row)?;
        let check = row.check.replace("$PROGRAMS", &self.dir.to_string_lossy());
        let mut wrong = Vec::new();
        for (model, expect) in row.expect {
            wrong.extend(self.explore(row, model, expect, &check)?);
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
    }

    /// A command with the environment variables that the scripts use.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .env("PROGRAM_FROM", self.temp.join("from"))
            .env("PROGRAM_TEMP", &self.temp)
            .env("PYTHONPATH", format!("{}:{}", self.dir.display(), self.cache.python().display()))
            .env("PROGRAMS", &self.dir)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PATH", format!("{}:{path}", self.cache.bin().display()));
        command
    }

    fn prepare_and_record(&self, row: &Row) -> Result<()> {
        self.prepare(row)?;
        self.record(row)
    }

    fn prepare(&self, row: &Row) -> Result<()> {
        let from = self.temp.join("from");
        std::fs::create_dir(&from).with_context(|| format!("create {}", from.display()))?;
        if let Some(script) = row.prepare {
            let prepared = self.command("sh").arg(self.dir.join(script)).output().context("start sh")?;
            if !prepared.status.success() {
                bail!("not prepared: {}", text(&prepared));
            }
        }
        Ok(())
    }

    fn record(&self, row: &Row) -> Result<()> {
        let (script, args) = row.run.split_first().context("a script")?;
        // A program that was built for the row is found by its name on the PATH; other rows name a
        // script.
        let script = match row.program {
            "env" => PathBuf::from(script),
            _ => self.dir.join(script),
        };
        let recorded = self
            .command(&self.kedge)
            .args(["crash", "record", "--ack", "^ack", "--timeout", "5m"])
            .args(row.mappings.then_some("--mappings"))
            .arg("--from")
            .arg(self.temp.join("from"))
            .arg("-o")
            .arg(self.temp.join("run.kcr"))
            .args(["--", row.program])
            .arg(script)
            .args(args)
            .output()
            .with_context(|| format!("start {}", self.kedge.display()))?;
        if !recorded.status.success() {
            bail!("not recorded: {}", text(&recorded));
        }
        Ok(())
    }

    /// Searches the recording of a row. Returns what is wrong with the result.
    #[allow(clippy::disallowed_methods)]
    fn explore(&mut self, row: &Row, model: &str, expect: &Expect, check: &str) -> Result<Option<String>> {
        let start = Instant::now();
        let explored = self
            .command(&self.kedge)
            .args(["crash", "explore", "--quiet", "--timeout", "2m", "--budget", &row.states.to_string()])
            .args(["--max-failures", &row.failures.to_string(), "--model", model, "--check", check])
            .arg(self.temp.join("run.kcr"))
            .output()?;
        let report = text(&explored);
        let states = report.split_once(" distinct").and_then(|(before, _)| before.rsplit(' ').next());
        let states = states.unwrap_or("none");
        // If not all systematic states were tried, the count of states gets a mark.
        let more = if report.contains("NOT tried") { "+" } else { "" };
        // Exit code 4: the program fails only before its first promise.
        let is_failure = matches!(explored.status.code(), Some(1 | 4));
        let fails_with = |word: &str| is_failure && report.contains(word);
        let (documented, is_right) = match expect {
            Expect::Pass => ("passes".to_owned(), explored.status.success()),
            Expect::Fail(word) => (format!("fails: `{word}`"), fails_with(word)),
            Expect::Fault(word) => ("passes".to_owned(), fails_with(word)),
        };
        let found = match explored.status.code() {
            Some(0) => "passes",
            Some(1 | 4) => "fails",
            _ => "no verdict",
        };
        let seconds = start.elapsed().as_secs_f64();
        let key = format!("| {} | {model} |", row.name);
        let line = format!("{key} {documented} | {found} | {states}{more} | {seconds:.1} |");
        println!("{line}");
        self.results.push((key, line));
        Ok((!is_right).then(|| format!("under {model}: {report}")))
    }
}

/// The number of distinct states in a report.
fn states_in(report: &str) -> Option<u64> {
    let (before, _) = report.split_once(" distinct")?;
    before.rsplit(' ').next()?.parse().ok()
}

fn path_of(document: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(document)
}

fn read(document: &str) -> Result<String> {
    std::fs::read_to_string(path_of(document)).with_context(|| document.to_owned())
}

fn change(document: &str, change: impl FnOnce(&str) -> Result<String>) -> Result<()> {
    let text = change(&read(document)?).with_context(|| document.to_owned())?;
    std::fs::write(path_of(document), text).with_context(|| document.to_owned())
}

/// Returns where the text between two marks begins and ends.
fn bounds(text: &str, begin: &str, end: &str) -> Result<(usize, usize)> {
    let start = text.find(begin).with_context(|| format!("it has no {begin}"))? + begin.len();
    let len = text[start..].find(end).with_context(|| format!("it has no {end}"))?;
    Ok((start, start + len))
}

/// Returns the document with `new` between the two marks.
fn between(text: &str, (begin, end): (&str, &str), new: &str) -> Result<String> {
    let (from, to) = bounds(text, begin, end)?;
    Ok(format!("{}\n{new}{}", &text[..from], &text[to..]))
}

/// Returns the document with these lines in its table, in the order of the keys. Lines whose key no
/// longer exists are dropped.
fn with_results(
    text: &str,
    keys: impl Iterator<Item = String>,
    head: &str,
    results: &[(String, String)],
) -> Result<String> {
    let (from, to) = bounds(text, BEGIN, END)?;
    let old: Vec<&str> = text[from..to].lines().collect();
    let mut table = format!("{head}\n");
    for key in keys {
        let new = results.iter().find(|(k, _)| *k == key).map(|(_, line)| line.as_str());
        if let Some(line) = new.or_else(|| old.iter().copied().find(|line| line.starts_with(&key))) {
            table.push_str(line);
            table.push('\n');
        }
    }
    between(text, (BEGIN, END), &table)
}

#[cfg(test)]
#[path = "programs_tests.rs"]
mod tests;
