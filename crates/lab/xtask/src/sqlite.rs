//! `cargo xtask sqlite-suite`: SQLite's own tests on a mount of KedgeFS and in an image through the
//! extension, compared with the same tests on a file system of the host. A test that fails only on
//! KedgeFS fails the command.
//!
//! SQLite's makefile builds `testfixture`, which runs the tests in Tcl, and does so without syncs.
//! `speedtest1` and `kvtest` use syncs. All use atomic writes.

use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::MetadataCommand;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The tests that use files most: locks, journals, WAL, shared memory, errors, simulated crashes.
const FILES: &str = include_str!("sqlite/files.list");
/// The files that also run in an image. The others open a database by means other than SQLite and
/// Tcl's `file`, open it from a second process, or expect what the extension lacks
/// (docs/SQLITE.md).
const IN_IMAGE: &str = include_str!("sqlite/in-image.list");
/// Time limit in seconds for one file on the host. Elsewhere it is [`SLOWER`] times as long.
const SECONDS_MAX: u32 = 120;
const SLOWER: u32 = 5;
const IMAGE_SIZE: &str = "8G";

pub fn missing() -> Option<String> {
    let programs = ["apt-get", "make", "cc", "tclsh"];
    let absent = programs.iter().find(|program| {
        let found =
            Command::new("sh").args(["-c", "command -v \"$0\"", program]).stdout(Stdio::null()).status();
        !found.is_ok_and(|status| status.success())
    });
    absent.map(|program| format!("{program} is not installed (Debian's packages make, gcc, tcl-dev)"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Host,
    Mount,
    Image,
}

struct Suite {
    built: PathBuf,
    source: PathBuf,
    kedge: PathBuf,
    extension: PathBuf,
    place: tempfile::TempDir,
    wrong: Vec<String>,
}

/// Runs the files `names`. Without names it runs the list, or its first `files`. `programs` is a
/// directory with `kedge` and the extension; otherwise they are built, with debug assertions.
pub fn run(
    names: &[String],
    files: Option<usize>,
    host: Option<&Path>,
    programs: Option<&Path>,
) -> Result<()> {
    let mut suite = Suite::new(host, programs)?;
    let names: Vec<&str> = match names {
        [] => FILES.split_whitespace().take(files.unwrap_or(usize::MAX)).collect(),
        names => names.iter().map(String::as_str).collect(),
    };
    let mount = Mounted::new(&suite)?;
    println!("| file | tests on the host | fail there | on the mount | in an image |\n|---|---|---|---|---|");
    for name in names {
        let host = suite.file(name, Where::Host)?;
        let mounted = suite.file(name, Where::Mount)?;
        let is_in_image = IN_IMAGE.split_whitespace().any(|other| other == name);
        let image = if is_in_image { Some(suite.file(name, Where::Image)?) } else { None };
        let column = image.as_ref().map_or("not run".to_owned(), |image| image.beside(&host));
        println!("| {name} | {host} | {} | {} | {column} |", host.failed.len(), mounted.beside(&host));
        suite.compare(name, "the mount", &host, &mounted);
        if let Some(image) = image {
            suite.compare(name, "an image", &host, &image);
        }
    }
    suite.programs()?;
    drop(mount);
    suite.fsck(&suite.image("mount"))?;
    if !suite.wrong.is_empty() {
        bail!("{}", suite.wrong.join("\n"));
    }
    Ok(())
}

/// What a test program found in one file.
struct Found {
    tests: u32,
    failed: BTreeSet<String>,
    /// Whether the program ended by itself and printed its sums.
    ended: bool,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ended { write!(f, "{}", self.tests) } else { write!(f, "does not end") }
    }
}

impl Found {
    fn of(output: &Output) -> Found {
        let text = String::from_utf8_lossy(&output.stdout);
        let sums = text.lines().find_map(|line| line.split_once(" errors out of "));
        let tests = sums.and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        let failures = text.lines().find_map(|line| line.strip_prefix("!Failures on these tests: "));
        let failed = failures.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        Found { tests: tests.unwrap_or(0), failed, ended: tests.is_some() }
    }

    /// The tests that fail here and not on the host.
    fn more_than<'a>(&'a self, host: &'a Found) -> Vec<&'a str> {
        self.failed.difference(&host.failed).map(String::as_str).collect()
    }

    fn beside(&self, host: &Found) -> String {
        match (self.ended, host.ended, self.more_than(host).len()) {
            (false, true, _) => "does not end".into(),
            (_, _, 0) => "as there".into(),
            (_, _, more) => format!("{more} more fail"),
        }
    }
}

impl Suite {
    fn new(host: Option<&Path>, programs: Option<&Path>) -> Result<Suite> {
        let target = MetadataCommand::new().no_deps().exec()?.target_directory.into_std_path_buf();
        let at = target.join("programs/sqlite");
        if !at.join("complete").exists() {
            std::fs::create_dir_all(&at).with_context(|| format!("create {}", at.display()))?;
            let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite");
            let mut build = Command::new("bash");
            tools::run(build.args(["-eux"]).arg(own.join("build.sh")).arg(&at).arg(&own))?;
        }
        let programs = match programs {
            Some(programs) => programs.canonicalize().context("find the programs")?,
            None => {
                tools::cargo(&["build", "--quiet", "-p", "kedge", "-p", "kedgefs-sqlite"])?;
                target.join("debug")
            }
        };
        let place = host.map_or_else(|| target.join("tmp"), Path::to_owned);
        std::fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
        Ok(Suite {
            built: at.join("built"),
            source: at.join("source"),
            kedge: programs.join("kedge"),
            extension: programs.join("libkedgefs_sqlite.so"),
            place: tempfile::tempdir_in(place).context("make a directory")?,
            wrong: Vec::new(),
        })
    }

    fn image(&self, name: &str) -> PathBuf {
        self.place.path().join(format!("{name}.kedge"))
    }

    fn mkfs(&self, image: &Path) -> Result<()> {
        let mut mkfs = Command::new(&self.kedge);
        mkfs.args(["mkfs", "--force", "--size", IMAGE_SIZE]).arg(image);
        quiet(&mut mkfs)
    }

    fn fsck(&self, image: &Path) -> Result<()> {
        quiet(Command::new(&self.kedge).args(["fsck", "-f"]).arg(image))
    }

    /// Makes a new directory in which a program runs.
    fn directory(&self, name: &str, place: Where) -> Result<PathBuf> {
        let below = self.place.path().join(if place == Where::Mount { "mnt" } else { "host" });
        let directory = below.join(name);
        std::fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
        Ok(directory)
    }

    /// A program of SQLite that runs in a new directory, with a time limit.
    fn program(&self, name: &str, directory: &Path, place: Where) -> Command {
        let mut command = Command::new("timeout");
        let seconds = SECONDS_MAX * if place == Where::Host { 1 } else { SLOWER };
        command.args(["--kill-after=5", &seconds.to_string()]).arg(self.built.join(name));
        command.current_dir(directory).stdin(Stdio::null());
        if place == Where::Image {
            command.env("EXTENSION", &self.extension).env("KEDGEFS_SQLITE_IMAGE", self.image("image"));
        }
        command
    }

    fn file(&self, name: &str, place: Where) -> Result<Found> {
        let directory = self.directory(name, place)?;
        let mut command = self.program("testfixture", &directory, place);
        if place == Where::Image {
            self.mkfs(&self.image("image"))?;
            command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite/files.tcl"));
            command.env("FILES", self.built.join("files.so"));
        }
        let test = self.source.join(format!("test/{name}.test"));
        ensure!(test.exists(), "SQLite has no {}", test.display());
        let output = command.arg(test).output().context("start testfixture")?;
        let log = self.built.join(format!("{name}.{place:?}.log"));
        let text = [&*output.stdout, &output.stderr].concat();
        std::fs::write(&log, text).with_context(|| format!("write {}", log.display()))?;
        std::fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))?;
        if place == Where::Image {
            self.fsck(&self.image("image"))?;
        }
        Ok(Found::of(&output))
    }

    /// Notes what fails here and not on the host.
    fn compare(&mut self, name: &str, place: &str, host: &Found, found: &Found) {
        let more = found.more_than(host);
        if !more.is_empty() {
            self.wrong.push(format!("{name} on {place}: {}", more.join(" ")));
        }
        if host.ended && !found.ended {
            self.wrong.push(format!("{name} does not end on {place}"));
        }
    }
}

// ----- speedtest1 and kvtest -----

impl Suite {
    /// `speedtest1` prints a hash of all results, which must be the same everywhere. `kvtest` reads
    /// BLOBs from a database, and from files to which it exports them.
    fn programs(&mut self) -> Result<()> {
        self.mkfs(&self.image("image"))?;
        for journal in ["delete", "persist", "wal"] {
            let mut hashes = Vec::new();
            for place in [Where::Host, Where::Mount, Where::Image] {
                let directory = self.directory("speedtest1", place)?;
                let mut speed = self.program("speedtest1", &directory, place);
                speed.args(["--size", "10", "--verify", "--journal", journal, &format!("{journal}.db")]);
                let text = printed(&mut speed)?;
                let hash = text.lines().find_map(|line| line.strip_prefix("Verification Hash: "));
                hashes.push(hash.context("speedtest1 printed no hash")?.to_owned());
            }
            println!("speedtest1, journal {journal}: {}", hashes.join(", "));
            if hashes.iter().any(|hash| *hash != hashes[0]) {
                self.wrong.push(format!("speedtest1 with journal {journal} has different results"));
            }
        }
        self.fsck(&self.image("image"))?;
        self.kvtest()
    }

    fn kvtest(&self) -> Result<()> {
        const OK: &str = "integrity-check: ok";
        let directory = self.directory("kvtest", Where::Mount)?;
        let host = self.directory("kvtest", Where::Host)?;
        std::fs::create_dir(directory.join("blobs")).context("make a directory")?;
        let host = host.to_str().context("the path of a directory is not text")?;
        let run = |args: &str, wanted: &str| {
            let mut kvtest = self.program("kvtest", &directory, Where::Mount);
            let text = printed(kvtest.args(args.split(' ')))?;
            ensure!(text.contains(wanted), "kvtest {args}: {text}");
            Ok(())
        };
        run("init kv.db --count 500 --size 20000 --variance 15000", "")?;
        run("export kv.db blobs", "")?;
        run(&format!("export kv.db {host}"), "")?;
        printed(Command::new("diff").args(["-r", "blobs", host]).current_dir(&directory))?;
        run("run kv.db --count 2000 --random --integrity-check", OK)?;
        run("run blobs --count 2000 --random", "")?;
        run("run kv.db --count 500 --blob-api --update --fsync", "")?;
        run("run blobs --count 500 --update --fsync", "")?;
        run("run kv.db --count 500 --asc --integrity-check", OK)?;
        println!("kvtest: passed");
        Ok(())
    }
}

// ----- the mount -----

struct Mounted {
    kedge: PathBuf,
    at: PathBuf,
}

impl Mounted {
    fn new(suite: &Suite) -> Result<Mounted> {
        let (image, at) = (suite.image("mount"), suite.place.path().join("mnt"));
        suite.mkfs(&image)?;
        std::fs::create_dir(&at).with_context(|| format!("create {}", at.display()))?;
        quiet(Command::new(&suite.kedge).arg("mount").arg(&image).arg(&at))?;
        Ok(Mounted { kedge: suite.kedge.clone(), at })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(e) = quiet(Command::new(&self.kedge).arg("umount").arg(&self.at)) {
            eprintln!("{e:#}");
        }
    }
}

/// Runs a command, which must succeed, and returns what it printed.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{text}{error}", output.status);
    Ok(text)
}

fn quiet(command: &mut Command) -> Result<()> {
    printed(command).map(drop)
}
