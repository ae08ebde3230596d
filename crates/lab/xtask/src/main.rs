//! `cargo xtask`: the checks that every change must pass.
//!
//! `test` runs all of them; the other commands run parts. The steps are independent: if one fails,
//! the others still run, so that one run shows everything that has to be fixed. The exit code is
//! that of the whole run.
#![forbid(unsafe_code)]

mod circles;
mod commits;
mod deb;
mod deps;
mod dist;
mod docs;
mod header;
mod installs;
mod lanes;
mod levels;
mod oci;
mod programs;
mod quick;
mod results;
mod sanitize;
mod sqlite;
mod steps;
mod tally;
mod tools;
mod words;
mod wrap;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::ffi::OsStr;
use std::process::ExitCode;
use steps::Steps;
use tally::Tally;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks of the KedgeFS workspace")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand, Clone)]
enum Task {
    /// What takes seconds, and the tests of the crates that changed: what to run while working.
    /// Changed is what differs from where this branch left `main`, committed or not
    Quick,
    /// Runs everything: tools, dependency directions, format, lints, licences, documentation, fuzz
    /// targets, tests. KEDGE_NO_FUSE=1 skips tests that mount
    Test {
        /// Also run larger sweeps and complete enumerations, which take hours
        #[arg(long)]
        long: bool,
    },
    /// Checks that each crate depends only on the crates it may depend on
    Deps,
    /// Checks the format with rustfmt
    Fmt,
    /// Runs clippy with warnings denied
    Lint,
    /// Builds with the oldest Rust that Cargo.toml promises, if it is installed
    Msrv,
    /// Rewrites the generated tables of the documents, and wraps prose and comments; --check only
    /// compares. Fails on words that comments and documents do not use, and prints replacements
    Docs {
        #[arg(long)]
        check: bool,
    },
    /// Runs everything except the tests and the tools that they need
    Ci,
    /// Rewrites the header of the C library from its code (needs cbindgen); --check only compares
    Header {
        #[arg(long)]
        check: bool,
    },
    /// Crash states of small workloads: a slice of two minutes (KEDGE_CRASH_MINUTES), or --full
    /// [--seed N] [--minutes M] [--seq 1|2|3] [--resume FILE] [--workload ID [--state K]]
    Crash {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// A Debian package of the program, its man pages, completions and units (needs cargo-deb)
    Deb {
        /// Packages of the libraries for C and SQLite instead
        #[arg(long, conflicts_with = "test")]
        libraries: bool,
        /// Install it, use it and remove it, too: as root
        #[arg(long)]
        test: bool,
    },
    /// Static programs with their man pages and completions, a list of what is compiled into them,
    /// and checksums, in target/dist (needs the targets: rustup target add)
    Dist {
        /// By default x86_64-unknown-linux-musl and aarch64-unknown-linux-musl
        #[arg(long = "target")]
        targets: Vec<String>,
        /// Where the archives will be had, for the formula of Homebrew (default: target/dist)
        #[arg(long)]
        url: Option<String>,
        /// Make that of this machine, and use it in an empty root
        #[arg(long)]
        test: bool,
    },
    /// OCI images of the archives that `dist` made, in target/dist (needs buildah)
    Oci {
        /// By default x86_64-unknown-linux-musl and aarch64-unknown-linux-musl
        #[arg(long = "target")]
        targets: Vec<String>,
    },
    /// Tries ways of installing, by default all, in clean containers of a minimal Debian without a
    /// network, as root (needs podman, runc and mmdebstrap)
    Installs {
        ways: Vec<installs::Way>,
        /// The profile of what is not static
        #[arg(long, default_value = "release")]
        profile: String,
    },
    /// The C programs that test the C library under AddressSanitizer and
    /// UndefinedBehaviorSanitizer, with an instrumented library if there is a nightly compiler, and
    /// under valgrind
    Sanitize,
    /// SQLite's own tests on a mount and in an image, beside the host's file system, as root (needs
    /// apt-get, make, a C compiler and Debian's tcl-dev). NAMES: some of its test files
    SqliteSuite {
        names: Vec<String>,
        /// How many of the usual files, from the first
        #[arg(long, conflicts_with = "names")]
        files: Option<usize>,
        /// A directory on the file system to compare with, which also gets the images (default: in
        /// the target directory)
        #[arg(long)]
        host: Option<std::path::PathBuf>,
        /// A directory with kedge and libkedgefs_sqlite.so (default: they are built, with the
        /// assertions of the engine)
        #[arg(long)]
        programs: Option<std::path::PathBuf>,
    },
    /// A wheel of the Python package, with the command kedge, in target/wheel (needs pip)
    Wheel,
    /// Crash-tests common programs against what their documentation says, with `kedge crash`.
    /// WORDS: only rows whose name contains one of them. KEDGE names the program; otherwise it is
    /// built. Installs what the rows need
    CrashPrograms {
        words: Vec<String>,
        /// Put the results into the table of docs/CRASH_TESTING.md
        #[arg(long, conflicts_with_all = ["infer", "order"])]
        write: bool,
        /// Compare the verdicts of `explore --infer` with those of the written checks
        #[arg(long, conflicts_with = "order")]
        infer: bool,
        /// Compare how many states each order of the search needs to the first failure
        #[arg(long)]
        order: bool,
        /// Only the programs of docs/hunt/TABLE.md, where --write puts the results
        #[arg(long, conflicts_with_all = ["infer", "order"])]
        hunt: bool,
        /// Measure what recording costs programs that commit
        #[arg(long, conflicts_with_all = ["infer", "order", "hunt", "write"])]
        cost: bool,
    },
    /// The crash models beside the kernel's ext4, XFS and Btrfs, as root: [--quick] [--random N]
    /// [--seed N] [--states N] [--out FILE]. Without arguments it writes
    /// docs/results/crash-reality.md
    CrashReality {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Fuzzes one target (kcr, nbd, uri, fuse, nfs, tar, pax, options) for SECONDS of processor
    /// time
    Fuzz {
        target: String,
        #[arg(default_value_t = 60)]
        seconds: u64,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Runs a test program and prints the time of each of its tests: what `test` has cargo start
    #[command(hide = true)]
    TestProgram {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<std::ffi::OsString>,
    },
}

fn main() -> ExitCode {
    let task = Cli::parse().task;
    let mut steps = Steps::default();
    match task {
        Task::Quick => {
            quick_checks(&mut steps);
            quick::tests(&mut steps);
        }
        Task::Test { long } => {
            quick_checks(&mut steps);
            documents_run(&mut steps);
            steps.run("tools", || tools::install(long));
            slow_checks(&mut steps);
            tests(&mut steps, long);
        }
        Task::Deps => {
            steps.run("dependency directions", deps::check);
            steps.run("circles between files", circles::check);
            steps.run("levels of files", levels::check);
        }
        Task::Fmt => fmt(&mut steps),
        Task::Lint => lint(&mut steps),
        Task::Msrv => msrv(&mut steps),
        Task::Docs { check } => steps.run("documents", || docs::run(check)),
        Task::Header { check } => steps.run(HEADER, || header::run(check)),
        Task::Crash { args } => {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            steps.run("crash states", || crash(&args));
        }
        Task::CrashPrograms { words, write, infer, order, hunt, cost } => {
            let purpose = match (infer, order, hunt, cost) {
                (true, ..) => programs::Purpose::Inferred,
                (_, true, ..) => programs::Purpose::Order,
                (_, _, true, _) => programs::Purpose::Hunt,
                (.., true) => programs::Purpose::Cost,
                _ => programs::Purpose::Documented,
            };
            steps.run("crashes of programs", || programs::run(&words, write, purpose));
        }
        Task::CrashReality { args } => steps.run("crash reality", || crash_reality(&args)),
        Task::Fuzz { target, seconds, seed } => {
            steps.run("fuzzing", || fuzz(&target, &seconds.to_string(), &seed.to_string()));
        }
        Task::TestProgram { words } => {
            return tools::test_program(&words).map_or_else(failed, |()| ExitCode::SUCCESS);
        }
        Task::Deb { libraries: true, .. } => {
            steps.run("Debian packages of libraries", || deb::make_libraries("release").map(drop));
        }
        Task::Deb { test: false, .. } => steps.run("Debian package", || deb::make("release").map(drop)),
        Task::Dist { test: true, .. } => steps.run(DIST_TEST, dist::test),
        Task::Dist { targets, url, .. } => {
            let all = dist::TARGETS.map(str::to_owned).to_vec();
            let targets = if targets.is_empty() { all } else { targets };
            steps.run("static programs", || dist::make(&targets, url.as_deref()).map(drop));
        }
        Task::Oci { targets } => {
            let given: Vec<&str> = targets.iter().map(String::as_str).collect();
            let targets = if given.is_empty() { dist::TARGETS.to_vec() } else { given };
            steps.run_unless("OCI images", oci::missing(), || oci::make(&targets));
        }
        Task::Installs { ways, profile } => installs::run(&mut steps, &ways, &profile),
        Task::Deb { test: true, .. } => steps.run_unless(DEB_TEST, deb::untried(), deb::test),
        Task::Sanitize => sanitize::run(&mut steps),
        Task::SqliteSuite { names, files, host, programs } => {
            steps.run_unless("SQLite's own tests", sqlite::missing(), || {
                sqlite::run(&names, files, host.as_deref(), programs.as_deref())
            });
        }
        Task::Wheel => steps.run("Python wheel", || tools::wheel("release")),
        Task::Ci => {
            quick_checks(&mut steps);
            slow_checks(&mut steps);
        }
    }
    steps.summary()
}

fn failed(e: anyhow::Error) -> ExitCode {
    eprintln!("{e:#}");
    ExitCode::FAILURE
}

const HEADER: &str = "header of the C library";
const DEB_TEST: &str = "Debian package: installed, tried, removed";
const DIST_TEST: &str = "static program: used in an empty root";

/// A profile without debug assertions.
const FULL_SPEED: &[&str] = &["--profile", "soak"];

/// Each crash state is a mount. If the allocator returned the memory of each to the kernel, page
/// faults would cost a fifth of the time.
const KEEP_MEMORY: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=268435456");
/// Environment variable with the minutes of a slice. Beside a build a slice takes
/// [`MINUTES_BESIDE`] by default.
const MINUTES: &str = "KEDGE_CRASH_MINUTES";
const MINUTES_BESIDE: &str = "3";

fn crash(args: &[&str]) -> anyhow::Result<()> {
    let run = ["--quiet", "-p", "kedge-sim", "--bin", "crash-states", "--"];
    tools::cargo_with(&[&["run"], FULL_SPEED, &run, args].concat(), &[KEEP_MEMORY])
}

/// Explores a slice of the crash states with the program that the tests of the workspace have just
/// built. Meanwhile builds [`BROKEN`]: that keeps little more than one processor busy, since the
/// engine's crates wait for one another.
fn crash_slice_and_build(env: &[(&str, &OsStr)]) -> anyhow::Result<()> {
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    let dir = metadata.target_directory.as_std_path().join("debug");
    let (program, copy) = (dir.join("crash-states"), dir.join("crash-states-slice"));
    // The build replaces the program, so a copy runs.
    std::fs::copy(&program, &copy).with_context(|| program.display().to_string())?;
    let minutes = std::env::var_os(MINUTES).unwrap_or_else(|| MINUTES_BESIDE.into());
    let mut slice = std::process::Command::new(&copy)
        .envs([KEEP_MEMORY])
        .env(MINUTES, minutes)
        .spawn()
        .with_context(|| copy.display().to_string())?;
    let build = [&["test", "--no-run"], BROKEN].concat();
    let built = tools::run(tools::cargo_command(&build).envs(env.iter().copied()));
    let status = slice.wait().context("wait for the slice")?;
    anyhow::ensure!(status.success(), "the slice: {status}");
    built
}

fn crash_reality(args: &[String]) -> anyhow::Result<()> {
    let usual = ["--random", "10", "--out", "docs/results/crash-reality.md"];
    let run = ["run", "--profile", "soak", "--quiet", "-p", "kedge-crash-reality", "--", "run"];
    let args: Vec<&str> = match args {
        [] => usual.to_vec(),
        args => args.iter().map(String::as_str).collect(),
    };
    tools::cargo(&[&run[..], &args].concat())
}

/// The steps that take seconds. They run first, so that a fault in a comment is reported before the
/// tests begin.
fn quick_checks(steps: &mut Steps) {
    steps.run("dependency directions", deps::check);
    steps.run("circles between files", circles::check);
    steps.run("levels of files", levels::check);
    steps.run("documents", || docs::run(true));
    fmt(steps);
    steps.run("documents and folders", || tools::cargo(&["test", "--quiet", "-p", "xtask"]));
}

/// Checks that each block of the README and of the documents is one that runs, or has a reason not
/// to. The blocks themselves run with the other tests.
fn documents_run(steps: &mut Steps) {
    let test = ["test", "--quiet", "--workspace", "--test", "documents", "--", "--exact", DOCUMENTED];
    steps.run("blocks of the documents", || tools::cargo(&test));
}

const DOCUMENTED: &str = "every_block_runs_or_has_a_reason";

fn slow_checks(steps: &mut Steps) {
    lint(steps);
    msrv(steps);
    steps.run_if_installed("licences and advisories", &["deny", "--version"], || {
        tools::cargo(&["deny", "--all-features", "check"])
    });
    steps.run("documentation", || {
        tools::cargo_with(
            &["doc", "--workspace", "--no-deps", "--document-private-items"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        )
    });
    steps.run("fuzz targets", fuzz_targets);
    steps.run_unless(HEADER, header::missing(), || header::run(true));
    steps.run_unless("packages", tools::packing_missing(), tools::pack);
    steps.run_unless("library for macOS", tools::macos_missing(), || {
        tools::cargo(&["check", "-p", "kedgefs", "--target", tools::MACOS])
    });
}

/// Fuzzes parsers of untrusted bytes, with the driver of `crates/lab/hostile`. The parsers of
/// archives and mount options run as tests of `crates/doors/transfer`.
fn fuzz(target: &str, seconds: &str, seed: &str) -> anyhow::Result<()> {
    let test = match target {
        "tar" => "import::fuzz_tests::archives_of_others_do_no_harm",
        "pax" => "import::fuzz_tests::extension_records_do_no_harm",
        "options" => "import::fuzz_tests::words_of_options_do_no_harm",
        target => {
            let run = ["run", "--quiet", "-p", "kedge-hostile", "--", target, "--seconds", seconds];
            return tools::cargo(&[&run[..], &["--seed", seed]].concat());
        }
    };
    tools::cargo_with(
        &["test", "-p", "kedge-transfer", "--lib", "--", "--exact", test, "--nocapture"],
        &[("KEDGE_FUZZ_SECONDS", seconds), ("KEDGE_SEED", seed)],
    )
}

/// Builds the fuzz targets with libFuzzer if there is a nightly compiler and `cargo fuzz`;
/// otherwise checks that they compile.
fn fuzz_targets() -> anyhow::Result<()> {
    if tools::succeeds_in("fuzz", "cargo", &["+nightly", "fuzz", "--version"]) {
        return tools::run_in("fuzz", "cargo", &["+nightly", "fuzz", "build", "-s", "none"]);
    }
    println!("no nightly compiler with cargo fuzz: the targets are checked without libFuzzer");
    tools::cargo(&["check", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--no-default-features"])
}

fn fmt(steps: &mut Steps) {
    steps.run_if_installed("format", &["fmt", "--version"], || tools::cargo(&["fmt", "--all", "--check"]));
}

fn msrv(steps: &mut Steps) {
    steps.run_unless("oldest Rust", tools::msrv_missing(), tools::check_msrv);
}

fn lint(steps: &mut Steps) {
    steps.run_if_installed("lints", &["clippy", "--version"], || {
        tools::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    steps.run_if_installed("lints of the simulated threads", &["clippy", "--version"], || {
        let features = "kedge-sched/broken,kedge-protocol/broken,kedge-protocol/schedules";
        let sched = ["-p", "kedge-sched", "-p", "kedge-protocol", "--features", features, "--all-targets"];
        tools::cargo(&[&["clippy"], &sched[..], &["--", "-D", "warnings"]].concat())
    });
}

/// The tests that need a deliberately broken engine, simulated threads, or an engine that notes
/// what it does. One build serves all of them: outside of a simulated run the threads are those of
/// the operating system, and outside of a traced run nothing is noted. `--workspace` gives the
/// dependencies the same features as for the other tests, so that they are not built again.
const BROKEN: &[&str] = &[
    "--workspace",
    "--features",
    "kedge-sim/broken,kedge-sched/broken,kedge-protocol/broken,kedge-protocol/schedules",
    "--test",
    "broken",
    "--test",
    "refused",
    "--test",
    "races",
    "--test",
    "forged_log",
    "--test",
    "machine",
    "--test",
    "schedules",
    "--test",
    "timing",
    "--test",
    "traces",
    "--test",
    "broken_traces",
    "--",
    "--nocapture",
];

/// Test programs that find more in a long run at full speed, without debug assertions: crash
/// exploration covers more states, the mounts more races.
const FAST: &[(&str, &[&str])] = &[
    ("tests, at full speed: crash exploration", &["-p", "kedge-sim"]),
    ("tests, at full speed: killed mounts", &["-p", "kedge", "--test", "mount", "--test", "cases"]),
];

/// Runs all tests with debug assertions (lock ranks among them), in one profile, so that nothing is
/// built twice. With `long`, each test does more (`KEDGE_LONG`), the complete enumerations run, and
/// some tests run again at full speed.
fn tests(steps: &mut Steps, long: bool) {
    let log = match tally::fresh_log() {
        Ok(log) => log,
        Err(e) => return steps.run("the file of the skips", || Err(e)),
    };
    let path = match tools::path() {
        Ok(path) => path,
        Err(e) => return steps.run("the programs for the tests", || Err(e)),
    };
    let mut env = vec![(tally::LOG, log.as_os_str()), ("PATH", path.as_os_str())];
    if long {
        env.push(("KEDGE_LONG", OsStr::new("1")));
    }
    let mut tally = Tally::default();
    let mut test = |steps: &mut Steps, name, profile: &[&str], args: &[&str]| {
        let args = [&["test", "--no-fail-fast"], profile, args].concat();
        steps.run(name, || tools::cargo_tests(&args, &env, &mut tally));
    };
    test(steps, "tests", &[], &["--workspace"]);
    if !long {
        steps.run("crash states, a slice, and the build of broken engines", || crash_slice_and_build(&env));
    }
    test(steps, "tests: broken engines are caught, schedules of simulated threads, traces", &[], BROKEN);
    if long {
        for (name, seq) in
            [("crash states of one operation, all", "1"), ("crash states of two operations, all", "2")]
        {
            steps.run(name, || crash(&["--full", "--seq", seq]));
        }
        for (name, args) in FAST {
            test(steps, name, FULL_SPEED, args);
        }
        steps.run_unless(DEB_TEST, deb::untried(), deb::test);
        steps.run(DIST_TEST, dist::test);
    }
    steps.run("skips", || {
        tally.skips(&tally::read_log(&log)?);
        Ok(())
    });
    steps.close_with(tally.print());
}
