//! Compares the observed trees with those that the model allows.

use crate::Run;
use crate::device::{self, Kind};
use crate::judge::{Allowed, Judge, Shown, Strange};
use crate::workload::Workload;
use anyhow::{Context, Result, ensure};
use kedge_crash::{Budget, History, Model, Search};
use parking_lot::Mutex;
use std::fmt::Write;

/// The most mount errors that are described. All are counted.
const TOLD_MAX: usize = 3;

/// The result of one workload on one file system.
pub struct Row {
    kind: &'static str,
    model: &'static str,
    workload: Workload,
    /// The number of writes and of flushes of the device.
    writes: usize,
    flushes: usize,
    mounts: u64,
    /// The number of trees that the model allows, and of those that were observed.
    allowed: usize,
    seen: usize,
    strange: Vec<Strange>,
    unmountable: Vec<String>,
    torn_unmountable: u64,
    /// The number of planned states that the budget did not reach.
    unreached: u64,
}

#[derive(Default)]
pub struct Report {
    pub rows: Vec<Row>,
    left_out: Vec<String>,
}

/// Runs a workload and mounts its crash states.
pub fn row(kind: &Kind, workload: &Workload, run: &Run, states: u64) -> Result<Row> {
    let model = Model::by_name(run.model.as_deref().unwrap_or(kind.model)).context("no such model")?;
    let allowed = Allowed::new(workload, model)?;
    let temp = tempfile::Builder::new().prefix("kedge-reality-").tempdir_in(device::place())?;
    let trace = kind.record(workload, temp.path())?;
    // A device guarantees least: a crash keeps any subset of the writes since the last flush, whole
    // or torn. The model `posix` allows the same for one file.
    let device = Model::by_name("posix").expect("it is a model");
    let history = History::new(&trace, device);
    let judge = Judge {
        kind: *kind,
        allowed: &allowed,
        temp: temp.path().to_owned(),
        keep: run.keep.clone(),
        shown: Mutex::default(),
    };
    let budget = Budget { states: Some(states), seed: run.seed, ..Budget::default() };
    let search = Search { trace: &trace, history: &history, checker: &judge, budget, hear: None };
    let outcome = search.run();
    ensure!(outcome.broken.is_none(), "{}", outcome.broken.unwrap_or_default());
    let Shown { mounts, trees, strange, unmountable, torn_unmountable } = judge.shown.into_inner();
    let legal = allowed.trees();
    let calls = &trace.events[trace.start()..];
    Ok(Row {
        kind: kind.name,
        model: model.name,
        workload: workload.clone(),
        writes: calls.iter().filter(|e| e.call.name() == "write").count(),
        flushes: calls.iter().filter(|e| e.call.name() == "fsync").count(),
        mounts,
        allowed: legal.len(),
        seen: trees.intersection(&legal).count(),
        strange: strange.into_values().collect(),
        unmountable,
        torn_unmountable,
        unreached: outcome.unreached,
    })
}

impl Report {
    pub fn left_out(&mut self, kind: &Kind, why: &str) {
        println!("{}: left out: {why}", kind.name);
        self.left_out.push(format!("{}: {why}", kind.name));
    }

    pub fn add(&mut self, row: Row) {
        println!(
            "{}: {} states mounted, {} of {} allowed trees seen, {} forbidden, {} not mountable ({} torn): {}",
            row.kind,
            row.mounts,
            row.seen,
            row.allowed,
            row.strange.len(),
            row.unmountable.len(),
            row.torn_unmountable,
            row.workload
        );
        for strange in &row.strange {
            println!("  after {} steps, state {}: {}", strange.done, strange.recipe, strange.shown);
        }
        for why in row.unmountable.iter().take(TOLD_MAX) {
            println!("  {why}");
        }
        self.rows.push(row);
    }

    pub fn is_allowed(&self) -> bool {
        self.rows.iter().all(|r| r.strange.is_empty() && r.unmountable.is_empty())
    }

    /// One line for each file system.
    pub fn summary(&self) -> String {
        let mut text = String::from(
            "| file system | model | workloads | mounts | allowed trees | seen | never seen | forbidden, but seen | not mountable | \
             the same, a block torn |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for rows in self.rows.chunk_by(|a, b| a.kind == b.kind) {
            let sum = |of: fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
            let (allowed, seen) = (sum(|r| r.allowed), sum(|r| r.seen));
            let mounts: u64 = rows.iter().map(|r| r.mounts).sum();
            let (strange, unmountable) = (sum(|r| r.strange.len()), sum(|r| r.unmountable.len()));
            let torn: u64 = rows.iter().map(|r| r.torn_unmountable).sum();
            let (kind, model, count) = (rows[0].kind, rows[0].model, rows.len());
            let never = allowed - seen;
            writeln!(
                text,
                "| {kind} | `{model}` | {count} | {mounts} | {allowed} | {seen} | {never} | {strange} | {unmountable} | {torn} |"
            )
            .expect("a string takes all");
        }
        text
    }
}

impl Report {
    /// The page for `docs/results` as Markdown.
    pub fn markdown(&self, run: &Run, states: u64) -> Result<String> {
        let mut text = String::from(HEAD);
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        writeln!(
            text,
            "Linux {}, seed {}, {} random workloads, at most {states} states of the device for each.\n",
            kernel.trim(),
            run.seed,
            run.random
        )?;
        text.push_str(&self.summary());
        for why in &self.left_out {
            writeln!(text, "\nLeft out: {why}.")?;
        }
        text.push_str("\n## Each workload\n\n| file system | workload | writes | flushes | mounts | allowed | seen |\n|---|---|---|---|---|---|---|\n");
        for r in &self.rows {
            writeln!(
                text,
                "| {} | `{}` | {} | {} | {} | {} | {} |",
                r.kind,
                r.workload.to_string().replace('|', "\\|"),
                r.writes,
                r.flushes,
                r.mounts,
                r.allowed,
                r.seen
            )?;
        }
        let cut = self.rows.iter().filter(|r| r.unreached > 0).count();
        writeln!(
            text,
            "\nThe budget ended before all systematic states in {cut} of {} rows.",
            self.rows.len()
        )?;
        self.forbidden(&mut text)?;
        Ok(text)
    }

    fn forbidden(&self, text: &mut String) -> Result<()> {
        text.push_str("\n## Forbidden, but seen\n\n");
        let rows = self.rows.iter().filter(|r| !r.strange.is_empty() || !r.unmountable.is_empty());
        let mut is_empty = true;
        for row in rows {
            is_empty = false;
            writeln!(text, "{}, `{}`:\n", row.kind, row.workload)?;
            for s in &row.strange {
                writeln!(text, "- after {} steps: {}", s.done, s.shown)?;
            }
            for why in row.unmountable.iter().take(TOLD_MAX) {
                writeln!(text, "- not mountable: {why}")?;
            }
            text.push('\n');
        }
        if is_empty {
            text.push_str("Nothing.\n");
        }
        Ok(())
    }
}

const HEAD: &str = "\
# The crash models beside real file systems

Written by `cargo xtask crash-reality`. *Allowed*: different trees that the model allows at some
moment of a workload. *Seen*: those of them that the kernel showed after a crash. What it showed
besides is at the end. `crates/crash/reality/src/workload.rs` explains the workloads.

";
