//! A Debian package: `kedge install-helpers` lays out the files, and cargo-deb packs them as
//! specified by the table `package.metadata.deb` of crates/doors/cli.

use crate::tools;
use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory for the files, below the workspace; the table names it.
const STAGE: &str = "target/deb/root";

/// Builds the package and returns its path. The profile `dev` is for tests.
pub fn make(profile: &str) -> Result<PathBuf> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let built = metadata.target_directory.as_std_path().join(match profile {
        "dev" => "debug",
        other => other,
    });
    tools::cargo(&["build", "--locked", "--profile", profile, "-p", "kedge"])?;
    let stage = root.join(STAGE);
    if stage.exists() {
        std::fs::remove_dir_all(&stage).with_context(|| format!("empty {}", stage.display()))?;
    }
    let mut install = Command::new(built.join("kedge"));
    install.args(["install-helpers", "--prefix", "/usr", "--sbin", "/usr/sbin", "--root"]).arg(&stage);
    tools::run(&mut install)?;
    let package = root.join("target/deb/kedge.deb");
    let out = package.to_str().context("the path of the workspace is not text")?;
    tools::run(&mut tools::cargo_deb(&["--no-build", "--locked", "-p", "kedge", "--output", out])?)?;
    println!("{}", package.display());
    Ok(package)
}

/// Why the package cannot be tested here; `None`: it can.
pub fn untried() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can install a package".into());
    }
    if !Path::new("/usr/bin/dpkg").exists() {
        return Some("there is no dpkg".into());
    }
    let version = tools::cargo_deb(&["--version"]).and_then(|mut deb| Ok(deb.output()?));
    if !version.is_ok_and(|output| output.status.success()) {
        return Some("cargo deb is not installed (cargo install cargo-deb)".into());
    }
    let there = Command::new("dpkg-query").args(["-W", "kedge"]).output();
    if there.is_ok_and(|o| o.status.success()) {
        return Some("a package kedge is installed, which the test would remove".into());
    }
    None
}

/// Uses the installed package as a person would; `$1` is the working directory.
const TRY: &str = r#"
set -eux
cd "$1"
man -w kedge mount.kedgefs 5 kedgefs
systemd-analyze verify /usr/lib/systemd/system/kedge@.service
mkfs -t kedgefs --size 64M disk.kedge
mkdir mnt
mount -t kedgefs disk.kedge "$PWD/mnt"
echo kept > mnt/file
mount -o remount,commit=9 "$PWD/mnt"
kedge info mnt | grep -q 'commit  *9'
umount mnt
fsck -t kedgefs -p -f disk.kedge
mount -t kedgefs -o ro disk.kedge "$PWD/mnt"
test "$(cat mnt/file)" = kept
kedge umount mnt
"#;

/// Installs the package, uses it, and removes it.
pub fn test() -> Result<()> {
    let package = make("dev")?;
    tools::run(Command::new("dpkg").arg("-i").arg(&package))?;
    let place = tempfile::tempdir().context("make a directory")?;
    let tried = tools::run(Command::new("sh").args(["-c", TRY, "sh"]).arg(place.path()));
    // A remaining mount would keep the directory and the program busy.
    let mounted = place.path().join("mnt");
    if tried.is_err() && mounted.exists() {
        let _ = tools::run(Command::new("umount").arg("-l").arg(&mounted));
    }
    let listed = Command::new("dpkg").args(["-L", "kedge"]).output().context("list the package's files")?;
    tools::run(Command::new("dpkg").args(["-r", "kedge"]))?;
    tried?;
    let files = String::from_utf8_lossy(&listed.stdout).into_owned();
    let left: Vec<&str> = files.lines().filter(|f| is_left(Path::new(f))).collect();
    if !files.contains("/usr/sbin/mount.kedgefs") || !left.is_empty() {
        bail!("files of the package: {files}left after its removal: {left:?}");
    }
    Ok(())
}

fn is_left(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_dir())
}
