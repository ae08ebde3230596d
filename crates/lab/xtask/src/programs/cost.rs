//! `crash-programs --cost`: how much recording slows a program down.
//!
//! The program commits repeatedly, on a plain mount and under the recorder in turns, so that other
//! load on the machine slows all of them alike. All images are in memory. The recording is a file
//! in the directory for temporary files. The program itself measures the time of its commits,
//! without its start and its end.

use super::needs::Need;
use super::rows::{ROW, Row};
use super::{Suite, text};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Output;

pub const HEAD: &str =
    "| program | mount, s | recorded, s | times | `--mappings`, s | times |\n|---|---|---|---|---|---|";
const ROUNDS: usize = 5;
/// The capacity of each image.
const SIZE: &str = "1G";
/// The directory for the images of the plain mounts.
const MEMORY: &str = "/dev/shm";

const fn cost(name: &'static str, needs: &'static [Need], run: &'static [&'static str]) -> Row {
    Row { name, needs, program: "python3", run, ..ROW }
}

/// Programs that commit with fsync or msync for about two seconds on two processors: a mount needs
/// the first tenths of a second to place its workers.
pub const ROWS: &[Row] = &[
    cost("SQLite WAL, FULL", &[], &["cost.py", "sqlite", "10000"]),
    Row {
        prepare: Some("postgres-prepare.sh"),
        ..cost(
            "PostgreSQL, fsync = on",
            &[Need::Root, Need::Debian("/usr/lib/postgresql", "postgresql")],
            &["cost.py", "postgres", "10000"],
        )
    },
    cost(
        "RocksDB, sync",
        &[Need::Python("rocksdict", "rocksdict")],
        &["cost.py", "rocksdb", "12000", "sync"],
    ),
    Row {
        mappings: true,
        ..cost(
            "LMDB, MDB_WRITEMAP",
            &[Need::Python("lmdb", "lmdb")],
            &["cost.py", "lmdb", "3000", "writemap"],
        )
    },
];

/// Seconds that the program took in one round.
struct Round {
    plain: f64,
    recorded: f64,
    /// Under the recorder with `--mappings`.
    mapped: Option<f64>,
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Parses the seconds that the program printed.
fn seconds(output: &Output) -> Result<f64> {
    ensure!(output.status.success(), "{}", text(output));
    let printed = String::from_utf8_lossy(&output.stdout);
    let seconds = printed.lines().find_map(|line| line.strip_prefix("seconds "));
    seconds.and_then(|word| word.parse().ok()).with_context(|| format!("no seconds in {}", text(output)))
}

impl Suite {
    pub fn cost(&mut self, row: &Row) -> Result<()> {
        if !self.is_available(row) {
            return Ok(());
        }
        self.prepare(row)?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let (plain, recorded) = (self.on_a_mount(row)?, self.recorded(row, false)?);
            let mapped = row.mappings.then(|| self.recorded(row, true)).transpose()?;
            rounds.push(Round { plain, recorded, mapped });
        }
        let of = |value: fn(&Round) -> Option<f64>| match rounds.iter().map(value).collect() {
            Some(values) => format!("{:.2}", median(values)),
            None => String::new(),
        };
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            row.name,
            of(|r| Some(r.plain)),
            of(|r| Some(r.recorded)),
            of(|r| Some(r.recorded / r.plain)),
            of(|r| r.mapped),
            of(|r| Some(r.mapped? / r.recorded)),
        );
        Ok(())
    }

    fn recorded(&self, row: &Row, mappings: bool) -> Result<f64> {
        let output = self
            .command(&self.kedge)
            .args(["crash", "record", "--size", SIZE, "--timeout", "5m"])
            .args(mappings.then_some("--mappings"))
            .arg("--from")
            .arg(self.temp.join("from"))
            .arg("-o")
            .arg(self.temp.join("run.kcr"))
            .args(["--", row.program])
            .arg(self.dir.join(row.run[0]))
            .args(&row.run[1..])
            .output()
            .context("record")?;
        seconds(&output)
    }

    fn on_a_mount(&self, row: &Row) -> Result<f64> {
        let memory = tempfile::Builder::new().prefix("kedge-cost-").tempdir_in(MEMORY).context(MEMORY)?;
        let (image, mount) = (memory.path().join("disk.kedge"), self.temp.join("mnt"));
        std::fs::create_dir_all(&mount).with_context(|| mount.display().to_string())?;
        self.kedge_ends(&["mount", "--create", SIZE], &[image.as_path(), mount.as_path()])?;
        let result = self.measured(row, &mount);
        // This runs even after a failure, so that the mount is not left.
        self.kedge_ends(&["umount"], &[mount.as_path()])?;
        result
    }

    fn measured(&self, row: &Row, mount: &Path) -> Result<f64> {
        let copied = self.command("cp").arg("-aT").arg(self.temp.join("from")).arg(mount).output();
        let copied = copied.context("cp")?;
        ensure!(copied.status.success(), "cp: {}", text(&copied));
        let mut command = self.command(row.program);
        command.arg(self.dir.join(row.run[0])).args(&row.run[1..]).env("KEDGE_DIR", mount);
        seconds(&command.output().context("start the program")?)
    }

    fn kedge_ends(&self, words: &[&str], paths: &[&Path]) -> Result<()> {
        let output = self.command(&self.kedge).args(words).args(paths).output().context("start kedge")?;
        ensure!(output.status.success(), "kedge {}: {}", words[0], text(&output));
        Ok(())
    }
}
