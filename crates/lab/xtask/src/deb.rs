//! Debian packages: one of the program, whose files `kedge install-helpers` lays out, and those of
//! the libraries. cargo-deb packs them as the tables `package.metadata.deb` specify.

use crate::tools;
use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory, below the workspace, for the files of the program's package. The table names it.
const STAGE: &str = "target/deb/root";
/// The directory for the files of the libraries' packages.
const LIBRARY_STAGE: &str = "target/deb/libraries";
/// The name of the package of the program.
const PACKAGE: &str = "kedgefs";

/// Builds the package and returns its path. The profile `dev` is for tests.
pub fn make(profile: &str) -> Result<PathBuf> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let built = built_in(&metadata, profile);
    tools::cargo(&["build", "--locked", "--profile", profile, "-p", "kedge"])?;
    let stage = root.join(STAGE);
    if stage.exists() {
        std::fs::remove_dir_all(&stage).with_context(|| format!("empty {}", stage.display()))?;
    }
    let mut install = Command::new(built.join("kedge"));
    install.args(["install-helpers", "--prefix", "/usr", "--sbin", "/usr/sbin", "--root"]).arg(&stage);
    tools::run(&mut install)?;
    strip(&stage.join("usr/bin/kedge"), "--strip-all")?;
    pack(root, PACKAGE, &["-p", "kedge"])
}

fn built_in(metadata: &Metadata, profile: &str) -> PathBuf {
    metadata.target_directory.as_std_path().join(match profile {
        "dev" => "debug",
        other => other,
    })
}

/// Builds the packages of the libraries, and returns their paths.
pub fn make_libraries(profile: &str) -> Result<Vec<PathBuf>> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let stage = root.join(LIBRARY_STAGE);
    if stage.exists() {
        std::fs::remove_dir_all(&stage).with_context(|| format!("empty {}", stage.display()))?;
    }
    let mut install = Command::new(root.join("crates/doors/capi/install.sh"));
    tools::run(install.arg("/usr").env("DESTDIR", &stage).env("KEDGEFS_PROFILE", profile))?;
    tools::cargo(&["build", "--locked", "--profile", profile, "-p", "kedgefs-sqlite"])?;
    let extension = "libkedgefs_sqlite.so";
    let (built, lib) = (built_in(&metadata, profile), stage.join("usr/lib"));
    std::fs::copy(built.join(extension), lib.join(extension)).context("copy the extension of SQLite")?;
    let shared = format!("libkedgefs.so.{}", crate::dist::version(&metadata)?);
    for (library, how) in
        [(&*shared, "--strip-unneeded"), (extension, "--strip-unneeded"), ("libkedgefs.a", "--strip-debug")]
    {
        strip(&lib.join(library), how)?;
    }
    Ok(vec![
        pack(root, "libkedgefs0", &["-p", "kedgefs-capi"])?,
        pack(root, "libkedgefs-dev", &["-p", "kedgefs-capi", "--variant", "dev"])?,
        pack(root, "kedgefs-sqlite", &["-p", "kedgefs-sqlite"])?,
    ])
}

/// Strips a file, whose debug information is larger than its code.
fn strip(file: &Path, how: &str) -> Result<()> {
    tools::run(Command::new("strip").arg(how).arg(file))
}

fn pack(root: &Path, name: &str, what: &[&str]) -> Result<PathBuf> {
    let package = root.join(format!("target/deb/{name}.deb"));
    let out = package.to_str().context("the path of the workspace is not text")?;
    let args = [&["--no-build", "--no-strip", "--locked", "--output", out], what].concat();
    tools::run(&mut tools::cargo_deb(&args)?)?;
    println!("{}", package.display());
    Ok(package)
}

/// Returns why the package cannot be tested here, or `None` if it can.
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
    let there = Command::new("dpkg-query").args(["-W", PACKAGE]).output();
    if there.is_ok_and(|o| o.status.success()) {
        return Some("a package kedgefs is installed, which the test would remove".into());
    }
    None
}

/// A script that uses the installed package as a user would. `$1` is the working directory.
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
    let listed = Command::new("dpkg").args(["-L", PACKAGE]).output().context("list the package's files")?;
    tools::run(Command::new("dpkg").args(["-r", PACKAGE]))?;
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
