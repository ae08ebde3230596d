//! Static programs for machines without a toolchain: an archive for each architecture, a list of
//! the packages that are compiled into each, checksums, and a Homebrew formula that installs them.

use crate::tools;
use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const TARGETS: [&str; 2] = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];
const PACKAGE: &str = "kedge";
const PROFILE: &str = "release";
/// The name of all packages, whichever program or library they contain.
pub const NAME: &str = "kedgefs";
const FORMULA: &str = "crates/doors/cli/packaging/kedgefs.rb.in";
const SUMS: &str = "SHA256SUMS";

/// The folder of the archives.
pub fn folder(metadata: &Metadata) -> PathBuf {
    metadata.target_directory.as_std_path().join("dist")
}

pub fn version(metadata: &Metadata) -> Result<String> {
    let of = |package: &&Package| package.name.as_str() == PACKAGE;
    Ok(metadata.packages.iter().find(of).context("no package kedge")?.version.to_string())
}

/// The name of an archive without its suffix. The directory in the archive has the same name.
pub fn archive_name(metadata: &Metadata, target: &str) -> Result<String> {
    Ok(format!("{NAME}-{}-{target}", version(metadata)?))
}

/// Makes the archives in `target/dist`, and returns that folder. `url` is the address from which
/// users will download them.
pub fn make(targets: &[String], url: Option<&str>) -> Result<PathBuf> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let out = folder(&metadata);
    if out.exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("empty {}", out.display()))?;
    }
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let programs = targets.iter().map(|target| build(&metadata, target)).collect::<Result<Vec<_>>>()?;
    // The helpers are text and the same for all targets, so a program that runs on this machine
    // writes them.
    let native = targets.iter().position(|target| target.starts_with(std::env::consts::ARCH));
    let native = match native {
        Some(of) => programs[of].clone(),
        None => {
            tools::cargo(&["build", "--locked", "-p", PACKAGE])?;
            metadata.target_directory.as_std_path().join("debug").join(PACKAGE)
        }
    };
    let mut files = Vec::new();
    for (target, program) in targets.iter().zip(&programs) {
        let name = archive_name(&metadata, target)?;
        let stage = out.join(&name);
        let mut install = Command::new(&native);
        install.args(["install-helpers", "--prefix", "/", "--sbin", "/sbin", "--root"]).arg(&stage);
        tools::run(&mut install)?;
        copy(program, &stage.join("bin").join(PACKAGE))?;
        for text in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"] {
            copy(metadata.workspace_root.as_std_path().join(text).as_path(), &stage.join(text))?;
        }
        let archive = format!("{name}.tar.gz");
        pack(&out, &name, &archive)?;
        let list = format!("{name}.cdx.json");
        let text = serde_json::to_string_pretty(&materials(target)?)?;
        std::fs::write(out.join(&list), text).with_context(|| format!("write {list}"))?;
        std::fs::remove_dir_all(&stage).with_context(|| format!("remove {}", stage.display()))?;
        files.extend([archive, list]);
    }
    let sums = Command::new("sha256sum").args(&files).current_dir(&out).output().context("run sha256sum")?;
    if !sums.status.success() {
        bail!("sha256sum: {}", String::from_utf8_lossy(&sums.stderr));
    }
    std::fs::write(out.join(SUMS), &sums.stdout).context("write the checksums")?;
    if TARGETS.iter().all(|target| targets.iter().any(|t| t == target)) {
        let here = format!("file://{}", out.display());
        let formula = formula(&metadata, &String::from_utf8(sums.stdout)?, url.unwrap_or(&here))?;
        std::fs::write(out.join(format!("{NAME}.rb")), formula).context("write the formula")?;
    }
    println!("{}", out.display());
    Ok(out)
}

/// Makes the Homebrew formula, which contains the checksums of all archives.
fn formula(metadata: &Metadata, sums: &str, url: &str) -> Result<String> {
    let path = metadata.workspace_root.as_std_path().join(FORMULA);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut text = text.replace("@URL@", url).replace("@VERSION@", &version(metadata)?);
    for target in TARGETS {
        let archive = format!("{}.tar.gz", archive_name(metadata, target)?);
        let line = sums.lines().find(|line| line.ends_with(&archive));
        let sum = line.and_then(|line| line.split(' ').next());
        let sum = sum.with_context(|| format!("no checksum of {archive}"))?;
        let (arch, _) = target.split_once('-').context("a target without an architecture")?;
        text = text.replace(&format!("@SHA256_{arch}@"), sum);
    }
    Ok(text)
}

/// Builds the program for a target.
fn build(metadata: &Metadata, target: &str) -> Result<PathBuf> {
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    let mut cargo = tools::cargo_command(&["rustc", "--locked", "--profile", PROFILE]);
    cargo.args(["-p", PACKAGE, "--target", target]);
    // `--icf=all` merges functions with identical code; without it the program exceeds the limit of
    // its size. The symbols are stripped here, since cargo does not strip them in a profile that
    // overrides `opt-level` for the program's package.
    cargo.args(["--bin", PACKAGE, "--", "-C", "strip=symbols", "-C", "link-arg=--icf=all"]);
    // For these targets the Rust toolchain contains the linker and the C library.
    cargo.env(linker, "rust-lld");
    tools::run(&mut cargo)
        .with_context(|| format!("is the target installed (rustup target add {target})?"))?;
    Ok(metadata.target_directory.as_std_path().join(target).join(PROFILE).join(PACKAGE))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Packs an archive. The same files give the same archive, since order, owners and times are fixed.
fn pack(dir: &Path, name: &str, archive: &str) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    tar.args(["--use-compress-program", "gzip -n9", "-cf", archive, name]).current_dir(dir);
    tools::run(&mut tar)
}

/// Lists the packages that are compiled into the program, in the CycloneDX format.
fn materials(target: &str) -> Result<Value> {
    let mut command = MetadataCommand::new();
    let metadata =
        command.other_options(["--filter-platform".into(), target.into(), "--locked".into()]).exec()?;
    let packages: BTreeMap<&PackageId, &Package> = metadata.packages.iter().map(|p| (&p.id, p)).collect();
    let root = metadata.packages.iter().find(|p| p.name.as_str() == PACKAGE).context("no package kedge")?;
    let used = closure(&metadata, &root.id)?;
    let component = |package: &Package| {
        let (name, version) = (package.name.as_str(), package.version.to_string());
        let mut component = json!({
            "type": if package.id == root.id { "application" } else { "library" },
            "bom-ref": package.id.repr,
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
        });
        if let Some(license) = &package.license {
            component["licenses"] = json!([{ "expression": license }]);
        }
        component
    };
    let libraries = used.keys().filter(|id| **id != &root.id).map(|id| component(packages[*id]));
    let dependencies = used.iter().map(|(id, on)| {
        let on: Vec<&str> = on.iter().map(|id| id.repr.as_str()).collect();
        json!({ "ref": id.repr, "dependsOn": on })
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(root) },
        "components": libraries.collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

/// Returns the packages that a package needs at run time, not for its build or its tests, and for
/// each the packages that it needs.
fn closure<'a>(
    metadata: &'a Metadata,
    root: &'a PackageId,
) -> Result<BTreeMap<&'a PackageId, BTreeSet<&'a PackageId>>> {
    let nodes = &metadata.resolve.as_ref().context("cargo resolved nothing")?.nodes;
    let nodes: BTreeMap<&PackageId, _> = nodes.iter().map(|node| (&node.id, node)).collect();
    let (mut found, mut next) = (BTreeMap::new(), vec![root]);
    while let Some(id) = next.pop() {
        if found.contains_key(id) {
            continue;
        }
        let deps = &nodes.get(id).with_context(|| format!("cargo does not resolve {id}"))?.deps;
        let in_use = |dep: &&cargo_metadata::NodeDep| {
            dep.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        };
        let on: BTreeSet<&PackageId> = deps.iter().filter(in_use).map(|dep| &dep.pkg).collect();
        next.extend(on.iter().copied());
        found.insert(id, on);
    }
    Ok(found)
}

/// Unpacks the archive of this machine, and uses the program in a root without any library.
pub fn test() -> Result<()> {
    let target = TARGETS.iter().find(|t| t.starts_with(std::env::consts::ARCH)).context("no such archive")?;
    let out = make(&[(*target).to_owned()], None)?;
    tools::run(Command::new("sha256sum").args(["--check", "--strict", SUMS]).current_dir(&out))?;
    let place = tempfile::tempdir().context("make a directory")?;
    let mut tried = Command::new("sh");
    tried.args(["-c", TRY, "sh"]).arg(place.path()).arg(&out);
    tools::run(&mut tried)
}

/// A script. `$1` is an empty directory, which becomes the root of the program; `$2` contains the
/// archive.
const TRY: &str = r#"
set -eux
tar -xzf "$2"/kedgefs-*.tar.gz -C "$1" --strip-components=1
size=$(stat -c %s "$1/bin/kedge")
test "$size" -lt $((15 << 20))
cd "$1"
test -s share/man/man8/kedge-mount.8
run() { if test "$(id -u)" = 0; then chroot . "$@"; else unshare -r chroot . "$@"; fi; }
run /bin/kedge --version
run /bin/kedge mkfs --size 64M /disk.kedge
run /bin/kedge fsck -f /disk.kedge
# Copies read attributes through /proc, which the empty root does not have.
bin/kedge cp README.md disk.kedge:/
bin/kedge cp disk.kedge:/README.md copy
cmp README.md copy
"#;
