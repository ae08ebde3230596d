//! `cargo xtask crash-speed`: what crash tests cost, with optimised builds.
//!
//! 1. A fixed number of SQLite transactions on a plain mount and recorded: the slow-down. Both
//!    images are in memory.
//! 2. Ten seconds of SQLite recorded; 10,000 states of it under `posix` without a judge: states in
//!    a second.
//! 3. The same states with a check that takes 20 ms, on as many processors as there are.
//!
//! Figures only: nothing fails for them. Times mean something on a machine that has nothing else to
//! do; the processor's time, which is told beside them, and the shortest of several runs suffer
//! less from what else runs.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const TRANSACTIONS: &str = "1500";
const STATES: &str = "10000";
const PAIRS: usize = 5;

pub fn run() -> Result<()> {
    crate::tools::cargo(&["build", "--quiet", "--release", "-p", "kedge"])?;
    crate::tools::cargo(&["build", "--quiet", "--release", "-p", "kedge-crash", "--example", "speed"])?;
    let target =
        cargo_metadata::MetadataCommand::new().no_deps().exec()?.target_directory.into_std_path_buf();
    let place = Path::new("/dev/shm").join(format!("kedge-speed-{}", std::process::id()));
    std::fs::create_dir(&place).with_context(|| format!("create {}", place.display()))?;
    let speed = Speed {
        kedge: target.join("release/kedge"),
        example: target.join("release/examples/speed"),
        script: Path::new(env!("CARGO_MANIFEST_DIR")).join("zoo/speed.py"),
        place,
    };
    let measured = speed.measure();
    std::fs::remove_dir_all(&speed.place).with_context(|| format!("remove {}", speed.place.display()))?;
    measured
}

struct Speed {
    kedge: PathBuf,
    example: PathBuf,
    script: PathBuf,
    place: PathBuf,
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    ensure!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}

impl Speed {
    #[allow(clippy::disallowed_methods)]
    fn measure(&self) -> Result<()> {
        let (mut plain, mut recorded) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let (a, b) = (self.plain()?, self.recorded(TRANSACTIONS, "600")?);
            println!("{TRANSACTIONS} transactions: {a:.2} s plain, {b:.2} s recorded");
            plain.push(a);
            recorded.push(b);
        }
        plain.sort_by(f64::total_cmp);
        recorded.sort_by(f64::total_cmp);
        let ratio = |of: fn(&[f64]) -> f64| of(&recorded) / of(&plain);
        println!(
            "recording costs {:.2} times (the middle of {PAIRS}), {:.2} times (the shortest)",
            ratio(|times| times[times.len() / 2]),
            ratio(|times| times[0])
        );

        self.recorded("0", "10")?;
        let recording = self.place.join("run.kcr");
        let before = processor_time()?;
        let states = output(Command::new(&self.example).arg(&recording).args(["posix", STATES]))?;
        println!("without a judge: {states}; the processor took {:.1} s", processor_time()? - before);
        let (start, before) = (Instant::now(), processor_time()?);
        let report = output(
            Command::new(&self.kedge)
                .args(["crash", "explore", "--quiet", "--budget", STATES, "--check", "sleep 0.02"])
                .arg(&recording),
        )?;
        let first = report.lines().next().unwrap_or_default();
        println!(
            "with a check of 20 ms: {:.0} s, of the processor {:.0} s; {first}",
            start.elapsed().as_secs_f64(),
            processor_time()? - before
        );
        Ok(())
    }

    fn plain(&self) -> Result<f64> {
        let (image, dir) = (self.place.join("image"), self.place.join("dir"));
        output(Command::new(&self.kedge).args(["mount", "--create", "1G"]).args([&image, &dir]))?;
        let run = output(
            Command::new("python3").arg(&self.script).args([TRANSACTIONS, "600"]).env("KEDGE_DIR", &dir),
        );
        output(Command::new(&self.kedge).arg("umount").arg(&dir))?;
        std::fs::remove_file(&image).with_context(|| format!("remove {}", image.display()))?;
        seconds(&run?)
    }

    fn recorded(&self, count: &str, limit: &str) -> Result<f64> {
        let run = output(
            Command::new(&self.kedge)
                .args(["crash", "record", "-o"])
                .arg(self.place.join("run.kcr"))
                .args(["--", "python3"])
                .arg(&self.script)
                .args([count, limit]),
        )?;
        seconds(&run)
    }
}

/// Seconds of the processor that all processes took which this one started and waited for, and
/// those that they waited for.
fn processor_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    // The name, which may hold anything, ends with the last bracket.
    let words = stat.rsplit_once(')').context("a name")?.1.split_whitespace();
    let ticks: Vec<u64> = words.skip(13).take(2).filter_map(|w| w.parse().ok()).collect();
    ensure!(ticks.len() == 2, "/proc/self/stat: {stat}");
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Of what the script prints.
fn seconds(text: &str) -> Result<f64> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [_, seconds] => seconds.parse().with_context(|| text.to_owned()),
        _ => bail!("{text:?} is not a number of transactions and a time"),
    }
}
