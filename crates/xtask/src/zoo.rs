//! `cargo xtask crash-zoo`: crash tests of common programs, compared with what their documentation
//! says.
//!
//! A row that must fail has to fail with the call that the documentation names. A row that must
//! pass has to have tried all systematic states, or as many as the budget allows; the table says
//! which.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

/// Distinct states for each row and model.
const STATES: &str = "600";

enum Expect {
    Pass,
    /// The report contains these words.
    Fail(&'static str),
}
use Expect::{Fail, Pass};

struct Row {
    name: &'static str,
    /// A Debian package it needs.
    package: &'static str,
    program: &'static str,
    /// Of `zoo/`, and its arguments.
    run: &'static [&'static str],
    check: &'static str,
    expect: &'static [(&'static str, Expect)],
}

const fn saver(
    name: &'static str,
    run: &'static [&'static str],
    expect: &'static [(&'static str, Expect)],
) -> Row {
    Row { name, package: "coreutils", program: "sh", run, check: "save-check.sh", expect }
}

const fn sqlite(
    name: &'static str,
    run: &'static [&'static str],
    expect: &'static [(&'static str, Expect)],
) -> Row {
    Row { name, package: "sqlite3", program: "python3", run, check: "sqlite-check.sh", expect }
}

const ROWS: &[Row] = &[
    saver(
        "save in place",
        &["save.sh", "in-place"],
        &[("strict", Fail("No persistence call")), ("ext4", Fail("doc"))],
    ),
    saver(
        "save by rename, no fsync",
        &["save.sh", "rename"],
        &[
            ("ext4-ordered", Pass),
            ("ext4", Fail("fsync(\"doc.tmp\")")),
            ("xfs", Fail("fsync(\"doc.tmp\")")),
            ("posix", Fail("fsync(\"doc.tmp\")")),
        ],
    ),
    saver(
        "save, directory not synced",
        &["save.sh", "no-dir"],
        &[("ext4", Fail("fsync(\".\")")), ("posix", Fail("fsync(\".\")"))],
    ),
    saver(
        "save, the right way",
        &["save.sh", "right"],
        &[("ext4", Pass), ("xfs", Pass), ("btrfs", Pass), ("posix", Pass)],
    ),
    saver("sed -i", &["save.sh", "sed"], &[("ext4", Fail("rename")), ("xfs", Fail("rename"))]),
    // https://sqlite.org/pragma.html#pragma_synchronous: EXTRA syncs the directory after the
    // journal is unlinked, FULL does not: "a commit that is followed closely by a power loss" may
    // be rolled back.
    sqlite(
        "SQLite rollback, EXTRA",
        &["sqlite.py", "delete", "extra", "3"],
        &[("ext4", Pass), ("posix", Pass)],
    ),
    sqlite(
        "SQLite rollback, FULL",
        &["sqlite.py", "delete", "full", "3"],
        &[("ext4", Fail("unlink(\"t.db-journal\")"))],
    ),
    sqlite("SQLite WAL, FULL", &["sqlite.py", "wal", "full", "3"], &[("ext4", Pass), ("posix", Pass)]),
    // The same page: "WAL mode is always consistent with synchronous=NORMAL, but WAL mode does lose
    // durability".
    sqlite(
        "SQLite WAL, NORMAL",
        &["sqlite.py", "wal", "normal", "3"],
        &[("ext4", Fail("fsync(\"t.db-wal\")"))],
    ),
    Row {
        name: "SQLite WAL, NORMAL: sound",
        package: "sqlite3",
        program: "python3",
        run: &["sqlite.py", "wal", "normal", "3"],
        check: "sqlite-sound-check.sh",
        expect: &[("ext4", Pass)],
    },
    // "the database might become corrupted if the operating system crashes".
    Row {
        name: "SQLite rollback, OFF: sound",
        package: "sqlite3",
        program: "python3",
        run: &["sqlite.py", "delete", "off", "3"],
        check: "sqlite-sound-check.sh",
        expect: &[("ext4", Fail("fsync(\"t.db"))],
    },
    // git-config(1), core.fsync: the default leaves out loose objects and references.
    Row {
        name: "Git, default",
        package: "git",
        program: "sh",
        run: &["git.sh", ""],
        check: "git-check.sh",
        expect: &[("ext4", Fail(".git/objects"))],
    },
];

pub fn run(words: &[String]) -> Result<()> {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("zoo");
    let kedge = match std::env::var_os("KEDGE") {
        Some(path) => PathBuf::from(path),
        None => build()?,
    };
    let temp = std::env::temp_dir().join(format!("kedge-zoo-{}", std::process::id()));
    std::fs::create_dir_all(&temp).with_context(|| format!("create {}", temp.display()))?;
    println!("| program | model | expected | found | states | s |\n|---|---|---|---|---|---|");
    let mut wrong = Vec::new();
    let is_wanted = |row: &&Row| words.is_empty() || words.iter().any(|w| row.name.contains(w.as_str()));
    for row in ROWS.iter().filter(is_wanted) {
        if let Err(e) = run_row(row, &kedge, &zoo, &temp.join("run.kcr")) {
            wrong.push(format!("{}: {e:#}", row.name));
        }
    }
    std::fs::remove_dir_all(&temp).with_context(|| format!("remove {}", temp.display()))?;
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

fn build() -> Result<PathBuf> {
    crate::tools::cargo(&["build", "--quiet", "--profile", "soak", "-p", "kedge"])?;
    let metadata = cargo_metadata::MetadataCommand::new().no_deps().exec()?;
    Ok(metadata.target_directory.join("soak/kedge").into_std_path_buf())
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[allow(clippy::disallowed_methods)]
fn run_row(row: &Row, kedge: &Path, zoo: &Path, recording: &Path) -> Result<()> {
    let (script, args) = row.run.split_first().context("a script")?;
    let recorded = Command::new(kedge)
        .args(["crash", "record", "--ack", "^ack", "-o"])
        .arg(recording)
        .arg("--")
        .arg(row.program)
        .arg(zoo.join(script))
        .args(args)
        .output()
        .with_context(|| format!("start {}", kedge.display()))?;
    if !recorded.status.success() {
        bail!("not recorded (Debian package {}): {}", row.package, text(&recorded));
    }
    let check = format!("sh '{}'", zoo.join(row.check).display());
    let mut wrong = Vec::new();
    for (model, expect) in row.expect {
        let start = Instant::now();
        let explored = Command::new(kedge)
            .args(["crash", "explore", "--quiet", "--budget", STATES, "--model", model, "--check", &check])
            .arg(recording)
            .output()?;
        let report = text(&explored);
        let states = report.split(" distinct").next().and_then(|t| t.rsplit(' ').next()).unwrap_or("?");
        let (wanted, is_right) = match expect {
            Pass => ("passes".to_owned(), explored.status.success()),
            Fail(word) => {
                (format!("fails: `{word}`"), explored.status.code() == Some(1) && report.contains(word))
            }
        };
        let found = match explored.status.code() {
            Some(0) => "passes",
            Some(1) => "fails",
            _ => "no verdict",
        };
        println!(
            "| {} | {model} | {wanted} | {found} | {states} | {:.1} |",
            row.name,
            start.elapsed().as_secs_f64()
        );
        if !is_right {
            wrong.push(format!("under {model}: {report}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}
