//! `kedge upgrade-server`: lets this program take over mounts whose servers are of another version,
//! without an unmount.

use anyhow::{Context, Result, bail};
use kedge_fuse::MountEntry;
use kedge_host::handover;
use kedge_host::offer::Offer;
use kedge_host::{Usage, mounts};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// All mounts of this user that have a keeper
    #[arg(long, conflicts_with = "dir")]
    all: bool,
    /// The mount point of a mount that has a keeper
    dir: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    // The keeper opens this program by its path. If the file of a running program was replaced, the
    // path ends with "(deleted)" and does not exist.
    let program = std::env::current_exe().context("find the file of this program")?;
    match (args.dir, args.all) {
        (Some(dir), _) => {
            let mount = mounts::at(&dir)?.filter(MountEntry::is_kedgefs);
            let mount = mount.with_context(|| format!("{} is not a mount of KedgeFS", dir.display()))?;
            upgrade(&mount, &program)?;
        }
        (None, true) => all(&program)?,
        (None, false) => return Err(Usage("name a mount point, or --all".into()).into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The hidden subcommand that a keeper runs.
pub fn offer() -> Result<ExitCode> {
    println!("{}", serde_json::to_string(&Offer::own()).context("write what this program can serve")?);
    Ok(ExitCode::SUCCESS)
}

fn all(program: &Path) -> Result<()> {
    // A file system may be mounted on several directories; its server is replaced once.
    let mut seen = BTreeSet::new();
    let own = kedge_fuse::mounts().into_iter().filter(|m| m.is_kedgefs() && !m.is_foreign());
    let kept: Vec<MountEntry> =
        own.filter(|mount| handover::is_kept(mount) && seen.insert(mount.device.clone())).collect();
    if kept.is_empty() {
        println!("no mount of this user has a keeper");
    }
    let mut failed = 0;
    for mount in &kept {
        if let Err(e) = upgrade(mount, program) {
            eprintln!("kedge: {e:#}");
            failed += 1;
        }
    }
    if failed > 0 {
        bail!("{failed} of {} servers are not replaced", kept.len());
    }
    Ok(())
}

fn upgrade(mount: &MountEntry, program: &Path) -> Result<()> {
    let done = handover::ask(mount, program).with_context(|| format!("{}", mount.dir.display()))?;
    println!(
        "{}: version {} serves in place of version {}; programs waited for {} ms",
        mount.dir.display(),
        done.to,
        done.from,
        done.pause.as_millis()
    );
    Ok(())
}
