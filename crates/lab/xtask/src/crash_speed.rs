//! `cargo xtask crash-speed`: the cost of crash tests, with optimised builds.
//!
//! 1. A fixed number of SQLite transactions on a plain mount and recorded: the slow-down, in
//!    elapsed and in processor time. Both images are in memory.
//! 2. Ten seconds of SQLite recorded; 10,000 states of it under `posix` without a checker: states
//!    per second.
//! 3. The same states with a check that takes 20 ms, on as many processors as there are.
//!
//! These are figures only, and no value fails. Elapsed times mean something only on an idle
//! machine; processor time, printed beside them, and the shortest of several runs are less affected
//! by other load.

use anyhow::{Context, Result, bail, ensure};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const TRANSACTIONS: &str = "6000";
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
            println!(
                "{TRANSACTIONS} transactions: {:.2} s plain, of the processor {:.2} s; {:.2} s recorded, of the \
                 processor {:.2} s",
                a.seconds, a.processor, b.seconds, b.processor
            );
            plain.push(a);
            recorded.push(b);
        }
        let ratio = |of: fn(&Cost) -> f64, place: usize| {
            let [plain, recorded] = [&plain, &recorded].map(|costs| {
                let mut times: Vec<f64> = costs.iter().map(of).collect();
                times.sort_by(f64::total_cmp);
                times[place]
            });
            recorded / plain
        };
        println!(
            "recording costs {:.2} times (the middle of {PAIRS}), {:.2} times (the shortest); of the processor {:.2} \
             times (the middle)",
            ratio(|c| c.seconds, PAIRS / 2),
            ratio(|c| c.seconds, 0),
            ratio(|c| c.processor, PAIRS / 2)
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

    fn plain(&self) -> Result<Cost> {
        let (image, dir) = (self.place.join("image"), self.place.join("dir"));
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let before = processor_time()?;
        // In the foreground, so that its processor time counts when it has ended.
        let mut server = Command::new(&self.kedge)
            .args(["mount", "--foreground", "--create", "1G"])
            .args([&image, &dir])
            .spawn()
            .with_context(|| format!("start {}", self.kedge.display()))?;
        let run = wait_until_mounted(&dir, &mut server).and_then(|()| {
            output(
                Command::new("python3").arg(&self.script).args([TRANSACTIONS, "600"]).env("KEDGE_DIR", &dir),
            )
        });
        if let Err(e) = output(Command::new(&self.kedge).arg("umount").arg(&dir)) {
            server.kill().context("end the mount")?;
            server.wait().context("wait for the mount")?;
            return Err(run.err().unwrap_or(e));
        }
        let ended = server.wait().context("wait for the mount")?;
        ensure!(ended.success(), "kedge mount: {ended}");
        std::fs::remove_file(&image).with_context(|| format!("remove {}", image.display()))?;
        Ok(Cost { seconds: seconds(&run?)?, processor: processor_time()? - before })
    }

    fn recorded(&self, count: &str, limit: &str) -> Result<Cost> {
        let before = processor_time()?;
        let run = output(
            Command::new(&self.kedge)
                .args(["crash", "record", "-o"])
                .arg(self.place.join("run.kcr"))
                .args(["--", "python3"])
                .arg(&self.script)
                .args([count, limit]),
        )?;
        Ok(Cost { seconds: seconds(&run)?, processor: processor_time()? - before })
    }
}

/// Elapsed time of the transactions, and processor time of everything started, including formatting
/// the image.
struct Cost {
    seconds: f64,
    processor: f64,
}

fn wait_until_mounted(dir: &Path, server: &mut Child) -> Result<()> {
    let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).context("the mount point");
    let outside = device(dir.parent().context("a parent")?)?;
    while device(dir)? == outside {
        if let Some(status) = server.try_wait().context("the mount")? {
            bail!("kedge mount: {status}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Processor seconds of all processes that this one started and waited for, and of their
/// descendants.
fn processor_time() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    // The name may contain anything and ends with the last bracket.
    let words = stat.rsplit_once(')').context("a name")?.1.split_whitespace();
    let ticks: Vec<u64> = words.skip(13).take(2).filter_map(|w| w.parse().ok()).collect();
    ensure!(ticks.len() == 2, "/proc/self/stat: {stat}");
    Ok(ticks.iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The seconds that the script prints.
fn seconds(text: &str) -> Result<f64> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [_, seconds] => seconds.parse().with_context(|| text.to_owned()),
        _ => bail!("{text:?} is not a number of transactions and a time"),
    }
}
