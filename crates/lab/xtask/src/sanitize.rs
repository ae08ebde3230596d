//! The C programs of `crates/doors/capi/tests/c` under sanitizers and under valgrind. They end with
//! an error at the first access to memory that is not theirs, at undefined behaviour, and if
//! something is still allocated that nothing points to.
//!
//! Without a nightly compiler the sanitizers see the programs, and what the library does through
//! functions of the C library (memcpy, malloc, free, system calls). With one they see each access
//! of the library, too.

use crate::{steps::Steps, tools};
use anyhow::{Result, ensure};
use cargo_metadata::MetadataCommand;
use std::path::PathBuf;
use std::process::Command;

/// The library's package and its test program that compiles and runs the C programs.
const TEST: [&str; 5] = ["test", "-p", PACKAGE, "--test", "c"];
const PACKAGE: &str = "kedgefs-capi";
/// What the test program gives to the C compiler, and the library that it uses.
const FLAGS: (&str, &str) =
    ("KEDGEFS_C_FLAGS", "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer");
const LIBRARY: &str = "KEDGEFS_C_LIBRARY";
/// The runtime begins in the program, before the library that it loads.
const OPTIONS: (&str, &str) = ("ASAN_OPTIONS", "detect_leaks=1:detect_stack_use_after_return=1");
const VALGRIND: &str = "valgrind_finds_no_error";

pub fn run(steps: &mut Steps) {
    let filter = ["--", "--skip", VALGRIND];
    steps.run("C programs under sanitizers", || {
        tools::cargo_with(&[&TEST[..], &filter].concat(), &[FLAGS, OPTIONS])
    });
    steps.run_unless("C programs and the library under sanitizers", nightly_missing(), || {
        let library = instrumented()?;
        let library = library.to_str().expect("cargo's paths are text");
        tools::cargo_with(&[&TEST[..], &filter].concat(), &[FLAGS, OPTIONS, (LIBRARY, library)])
    });
    steps.run_unless("C programs under valgrind", valgrind_missing(), || {
        tools::cargo_with(&[&TEST[..], &["--", "--exact", VALGRIND]].concat(), &[("KEDGE_LONG", "1")])
    });
}

fn nightly_missing() -> Option<String> {
    let there = tools::succeeds_in(".", "cargo", &["+nightly", "--version"]);
    (!there).then(|| "there is no nightly compiler, which alone instruments Rust".into())
}

fn valgrind_missing() -> Option<String> {
    let there = tools::succeeds_in(".", "valgrind", &["--version"]);
    (!there).then(|| "valgrind is not installed".into())
}

/// Builds the shared library with AddressSanitizer, in its own target directory. Named as a target,
/// this machine's code is instrumented without the build scripts and macros that run meanwhile.
fn instrumented() -> Result<PathBuf> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let target = metadata.target_directory.as_std_path().join("sanitized");
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = Command::new("cargo");
    cargo.args(["+nightly", "build", "--locked", "-p", PACKAGE, "--lib", "--target", &machine]);
    cargo.arg("--target-dir").arg(&target).env("RUSTFLAGS", "-Zsanitizer=address");
    // Set by the cargo that runs xtask: they name another toolchain.
    tools::run(cargo.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN"))?;
    let library = target.join(machine).join("debug/libkedgefs_c.so");
    ensure!(library.exists(), "cargo built no {}", library.display());
    Ok(library)
}
