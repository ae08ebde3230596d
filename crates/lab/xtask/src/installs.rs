//! Tries each way of installing without a toolchain: in containers of a minimal Debian with only
//! the packages that this way needs, and without a network.
//!
//! mmdebstrap makes the minimal systems from Debian's packages, and podman keeps them as images
//! until `podman rmi` removes them. The scripts in `installs` run in the containers. A script fails
//! at the first command that fails.

use crate::dist::{self, TARGETS};
use crate::{deb, oci, steps::Steps, tools};
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::MetadataCommand;
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The static program of `cargo xtask dist`, and its start and size
    Static,
    /// The same for arm64, under QEMU
    Arm64,
    /// The formula of Homebrew, with a stand-in for Homebrew
    Brew,
    /// The Nix files, as far as they are evaluated without nixpkgs
    Nix,
    /// The OCI image: it mounts, and it serves NFS
    Image,
    /// The Debian package of the program
    Deb,
    /// Those of the libraries: a C program, and SQLite
    Libraries,
    /// The wheel
    Wheel,
    /// What `cargo install --path crates/doors/cli` installs
    Cargo,
}

const ALL: [Way; 9] = [
    Way::Static,
    Way::Arm64,
    Way::Brew,
    Way::Nix,
    Way::Image,
    Way::Deb,
    Way::Libraries,
    Way::Wheel,
    Way::Cargo,
];

/// The Debian release whose packages the containers have.
const SUITE: &str = "bookworm";
/// Limit of open files and of processes in a container: more than it needs.
const LIMIT_MAX: u64 = 1000;
const QEMU: &str = "qemu-aarch64-static";
/// Limit in bytes of the program's size, whichever way it is installed.
const BYTES_MAX: u64 = 15 << 20;

/// A script, and the Debian packages of the system in which it runs.
struct Try {
    packages: &'static [&'static str],
    script: &'static str,
}

const STATIC: Try = Try { packages: &[], script: include_str!("installs/static.sh") };
const DEB: Try = Try { packages: &["fuse3", "man-db"], script: include_str!("installs/deb.sh") };
const LIBRARIES: Try = Try {
    packages: &["gcc", "libc6-dev", "pkg-config", "sqlite3"],
    script: include_str!("installs/libraries.sh"),
};
const WHEEL: Try = Try { packages: &["python3-venv"], script: include_str!("installs/wheel.sh") };
const CARGO: Try = Try { packages: &["libgcc-s1"], script: include_str!("installs/cargo.sh") };
const NFS: Try = Try { packages: &["libnfs-utils"], script: include_str!("installs/nfs.sh") };

pub fn run(steps: &mut Steps, ways: &[Way], profile: &str) {
    let ways = if ways.is_empty() { &ALL[..] } else { ways };
    let wants = |of: &[Way]| ways.iter().any(|way| of.contains(way));
    if wants(&[Way::Static, Way::Arm64, Way::Brew, Way::Image]) {
        let mut targets = TARGETS.map(str::to_owned).to_vec();
        if !wants(&[Way::Brew, Way::Image]) {
            targets.retain(|target| {
                let is_native = target.starts_with(std::env::consts::ARCH);
                is_native && wants(&[Way::Static]) || target.starts_with("aarch64") && wants(&[Way::Arm64])
            });
        }
        steps.run("static programs", || dist::make(&targets, None).map(drop));
    }
    for way in ways {
        match way {
            Way::Static => {
                steps
                    .run_unless("static program in a clean system", podman(), || STATIC.run(&dist_folder()?));
            }
            Way::Arm64 => {
                steps.run_unless("static program of arm64", program_missing(QEMU, &["--version"]), arm64);
            }
            Way::Brew => {
                steps.run_unless("formula of Homebrew", program_missing("ruby", &["--version"]), brew);
            }
            Way::Nix => {
                let missing = program_missing("nix-instantiate", &["--version"]);
                steps.run_unless("Nix files", missing, nix);
            }
            Way::Image => steps.run_unless("OCI image", podman().or_else(oci::missing), image),
            Way::Deb => steps.run_unless("Debian package in a clean system", podman(), || {
                let package = deb::make(profile)?;
                check_size("target/deb/root/usr/bin/kedge", profile)?;
                DEB.run(package.parent().context("a package has a folder")?)
            }),
            Way::Libraries => {
                steps.run_unless("libraries in a clean system", podman(), || libraries(profile));
            }
            Way::Wheel => steps.run_unless("wheel in a clean system", podman(), || {
                tools::wheel(profile)?;
                check_size("python/kedgefs.data/scripts/kedge", profile)?;
                WHEEL.run(&metadata_target()?.join("wheel"))
            }),
            Way::Cargo => steps.run_unless("cargo install", podman(), || cargo(profile)),
        }
    }
}

fn program_missing(name: &str, probe: &[&str]) -> Option<String> {
    let found = Command::new(name).args(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success())).then(|| format!("{name} is not installed"))
}

fn metadata_target() -> Result<PathBuf> {
    Ok(MetadataCommand::new().no_deps().exec()?.target_directory.into())
}

fn dist_folder() -> Result<PathBuf> {
    Ok(dist::folder(&MetadataCommand::new().no_deps().exec()?))
}

/// Fails if a program of the workspace is too large, in the profile in which it is installed.
fn check_size(program: &str, profile: &str) -> Result<()> {
    let program = MetadataCommand::new().no_deps().exec()?.workspace_root.join(program);
    let size = std::fs::metadata(&program).with_context(|| format!("find {program}"))?.len();
    println!("bytes of {program}: {size}");
    ensure!(profile != "release" || size < BYTES_MAX, "{program} has {BYTES_MAX} bytes or more");
    Ok(())
}

// ----- containers -----

/// The runtime that podman uses to start containers here, as its option. Debian's podman prefers
/// crun, which does not work with cgroups v1 or with both versions mounted.
static RUNTIME: LazyLock<Result<Vec<String>, String>> = LazyLock::new(|| {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can mount in a container".into());
    }
    if let Some(why) =
        program_missing("podman", &["--version"]).or_else(|| program_missing("mmdebstrap", &["--version"]))
    {
        return Err(format!("{why} (Debian's packages podman, runc and mmdebstrap)"));
    }
    let system = STATIC.system().map_err(|e| format!("{e:#}"))?;
    let mut why = String::new();
    for runtime in [None, Some("/usr/sbin/runc"), Some("/usr/bin/crun")] {
        let option: Vec<String> = runtime.map(|path| format!("--runtime={path}")).into_iter().collect();
        let run = container(&option).args(["--rm", &system, "true"]).output();
        match run {
            Ok(output) if output.status.success() => return Ok(option),
            Ok(output) => why = String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(e) => why = e.to_string(),
        }
    }
    Err(format!("podman starts no container: {why}"))
});

/// Returns why there are no containers here, or `None` if there are.
fn podman() -> Option<String> {
    RUNTIME.as_ref().err().cloned()
}

fn runtime() -> Result<&'static [String]> {
    RUNTIME.as_deref().map_err(|why| anyhow::anyhow!("{why}"))
}

/// A `podman run` command without a network, and with the devices and rights that a mount needs.
fn container(runtime: &[String]) -> Command {
    let mut podman = Command::new("podman");
    podman.args(runtime).args(["--cgroup-manager=cgroupfs", "run", "--network=none"]);
    podman.args(["--device=/dev/fuse", "--cap-add=SYS_ADMIN", "--security-opt=apparmor=unconfined"]);
    // podman would raise these limits, which root may not do everywhere.
    for (name, resource) in [("nofile", Resource::Nofile), ("nproc", Resource::Nproc)] {
        let limit = getrlimit(resource).maximum.map_or(LIMIT_MAX, |limit| limit.min(LIMIT_MAX));
        podman.arg(format!("--ulimit={name}={limit}:{limit}"));
    }
    podman
}

impl Try {
    /// Runs the script in a new container, in which `/given` is the folder of the packages.
    fn run(&self, given: &Path) -> Result<()> {
        let mut podman = container(runtime()?);
        podman.arg(format!("--volume={}:/given:ro", given.display()));
        tools::run(podman.args(["--rm", &self.system()?, "sh", "-euxc", self.script]))
    }

    /// Returns the image of the minimal system, which is made if it does not exist.
    fn system(&self) -> Result<String> {
        let tag = if self.packages.is_empty() { "minimal".to_owned() } else { self.packages.join("-") };
        let name = format!("localhost/kedgefs-clean:{SUITE}-{tag}");
        let there =
            Command::new("podman").args(["image", "exists", &name]).status().context("start podman")?;
        if !there.success() {
            let place = tempfile::tempdir().context("make a directory")?;
            let tar = place.path().join("system.tar");
            let mut make = Command::new("mmdebstrap");
            make.arg("--variant=minbase");
            // An empty list is an error of mmdebstrap.
            if !self.packages.is_empty() {
                make.arg(format!("--include={}", self.packages.join(",")));
            }
            tools::run(make.arg(SUITE).arg(&tar))?;
            tools::run(Command::new("podman").args(["import", "--quiet"]).arg(&tar).arg(&name))?;
        }
        Ok(name)
    }
}

// ----- ways that need more than a script in a container -----

/// Uses the arm64 program in an empty root, as `dist::test` does with this machine's program.
fn arm64() -> Result<()> {
    const SCRIPT: &str = include_str!("installs/arm64.sh");
    let place = tempfile::tempdir().context("make a directory")?;
    let qemu = Command::new("sh").args(["-c", "command -v \"$0\"", QEMU]).output().context("start sh")?;
    let qemu = String::from_utf8(qemu.stdout).context("the path of QEMU is not text")?;
    let mut tried = Command::new("sh");
    tried.args(["-euxc", SCRIPT, "sh"]).arg(place.path()).arg(dist_folder()?).arg(qemu.trim());
    tools::run(&mut tried)
}

fn brew() -> Result<()> {
    const HOMEBREW: &str = include_str!("installs/homebrew.rb");
    let out = dist_folder()?;
    let formula = out.join(format!("{}.rb", dist::NAME));
    tools::run(Command::new("ruby").args(["-wc"]).arg(&formula))?;
    let place = tempfile::tempdir().context("make a directory")?;
    tools::run(Command::new("ruby").args(["-we", HOMEBREW]).arg(&formula).arg(place.path()))
}

fn nix() -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let packaging = metadata.workspace_root.as_std_path().join("crates/doors/cli/packaging");
    let evaluate = format!(
        "{}\n(import {}/kedgefs.nix {{ inherit lib rustPlatform; }})",
        include_str!("installs/nixpkgs.nix"),
        packaging.display()
    );
    for file in ["default.nix", "kedgefs.nix"] {
        let mut parse = Command::new("nix-instantiate");
        tools::run(parse.arg("--parse").arg(packaging.join(file)).stdout(Stdio::null()))?;
    }
    let mut nix = Command::new("nix-instantiate");
    let output = nix.args(["--eval", "--strict", "--json", "-E", &evaluate]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "nix-instantiate: {said}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).context("what Nix evaluated")?;
    let version = dist::version(&metadata)?;
    if found["pname"] != dist::NAME || found["version"] != version.as_str() {
        bail!(
            "the derivation is of {} {}, not of {} {version}",
            found["pname"],
            found["version"],
            dist::NAME
        );
    }
    println!("{found}");
    Ok(())
}

fn image() -> Result<()> {
    const MOUNTS: &str = include_str!("installs/image.sh");
    oci::make(&TARGETS)?;
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let target = TARGETS.iter().find(|t| t.starts_with(std::env::consts::ARCH)).context("no such image")?;
    let file = oci::file(&dist::folder(&metadata), &dist::archive_name(&metadata, target)?);
    let place = tempfile::tempdir().context("make a directory")?;
    let image = format!("localhost/{}:{}", dist::NAME, dist::version(&metadata)?);
    tools::run(Command::new("podman").args(["load", "--quiet", "--input"]).arg(&file))?;
    // The script gets `podman run` and its options as words.
    let run = container(runtime()?);
    let mut tried = Command::new("bash");
    tried.args(["-euxc", MOUNTS, "bash"]).arg(place.path()).arg(image).arg(NFS.system()?);
    tried.arg(NFS.script).arg(run.get_program()).args(run.get_args());
    tools::run(&mut tried)
}

fn libraries(profile: &str) -> Result<()> {
    let packages = deb::make_libraries(profile)?;
    let folder = packages[0].parent().context("a package has a folder")?;
    // The program in the document, as a reader would copy it.
    let document = include_str!("../../../../docs/C.md");
    let block = document.split_once("```c\n").and_then(|(_, rest)| rest.split_once("```"));
    let (program, _) = block.context("docs/C.md has no program")?;
    std::fs::write(folder.join("save.c"), program).context("write the program")?;
    LIBRARIES.run(folder)
}

fn cargo(profile: &str) -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let place = tempfile::tempdir().context("make a directory")?;
    let to = place.path().to_str().context("the path of a directory is not text")?;
    let from = metadata.workspace_root.join("crates/doors/cli");
    tools::cargo(&["install", "--locked", "--path", from.as_str(), "--root", to, "--profile", profile])?;
    check_size(&format!("{to}/bin/kedge"), profile)?;
    CARGO.run(&place.path().join("bin"))
}
