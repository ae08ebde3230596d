//! Crash exploration from the command line; `cargo xtask crash` runs it.

use anyhow::{Context, bail};
use kedge_base::{Clock, SystemClock};
use kedge_sim::campaign::{Files, Options, run, run_one};
use kedge_sim::workload::{Catalogue, Kind, WorkloadId};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str =
    "crash-states [--full] [--thorough] [--seed N] [--minutes M] [--seq 1|2|3]... [--resume FILE]
            [--threads N] [--count] [--switched] [--inline|--edges] [--workload ID [--state K]]

Without --full: a slice of the given minutes (KEDGE_CRASH_MINUTES, else 2), all lengths in turn, in an order given by the
seed, with the mount's switches set by the seed, too (as by --switched). Without --seed: another one every day.
With --inline, and in slices of odd seeds: small files, in an image with their data in the tree. With --edges, and in
slices of every other odd seed: files around the length of the longest of them.";

const MINUTES: f64 = 2.0;

#[derive(Default)]
struct Args {
    full: bool,
    thorough: bool,
    count: bool,
    switched: bool,
    inline: bool,
    edges: bool,
    seed: Option<u64>,
    minutes: Option<f64>,
    seqs: Vec<u8>,
    resume: Option<String>,
    threads: Option<usize>,
    workload: Option<WorkloadId>,
    state: Option<u64>,
}

fn parse() -> anyhow::Result<Args> {
    let mut args = Args::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--full" => args.full = true,
            "--thorough" => args.thorough = true,
            "--switched" => args.switched = true,
            "--inline" => args.inline = true,
            "--edges" => args.edges = true,
            "--count" => args.count = true,
            "--seed" => args.seed = Some(value()?.parse()?),
            "--minutes" => args.minutes = Some(value()?.parse()?),
            "--seq" => args.seqs.push(value()?.parse()?),
            "--resume" => args.resume = Some(value()?),
            "--threads" => args.threads = Some(value()?.parse()?),
            "--workload" => args.workload = Some(value()?.parse().map_err(anyhow::Error::msg)?),
            "--state" => args.state = Some(value()?.parse()?),
            _ => bail!("{word}?\n{USAGE}"),
        }
    }
    if args.seqs.iter().any(|seq| !(1..=3).contains(seq)) {
        bail!("--seq is 1, 2 or 3\n{USAGE}");
    }
    Ok(args)
}

fn count(kind: Kind, seqs: &[u8]) {
    for &seq in seqs {
        let catalogue = Catalogue::of(kind, seq, 0);
        let workloads: usize = match seq {
            3 => catalogue.len() as usize,
            _ => (0..catalogue.len()).map(|i| catalogue.variants(i).len()).sum(),
        };
        println!("{seq} operation(s): {} skeletons, {workloads} workloads", catalogue.len());
    }
}

fn slice_minutes() -> anyhow::Result<f64> {
    match std::env::var("KEDGE_CRASH_MINUTES") {
        Ok(text) => text.parse().with_context(|| format!("KEDGE_CRASH_MINUTES={text} is no number")),
        Err(_) => Ok(MINUTES),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let args = parse()?;
    // The seed changes with the date, so that each day explores other workloads.
    let days = SystemClock::default().now().sec as u64 / 86400;
    let seed = args.seed.unwrap_or(days);
    let seqs = match (args.seqs.is_empty(), args.full) {
        (false, _) => args.seqs,
        (true, true) => vec![1, 2],
        (true, false) => vec![1, 2, 3],
    };
    if args.count {
        count(if args.edges { Kind::Edges } else { Kind::All }, &seqs);
        return Ok(ExitCode::SUCCESS);
    }
    let minutes = match (args.minutes, args.full) {
        (None, false) => Some(slice_minutes()?),
        (minutes, _) => minutes,
    };
    let share = minutes.map(|m| Duration::from_secs_f64(m * 60.0 / seqs.len() as f64));
    let slice = !args.full && args.workload.is_none();
    let files = match (args.inline, args.edges) {
        (_, true) => Files::Edges,
        (true, _) => Files::Small,
        _ if slice && seed % 4 == 3 => Files::Edges,
        _ if slice && seed % 4 == 1 => Files::Small,
        _ => Files::Usual,
    };
    let options = Options {
        seed,
        parts: seqs.into_iter().map(|seq| (seq, share)).collect(),
        resume: args.resume.map(Into::into),
        threads: args.threads.unwrap_or(2),
        thorough: args.thorough,
        switched: args.switched || slice,
        files,
    };
    if let Some(id) = args.workload {
        let well = run_one(&options, id, args.state)?;
        return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if !args.full {
        println!("a slice; again: cargo xtask crash --seed {seed}");
    }
    let tally = run(&options)?;
    Ok(if tally.violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
