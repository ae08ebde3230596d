//! An OCI image for each architecture, which contains only the static program. buildah builds it
//! from an archive of `cargo xtask dist` and the Containerfile.

use crate::{dist, tools};
use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONTAINERFILE: &str = "crates/doors/cli/packaging/Containerfile";

/// Returns why no image can be built here, or `None` if it can.
pub fn missing() -> Option<String> {
    let there = Command::new("buildah").arg("--version").output().is_ok_and(|out| out.status.success());
    (!there).then(|| "buildah is not installed (Debian's package buildah)".into())
}

/// The architecture of a target, as images name it.
fn arch(target: &str) -> Result<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => anyhow::bail!("{target}: images have no name for this architecture"),
    }
}

/// The path of an image's file, which `podman load` reads.
pub fn file(out: &Path, archive: &str) -> PathBuf {
    out.join(format!("{archive}.oci.tar"))
}

/// Makes an image of each archive in `target/dist`.
pub fn make(targets: &[&str]) -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let out = dist::folder(&metadata);
    let version = dist::version(&metadata)?;
    for target in targets {
        let name = dist::archive_name(&metadata, target)?;
        let context = tempfile::tempdir().context("make a directory")?;
        let archive = out.join(format!("{name}.tar.gz"));
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(&archive).args(["--strip-components=1", "-C"]).arg(context.path());
        tools::run(&mut unpack).context("make the archives first: cargo xtask dist")?;
        let image = format!("localhost/{}:{version}", dist::NAME);
        // Nothing runs in the image while it is built, so no kernel of its architecture is needed.
        // The times are fixed, so the same archive gives the same layer.
        let mut build = Command::new("buildah");
        build.args(["build", "--isolation", "chroot", "--timestamp", "0", "--format", "oci"]);
        build.args(["--arch", arch(target)?, "--tag", &image, "--file"]);
        build.arg(metadata.workspace_root.as_std_path().join(CONTAINERFILE));
        build.args(["--label", &format!("org.opencontainers.image.version={version}")]).arg(context.path());
        tools::run(&mut build)?;
        let file = file(&out, &name);
        if file.exists() {
            std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        let to = format!("oci-archive:{}:{}:{version}", file.display(), dist::NAME);
        tools::run(Command::new("buildah").args(["push", &image]).arg(to))?;
        tools::run(Command::new("buildah").args(["rmi", &image]))?;
        println!("{}", file.display());
    }
    Ok(())
}
