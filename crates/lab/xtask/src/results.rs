//! The first table of docs/EXPERIMENTS.md, made from the result files: the published effect of each
//! change, our result, and a verdict.
//!
//! The verdict follows a rule. A place (a part of an experiment) *reaches* the published figure if
//! it changes at least as much in the same direction. If all measured places reach it, the verdict
//! is *reproduced*; if some, *in part*; if none, *missed*. The result files list the published
//! change beside ours.
//!
//! The cells of a result file are rounded, so a change computed from two of them would differ from
//! the one that the experiment computed. So each change is read from the file: from its column of
//! changes, or from one of the experiment's bars.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// A place: part of a section's title in lower case, and the name that the table uses for it.
const MODEL: (&str, &str) = ("device in memory", "1 ms");
const PROCESS: (&str, &str) = ("in this process", "in process");
const MOUNT: (&str, &str) = ("on the mount", "on the mount");
const BARS: &str = "bars";
/// Part of the title of sections that repeat others with another log; they are skipped.
const REPEATED: &str = "log of the default size";

struct Row {
    change: &'static str,
    file: &'static str,
    /// Part of a contest's title. The first contest that contains it is used.
    contest: &'static str,
    metric: &'static str,
    places: &'static [(&'static str, &'static str)],
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The change from the first to the second contestant, in percent.
    Change,
    /// [`Kind::Change`], with the published change of another metric.
    ChangeAs(&'static str),
    /// The figures themselves, as in the file.
    FromTo,
    /// The change of [`Kind::Change`] as the ratio of the second figure to the first.
    Times,
    /// The value reached for the bar of this title, beside the published change of the metric.
    Bar(&'static str),
    /// [`Kind::Bar`], if the published change was measured by others.
    BarAlone(&'static str),
}

const fn row(
    change: &'static str,
    file: &'static str,
    contest: &'static str,
    metric: &'static str,
    places: &'static [(&'static str, &'static str)],
    kind: Kind,
) -> Row {
    Row { change, file, contest, metric, places, kind }
}

const COMMITS: &str = "commits (jbd2: transactions)";

const ALL: &[(&str, &str)] = &[MODEL, PROCESS, MOUNT];
const BOTH: &[(&str, &str)] = &[PROCESS, MOUNT];

const ROWS: &[Row] = &[
    row("Btrfs, new names: average of rename", "rename", "dbench", "Rename average, ms", ALL, Kind::Change),
    row(
        "the same, less what *null* takes",
        "rename",
        "dbench",
        "Rename average, ms",
        &[MOUNT],
        Kind::Bar("mount, dbench, 16 clients: Rename average, less the null file system's"),
    ),
    row(
        "the same, in the file system alone",
        "rename",
        "dbench",
        "rename without the way to it, average, ms",
        &[MOUNT],
        Kind::ChangeAs("Rename average, ms"),
    ),
    row("longest rename", "rename", "dbench", "Rename maximum, ms", ALL, Kind::Change),
    row("worst latency of all operations", "rename", "dbench", "worst latency, ms", ALL, Kind::Change),
    row("throughput of dbench", "rename", "dbench", "throughput, MB/s", ALL, Kind::Change),
    row(
        "XFS, fdatasync: log forces for each call",
        "fdatasync",
        "1 thread",
        "log forces per fdatasync",
        ALL,
        Kind::FromTo,
    ),
    row(
        "runtime of 1,000 overwrites",
        "fdatasync",
        "1 thread",
        "runtime of 1,000 overwrites, s",
        ALL,
        Kind::Change,
    ),
    row("ext4, checkpoints: files/s of S1", "checkpoint", "S1", "files, /s", BOTH, Kind::Change),
    row("files/s of S3", "checkpoint", "S3", "files, /s", BOTH, Kind::Change),
    row("files/s of S5", "checkpoint", "S5", "files, /s", BOTH, Kind::Change),
    row("commits of S1", "checkpoint", "S1", COMMITS, BOTH, Kind::Change),
    row("commits of S3", "checkpoint", "S3", COMMITS, BOTH, Kind::Change),
    row("commits of S5", "checkpoint", "S5", COMMITS, BOTH, Kind::Change),
    row("Btrfs, latches: wall time", "tree-lock", "empty files", "wall time, s", &[PROCESS], Kind::Change),
    row("write lock calls", "tree-lock", "empty files", "write lock calls", &[PROCESS], Kind::Change),
    row("throughput of dbench", "tree-lock", "dbench", "throughput, MB/s", &[PROCESS], Kind::Change),
    row("Linux, plug: files/s", "writeback", "", "files, /s", BOTH, Kind::Change),
    row("device writes a second", "writeback", "", "device writes per second, /s", BOTH, Kind::Change),
    row(
        "device writes, counted by the kernel",
        "writeback",
        "",
        "the kernel's count: writes",
        BOTH,
        Kind::ChangeAs("device writes per second, /s"),
    ),
    row(
        "Linux, dirty inodes: xfs/297 beside a million cached inodes, old lists",
        "sync",
        "freezes",
        "time without the holds, s",
        &[XFS_297],
        Kind::Times,
    ),
    row(
        "the same, new lists",
        "sync",
        "freezes",
        "time without the holds, s",
        &[XFS_297],
        Kind::BarAlone(
            "320000 operations by 200 threads, and 10 freezes: time with A full by A empty, per_sb",
        ),
    ),
    row(
        "a storm of syncs beside them, old lists",
        "sync",
        "syncs on B",
        "storm, s",
        &[PROCESS_SYNC],
        Kind::Times,
    ),
    row(
        "the same, new lists",
        "sync",
        "syncs on B",
        "storm, s",
        &[PROCESS_SYNC],
        Kind::BarAlone("1600 syncs on B by 8 threads: storm with A full by A empty, per_sb"),
    ),
];

const XFS_297: (&str, &str) = ("the load of xfs/297", "in process");
const PROCESS_SYNC: (&str, &str) = ("two libraries in this process", "in process");

/// The place of a run on simulated processors.
const TWELVE: (&str, &str) = ("on 12 processors that are simulated", "12 simulated processors");

const SIXTEEN: (&str, &str) = ("on 16 processors that are simulated", "16 simulated processors");

/// Rows that two real processors cannot show.
const SIMULATED: &[Row] = &[
    row(
        "Btrfs, latches: files/s",
        "processors-tree-lock",
        "empty files",
        "files, /s",
        &[TWELVE],
        Kind::Change,
    ),
    row("wall time", "processors-tree-lock", "empty files", "wall time, s", &[TWELVE], Kind::Change),
    row(
        "write lock calls",
        "processors-tree-lock",
        "empty files",
        "write lock calls",
        &[TWELVE],
        Kind::Change,
    ),
    row("longest wait", "processors-tree-lock", "empty files", "longest wait, ms", &[TWELVE], Kind::Change),
    row(
        "throughput of dbench",
        "processors-tree-lock",
        "dbench",
        "throughput, MB/s",
        &[TWELVE],
        Kind::Change,
    ),
    row(
        "Btrfs, new names: average of rename",
        "processors-rename",
        "dbench",
        "Rename average, ms",
        &[TWELVE],
        Kind::Change,
    ),
    row("longest rename", "processors-rename", "dbench", "Rename maximum, ms", &[TWELVE], Kind::Change),
    row(
        "worst latency of all operations",
        "processors-rename",
        "dbench",
        "worst latency, ms",
        &[TWELVE],
        Kind::Change,
    ),
    row("throughput of dbench", "processors-rename", "dbench", "throughput, MB/s", &[TWELVE], Kind::Change),
    row(
        "XFS, fdatasync: log forces for each call",
        "processors-fdatasync",
        "1 thread",
        "log forces per fdatasync",
        &[SIXTEEN],
        Kind::FromTo,
    ),
    row(
        "runtime of 1,000 overwrites",
        "processors-fdatasync",
        "1 thread",
        "runtime of 1,000 overwrites, s",
        &[SIXTEEN],
        Kind::Change,
    ),
    row(
        "ext4, checkpoints: files/s of S1",
        "processors-checkpoint",
        "S1",
        "files, /s",
        &[SIXTEEN],
        Kind::Change,
    ),
    row("files/s of S3", "processors-checkpoint", "S3", "files, /s", &[SIXTEEN], Kind::Change),
    row("files/s of S5", "processors-checkpoint", "S5", "files, /s", &[SIXTEEN], Kind::Change),
    row("commits of S1", "processors-checkpoint", "S1", COMMITS, &[SIXTEEN], Kind::Change),
    row("commits of S3", "processors-checkpoint", "S3", COMMITS, &[SIXTEEN], Kind::Change),
    row("commits of S5", "processors-checkpoint", "S5", COMMITS, &[SIXTEEN], Kind::Change),
    row("Linux, plug: files/s", "processors-writeback", "files", "files, /s", &[SIXTEEN], Kind::Change),
    row(
        "device writes a second",
        "processors-writeback",
        "files",
        "device writes per second, /s",
        &[SIXTEEN],
        Kind::Change,
    ),
];

/// Makes the text of the first generated part.
pub fn table() -> Result<String> {
    of_files(ROWS)
}

/// Makes the text of the part about simulated processors.
pub fn simulated() -> Result<String> {
    of_files(SIMULATED)
}

fn of_files(rows: &[Row]) -> Result<String> {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/results");
    let mut files = BTreeMap::new();
    for row in rows {
        if !files.contains_key(row.file) {
            let path = results.join(format!("{}.md", row.file));
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            files.insert(row.file, parse(&text).with_context(|| path.display().to_string())?);
        }
    }
    render(rows, &files)
}

fn render(rows: &[Row], files: &BTreeMap<&str, Vec<Line>>) -> Result<String> {
    let mut out = String::from("| change | published | here | verdict |\n|---|---|---|---|\n");
    for row in rows {
        let lines = files.get(row.file).map_or(&[][..], Vec::as_slice);
        let (published, here, word) = row.cells(lines).with_context(|| row.change.to_owned())?;
        writeln!(out, "| {} | {published} | {here} | {word} |", row.change).expect("a String takes all");
    }
    Ok(out)
}

/// A line of a table: the section's title in lower case, the contest, the metric with its unit, and
/// the other cells by column name.
#[derive(Debug)]
struct Line {
    section: String,
    contest: String,
    metric: String,
    cells: Vec<(String, String)>,
}

fn parse(text: &str) -> Result<Vec<Line>> {
    let (mut section, mut head, mut lines) = (String::new(), None, Vec::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            (section, head) = (title.to_lowercase(), None);
            continue;
        }
        let Some(inner) = line.strip_prefix('|').and_then(|l| l.strip_suffix('|')) else { continue };
        let cells: Vec<String> = inner.split('|').map(|cell| cell.trim().to_owned()).collect();
        let Some(names) = &head else {
            head = Some(cells);
            continue;
        };
        if inner.starts_with('-') {
            continue;
        }
        ensure!(cells.len() == names.len() && cells.len() > 2, "a line of another width: {line}");
        let named = names.iter().cloned().zip(cells.iter().cloned()).skip(2).collect();
        let mut first = cells.into_iter();
        let mut next = || first.next().expect("more than two");
        lines.push(Line { section: section.clone(), contest: next(), metric: next(), cells: named });
    }
    ensure!(!lines.is_empty(), "no tables");
    Ok(lines)
}

/// Parses `12,345.6 ±7 %`, `-3.4 %` or `0.00, once 5`. Returns `None` for `-` and `FAILED`.
fn number(cell: &str) -> Option<f64> {
    let word = cell.split(' ').next()?;
    word.trim_end_matches(',').replace(',', "").parse().ok()
}

impl Line {
    fn cell(&self, column: &str) -> Option<f64> {
        number(&self.cells.iter().find(|(name, _)| name == column)?.1)
    }

    /// The cells with the published figures before and after the change.
    fn published_from_to(&self) -> Option<(&str, &str)> {
        let mut cells = self.cells.iter().filter(|(name, _)| name.starts_with("published: "));
        let mut next = || cells.next().map(|(_, cell)| cell.as_str());
        Some((next()?, next()?))
    }
}

/// A figure as printed, and the value to compare.
type Cell = (String, f64);

impl Row {
    fn line<'l>(&self, lines: &'l [Line], place: &str, metric: &str) -> Option<&'l Line> {
        lines.iter().find(|line| {
            line.section.contains(place)
                && !line.section.contains(REPEATED)
                && line.contest.contains(self.contest)
                && line.metric == metric
        })
    }

    /// Returns the published figure, ours, and the verdict.
    fn cells(&self, lines: &[Line]) -> Result<(String, String, String)> {
        // If the file lacks the section or the contest, it is the wrong file. It may lack a metric
        // that is newer than the file.
        let known = lines.iter().any(|line| {
            self.places.iter().any(|(place, _)| line.section.contains(place))
                && line.contest.contains(self.contest)
        });
        ensure!(known, "{}.md has no such table", self.file);
        let published = self.places.iter().find_map(|(place, _)| self.published(lines, place));
        let mut cells = Vec::new();
        let mut reached = Vec::new();
        for (place, name) in self.places {
            let Some((words, value)) = self.ours(lines, place)? else {
                cells.push(format!("{name} –"));
                continue;
            };
            cells.push(format!("{name} {words}"));
            reached.extend(published.as_ref().map(|(_, wanted)| reaches(value, *wanted)));
        }
        let measured = cells.iter().any(|words| !words.ends_with('–'));
        let word = match (reached.iter().filter(|r| **r).count(), reached.len()) {
            _ if !measured => "not measured",
            (_, 0) => "–",
            (n, all) if n == all => "reproduced",
            (0, _) => "missed",
            _ => "in part",
        };
        Ok((published.map_or("–".into(), |(words, _)| words), cells.join(", "), word.into()))
    }

    fn ours(&self, lines: &[Line], place: &str) -> Result<Option<Cell>> {
        if let Kind::Bar(title) | Kind::BarAlone(title) = self.kind {
            let bar = lines.iter().find(|line| line.section == BARS && line.contest == title);
            let bar = bar.with_context(|| format!("{}.md has no bar \"{title}\"", self.file))?;
            return Ok(reached(&bar.cells));
        }
        let Some(line) = self.line(lines, place, self.metric) else { return Ok(None) };
        Ok(match self.kind {
            Kind::FromTo => match &line.cells[..] {
                [(_, from), (_, to), ..] => from_to(from, to, line.cell("change")),
                _ => None,
            },
            Kind::Times => line.cell("change").map(|change| times(1.0 + change / 100.0)),
            _ => line.cell("change").map(percent),
        })
    }

    fn published(&self, lines: &[Line], place: &str) -> Option<Cell> {
        let metric = if let Kind::ChangeAs(metric) = self.kind { metric } else { self.metric };
        let line = self.line(lines, place, metric)?;
        let change = line.cell("published change");
        match self.kind {
            Kind::FromTo => {
                let (from, to) = line.published_from_to()?;
                from_to(from, to, change)
            }
            Kind::Times => change.map(|change| times(1.0 + change / 100.0)),
            Kind::BarAlone(_) => None,
            _ => change.map(percent),
        }
    }
}

/// The value reached for a bar: a change in percent, or a ratio.
fn reached(cells: &[(String, String)]) -> Option<Cell> {
    let (_, cell) = cells.iter().find(|(name, _)| name == "reached")?;
    let value = number(cell)?;
    Some(if cell.ends_with('%') { percent(value) } else { times(value) })
}

/// Our two figures, with as many digits as the cells have.
fn from_to(from: &str, to: &str, change: Option<f64>) -> Option<Cell> {
    let digits = |cell: &str| cell.split(' ').next().map(str::to_owned);
    Some((format!("{} to {}", digits(from)?, digits(to)?), change?))
}

fn times(times: f64) -> Cell {
    let words = if times < 10.0 { format!("{times:.2} times") } else { format!("{times:.0} times") };
    (words, times)
}

fn percent(change: f64) -> Cell {
    let words = if change.abs() < 9.95 { format!("{change:+.1} %") } else { format!("{change:+.0} %") };
    (words, change)
}

/// Whether our change is at least as large in the same direction.
fn reaches(ours: f64, published: f64) -> bool {
    if published < 0.0 { ours <= published } else { ours >= published }
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
