//! Runs cargo and other programs, and installs the Debian packages that the tests use.

use crate::lanes;
use crate::tally::Tally;
use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::MetadataCommand;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian packages and their users. fuse3 is for unprivileged mounts. e2fsprogs makes foreign
/// images that mkfs must refuse. It and the next two make the file systems with which the crash
/// models are compared. nbdkit and qemu-utils are NBD servers. man-db to systemd check what `kedge
/// install-helpers` installs, and the last three the C library. lmdb-utils and rocksdb-tools make
/// databases for crash tests. The mount tests run the other programs on the file system.
const PACKAGES: &[&str] = &[
    "fuse3",
    "fsmark",
    "dbench",
    "sqlite3",
    "git",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "nbdkit",
    "qemu-utils",
    "rsync",
    "acl",
    "attr",
    "bubblewrap",
    "stress-ng",
    "lmdb-utils",
    "rocksdb-tools",
    "man-db",
    "zsh",
    "fish",
    "systemd",
    "pkg-config",
    "valgrind",
    "libjna-java",
];

/// Additional packages for a long run.
const LONG_PACKAGES: &[&str] = &["postgresql"];

/// A Ceph cluster, and the networks of the hosts that use it. These packages are far larger than
/// the rest and not available everywhere. Without them the tests of RBD images are skipped.
const CEPH_PACKAGES: &[&str] = &["ceph-mon", "ceph-osd", "ceph-common", "iproute2"];

/// A program from crates.io that a mount test runs, and the version whose results the test expects.
const PJDFSTEST: (&str, &str) = ("pjdfstest", "0.2.2");
/// Makes the Debian package in a long run.
const CARGO_DEB: (&str, &str) = ("cargo-deb", "3.8.0");

/// Makes the header of the C library.
pub const CBINDGEN: (&str, &str) = ("cbindgen", "0.29.4");

pub fn cargo_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

pub fn cargo(args: &[&str]) -> Result<()> {
    cargo_with(args, &[])
}

pub fn cargo_with(args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let mut command = cargo_command(args);
    command.envs(env.iter().copied());
    run(&mut command)
}

/// The oldest Rust that the workspace promises to build with (`rust-version` in Cargo.toml).
pub const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");

/// Returns why the workspace cannot be checked with the oldest Rust, or `None` if it can. Installs
/// nothing, since a download would fail offline and be unexpected elsewhere.
pub fn msrv_missing() -> Option<String> {
    let mut probe = Command::new("rustup");
    let there = succeeds(probe.args(["run", MSRV, "cargo", "--version"]));
    (!there).then(|| format!("Rust {MSRV} is not installed (rustup toolchain install {MSRV})"))
}

/// Checks the workspace with the oldest Rust, in a target directory of its own, so that the usual
/// artefacts are kept.
pub fn check_msrv() -> Result<()> {
    let mut command = Command::new("rustup");
    command.args([
        "run",
        MSRV,
        "cargo",
        "check",
        "--workspace",
        "--all-targets",
        "--target-dir",
        "target/msrv",
    ]);
    // The cargo that runs xtask sets these variables, and they name the newer toolchain.
    run(command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN"))
}

/// [`cargo_with`] for test runs: adds their results to the tally. The test programs run in lanes
/// after all are built.
pub fn cargo_tests(args: &[&str], env: &[(&str, &OsStr)], tally: &mut Tally) -> Result<()> {
    let runner = std::env::current_exe()?;
    let runner = format!("target.'cfg(all())'.runner = ['{}', '{}']", runner.display(), lanes::RUNNER);
    let mut command = cargo_command(&[&["--config", &runner], args].concat());
    let queue = tempfile::tempdir().context("a directory for the queue of test programs")?;
    command.envs(env.iter().copied()).env(lanes::QUEUE, queue.path()).stdout(Stdio::piped());
    let line = describe(&command);
    println!("$ {line}");
    let mut child = command.spawn().with_context(|| format!("start {line}"))?;
    let output = child.stdout.take().expect("it is piped");
    for text in BufReader::new(output).split(b'\n') {
        let text = text.with_context(|| format!("output of {line}"))?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        tally.line(&text);
    }
    let status = child.wait().with_context(|| format!("wait for {line}"))?;
    let ran = lanes::run(queue.path(), tally);
    if !status.success() {
        bail!("{line}: {status}");
    }
    ran
}

/// Puts a test program into the queue, or becomes it. Returns only if it is in the queue or cannot
/// be started.
pub fn test_program(words: &[OsString]) -> Result<()> {
    if lanes::put_off(words)? {
        return Ok(());
    }
    Err(become_test_program(words))
}

/// Becomes a test program that prints how long each test took, with an unstable option of libtest.
/// The environment variable allows the option for this process alone: if it were set for cargo,
/// cargo would build everything again. Returns only if the program cannot be started.
fn become_test_program(words: &[OsString]) -> anyhow::Error {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let file = Path::new(&words[0]).file_stem().unwrap_or_default().to_string_lossy();
    // The name without the hash that cargo appends.
    let name = file.rsplit_once('-').map_or(&*file, |(name, _)| name);
    println!("{}{package} {name}", crate::tally::PROGRAM);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    anyhow::Error::new(command.exec()).context(format!("start {}", words[0].display()))
}

/// A `cargo deb` command, perhaps with the program that [`install`] built.
pub fn cargo_deb(args: &[&str]) -> Result<Command> {
    let mut command = cargo_command(&[&["deb"], args].concat());
    command.env("PATH", path()?);
    Ok(command)
}

/// A command of a program that [`install`] may have built.
pub fn installed(name: &str, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(name);
    command.args(args).env("PATH", path()?);
    Ok(command)
}

/// Makes the wheel of the Python package, as `pip install ./python` does.
pub fn wheel(profile: &str) -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let to = metadata.target_directory.as_std_path().join("wheel");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "wheel", "--no-deps", "--wheel-dir"]).arg(&to);
    // cargo sets this variable for xtask, and it does not fit the package of the wheel.
    pip.arg(metadata.workspace_root.as_std_path().join("python")).env_remove("CARGO");
    pip.env("KEDGEFS_WHEEL_PROFILE", profile);
    run(&mut pip)?;
    println!("{}", to.display());
    Ok(())
}

/// Returns why the crates cannot be packed here, or `None` if they can.
pub fn packing_missing() -> Option<String> {
    const ENOUGH: [u32; 2] = [1, 90];
    let version = cargo_command(&["--version"]).output().ok()?.stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    let number = version.split(' ').nth(1).unwrap_or_default();
    let parts: Vec<u32> = number.split('.').take(2).filter_map(|part| part.parse().ok()).collect();
    (parts.as_slice() < ENOUGH.as_slice())
        .then(|| format!("cargo {number} cannot pack crates that depend on each other"))
}

/// Packs the crates that are published on crates.io, as publishing would.
pub fn pack() -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    // `publish = false` in a manifest becomes an empty list.
    let published = metadata.packages.iter().filter(|package| package.publish.is_none());
    let named: Vec<&str> = published.flat_map(|package| ["-p", package.name.as_str()]).collect();
    cargo(&[&["package", "--offline", "--no-verify", "--allow-dirty"], &named[..]].concat())
}

/// Another system for which the library must compile.
pub const MACOS: &str = "aarch64-apple-darwin";

/// Returns why the library cannot be compiled for macOS here, or `None` if it can.
pub fn macos_missing() -> Option<String> {
    let libdir = Command::new("rustc").args(["--print", "target-libdir", "--target", MACOS]).output();
    let there = libdir.is_ok_and(|out| Path::new(String::from_utf8_lossy(&out.stdout).trim()).exists());
    (!there).then(|| format!("the target {MACOS} is not installed (rustup target add {MACOS})"))
}

/// Whether `cargo <args>` succeeds. Prints nothing.
pub fn cargo_quiet(args: &[&str]) -> bool {
    succeeds(&mut cargo_command(args))
}

/// Whether a program succeeds in a directory of the workspace. Prints nothing. The program is not
/// run through the current cargo, which does not accept `+toolchain`.
pub fn succeeds_in(dir: &str, program: &str, args: &[&str]) -> bool {
    succeeds(outside(dir, program).args(args))
}

pub fn run_in(dir: &str, program: &str, args: &[&str]) -> Result<()> {
    run(outside(dir, program).args(args))
}

/// A command without the variables that cargo sets for xtask, since the program may belong to
/// another version of Rust.
fn outside(dir: &str, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(dir).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub fn run(command: &mut Command) -> Result<()> {
    let line = describe(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("start {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// The directory into which [`install`] puts the programs that it builds. Tests find them on their
/// PATH.
pub fn programs() -> Result<PathBuf> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    Ok(metadata.target_directory.as_std_path().join("programs"))
}

/// The PATH for tests.
pub fn path() -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths([programs()?.join("bin")].into_iter().chain(std::env::split_paths(&path)))?)
}

/// Builds a program unless it exists. If the build fails, the tests that need the program are
/// skipped and reported.
fn install_program((name, version): (&str, &str)) -> Result<()> {
    let programs = programs()?;
    if programs.join("bin").join(name).exists() {
        return Ok(());
    }
    let root = programs.to_str().context("the path of the workspace is not text")?;
    // The build has a target directory of its own, which is removed, so that it shares nothing with
    // the workspace.
    if let Err(e) = cargo(&["install", "--debug", "--root", root, name, "--version", version, "--locked"]) {
        println!("could not build {name} ({e:#}); going on without");
    }
    Ok(())
}

/// Installs missing packages if that is possible, or prints the command for it. A missing program
/// does not fail this step: the test that needs it fails and names it.
pub fn install(long: bool) -> Result<()> {
    install_program(CBINDGEN)?;
    if std::env::var_os("KEDGE_NO_FUSE").is_some_and(|v| v == "1") {
        println!("KEDGE_NO_FUSE=1: tests that mount are left out, their tools are not needed");
        return Ok(());
    }
    install_program(PJDFSTEST)?;
    if long {
        install_program(CARGO_DEB)?;
    }
    let wanted = [PACKAGES, if long { LONG_PACKAGES } else { &[] }].concat();
    install_packages(&wanted, "mount tests")?;
    install_packages(CEPH_PACKAGES, "tests of RBD images")?;
    let_users_mount()
}

/// Sets the mode of `/dev/fuse` as udev would. Without udev, as in many containers, only root may
/// open the device, and tests of unprivileged mounts could not pass.
fn let_users_mount() -> Result<()> {
    const EVERYBODY: u32 = 0o666;
    let fuse = Path::new("/dev/fuse");
    // If the device is missing, the tests report that.
    let Ok(there) = fuse.metadata() else { return Ok(()) };
    if there.mode() & EVERYBODY == EVERYBODY || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    println!("/dev/fuse is root's alone: chmod 666, so that the tests' ordinary users can mount");
    std::fs::set_permissions(fuse, Permissions::from_mode(EVERYBODY)).context("chmod 666 /dev/fuse")
}

fn install_packages(packages: &[&str], tests: &str) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|p| !is_installed(p)).collect();
    if missing.is_empty() {
        println!("all there: {}", packages.join(" "));
        return Ok(());
    }
    let packages = missing.join(" ");
    let debian = Path::new("/usr/bin/apt-get").exists();
    if !debian || !rustix::process::geteuid().is_root() {
        println!("the {tests} want tools that are not installed; on Debian, as root, run:");
        println!("    apt-get update && apt-get install -y {packages}");
        return Ok(());
    }
    let apt = |args: &[&str]| {
        run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).args(args))
    };
    let install = [&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat();
    if let Err(e) = apt(&["update"]).and_then(|()| apt(&install)) {
        println!("could not install {packages} ({e:#}); going on without");
    }
    Ok(())
}

/// Whether a package is installed: asks the package database, or searches for its programs if there
/// is none.
fn is_installed(package: &str) -> bool {
    if Path::new("/usr/bin/dpkg-query").exists() {
        let status = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).output();
        return status.is_ok_and(|o| o.stdout == b"installed");
    }
    let program = match package {
        "fuse3" => "fusermount3",
        "fsmark" => "fs_mark",
        "e2fsprogs" => "mke2fs",
        "man-db" => "man",
        "systemd" => "systemd-analyze",
        "acl" => "setfacl",
        "postgresql" => "psql",
        "bubblewrap" => "bwrap",
        "qemu-utils" => "qemu-nbd",
        "ceph-common" => "rbd",
        "iproute2" => "ip",
        same => same,
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).exists())
}

/// The output of a git command.
pub fn git(args: &[&str]) -> Result<String> {
    let out = Command::new("git").args(args).output().context("start git")?;
    ensure!(out.status.success(), "git {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8(out.stdout)?)
}
