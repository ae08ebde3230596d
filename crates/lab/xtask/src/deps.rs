//! Dependencies point down only: the table of docs/ARCHITECTURE.md, checked against the manifests.

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::BTreeMap;

/// (crate, crates of the workspace that it may use, crates that only its tests may use)
///
/// Tests may use a device to run on, and an independent check of their result, but no crate above
/// these.
type Rule = (&'static str, &'static [&'static str], &'static [&'static str]);

const BASE: &str = "kedge-base";
const DEVICE: &str = "kedge-device";
const FORMAT: &str = "kedge-format";
const LOG: &str = "kedge-log";
const BTREE: &str = "kedge-btree";
const ALLOC: &str = "kedge-alloc";
const STORE: &str = "kedge-store";
const FS: &str = "kedgefs";
const FUSE: &str = "kedge-fuse";
const FSCK: &str = "kedge-fsck";
const HOST: &str = "kedge-host";
const CAPI: &str = "kedgefs-capi";
const PYTHON: &str = "kedgefs-python";
const SQLITE: &str = "kedgefs-sqlite";
const TRANSFER: &str = "kedge-transfer";
const NFS: &str = "kedge-nfs";
const CEPH: &str = "kedge-ceph";
const SIM: &str = "kedge-sim";
const SCHED: &str = "kedge-sched";
const PROTOCOL: &str = "kedge-protocol";
/// The feature with which the engine notes what it does.
const TRACE: &str = "kedge-base/trace";
const BENCH: &str = "kedge-bench";
const CRASH: &str = "kedge-crash";
const CRASH_RECORD: &str = "kedge-crash-record";
const CRASH_REALITY: &str = "kedge-crash-reality";
const CLI: &str = "kedge";
const HOSTILE: &str = "kedge-hostile";
const XTASK: &str = "xtask";

const RULES: &[Rule] = &[
    (BASE, &[], &[]),
    // Starts programs of Ceph. It is independent of images.
    (CEPH, &[BASE], &[]),
    (DEVICE, &[BASE], &[CEPH]),
    (FORMAT, &[BASE], &[]),
    // Log, tree and allocator never use one another: the store joins them.
    (LOG, &[BASE, DEVICE, FORMAT], &[]),
    (BTREE, &[BASE, FORMAT], &[DEVICE]),
    (ALLOC, &[BASE, DEVICE, FORMAT], &[]),
    (STORE, &[BASE, DEVICE, FORMAT, LOG, BTREE, ALLOC], &[FSCK]),
    (FS, &[BASE, DEVICE, FORMAT, STORE], &[FSCK]),
    (FUSE, &[BASE, FS], &[DEVICE, FSCK, SIM]),
    // An interface beside the mount. It depends on neither the kernel's protocol nor the command
    // line.
    (NFS, &[BASE, FS], &[DEVICE, FSCK]),
    // An independent check of the image, which must not share the code that it checks. It uses only
    // replay from the store.
    (FSCK, &[BASE, DEVICE, FORMAT, STORE], &[FS]),
    // Opens, mounts and serves images for programs. It is independent of the command line.
    (HOST, &[BASE, DEVICE, FORMAT, FS, FUSE, FSCK], &[]),
    // The library for C, which opens images through the same crates. Nothing depends on it.
    (CAPI, &[BASE, DEVICE, FS, HOST], &[FORMAT, FSCK]),
    // The library for Python, which nothing depends on either.
    (PYTHON, &[BASE, FS, HOST], &[]),
    // The extension of SQLite, which nothing depends on either.
    (SQLITE, &[BASE, DEVICE, FS, HOST], &[FSCK]),
    (TRANSFER, &[BASE, DEVICE, FORMAT, FS, FUSE, HOST], &[FSCK, HOSTILE]),
    (SIM, &[BASE, DEVICE, FORMAT, FS, FSCK], &[]),
    // Runs the engine's threads in a chosen order, or on a chosen number of simulated processors.
    (SCHED, &[BASE, DEVICE, FORMAT, LOG, FS, SIM], &[]),
    // The model of the durability protocol, and traces of the engine's runs. Nothing depends on it.
    (PROTOCOL, &[BASE, DEVICE, SIM, SCHED], &[]),
    // The experiments. Nothing depends on them, so installed programs contain no benchmark code. On
    // real processors they measure the program `kedge`, and use only the host's signals. On
    // simulated processors they measure the library.
    (BENCH, &[BASE, DEVICE, FS, HOST, SCHED], &[]),
    // Writes the documents' tables from the code that they describe.
    (XTASK, &[BASE, FORMAT], &[]),
    // A tool for other programs. It has its own models and is independent of the engine.
    (CRASH, &[BASE], &[]),
    (CRASH_RECORD, &[BASE, DEVICE, FS, FUSE, CRASH], &[]),
    // Compares the models with the kernel's file systems. Nothing depends on it.
    (CRASH_REALITY, &[BASE, CRASH, CRASH_RECORD], &[]),
    // Runs parsers on untrusted bytes. Only tests depend on it.
    (HOSTILE, &[BASE, DEVICE, FS, FUSE, NFS, FSCK, CRASH], &[]),
    (
        CLI,
        &[BASE, DEVICE, FORMAT, STORE, FS, FUSE, FSCK, HOST, NFS, TRANSFER, CRASH, CRASH_RECORD],
        &[SIM, CEPH, SQLITE],
    ),
];

/// A crate's dependencies inside the workspace, and for each whether only its tests need it.
type Edges = BTreeMap<String, Vec<(String, bool)>>;

pub fn check() -> Result<()> {
    let mut faults = faults(&edges()?);
    faults.extend(traced()?);
    if !faults.is_empty() {
        for fault in &faults {
            println!("{fault}");
        }
        bail!(
            "{} dependencies against the direction (the table: crates/lab/xtask/src/deps.rs)",
            faults.len()
        );
    }
    println!("{} crates, all dependencies point down", RULES.len());
    Ok(())
}

fn edges() -> Result<Edges> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let members = metadata.workspace_packages();
    let is_member = |name: &str| members.iter().any(|m| m.name.as_str() == name);
    let of = |package: &&cargo_metadata::Package| {
        let inside = package.dependencies.iter().filter(|d| is_member(&d.name));
        inside.map(|d| (d.name.clone(), d.kind == DependencyKind::Development)).collect()
    };
    Ok(members.iter().map(|m| (m.name.to_string(), of(m))).collect())
}

/// Returns the crates besides [`PROTOCOL`] that enable the engine's trace: a release must have
/// none.
fn traced() -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let asks = |package: &&cargo_metadata::Package| {
        let by_feature = package.features.values().flatten().any(|feature| feature == TRACE);
        let by_dependency = package
            .dependencies
            .iter()
            .any(|used| used.name == BASE && used.features.iter().any(|f| f == "trace"));
        by_feature || by_dependency
    };
    let members = metadata.workspace_packages();
    let others = members.iter().copied().filter(|package| package.name.as_str() != PROTOCOL);
    Ok(others.filter(asks).map(|package| format!("{} must not ask for the trace", package.name)).collect())
}

fn faults(edges: &Edges) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, uses) in edges {
        let Some((_, allowed, for_tests)) = RULES.iter().find(|r| r.0 == name) else {
            faults.push(format!("{name} has no row in the table"));
            continue;
        };
        for (used, test) in uses {
            let allowed = allowed.contains(&used.as_str()) || (*test && for_tests.contains(&used.as_str()));
            if !allowed {
                let who = if *test { "the tests of " } else { "" };
                faults.push(format!("{who}{name} must not depend on {used}"));
            }
        }
    }
    let gone = RULES.iter().filter(|r| !edges.contains_key(r.0));
    faults.extend(gone.map(|r| format!("{} is in the table but not in the workspace", r.0)));
    faults
}

#[cfg(test)]
#[path = "deps_tests.rs"]
mod tests;
