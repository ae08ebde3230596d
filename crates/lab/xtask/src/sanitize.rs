//! Runs the C programs of `crates/doors/capi/tests/c` under sanitizers and under valgrind. A
//! program fails at the first access to memory that it does not own, at undefined behaviour, and at
//! its end if memory is still allocated to which nothing points.
//!
//! Without a nightly compiler the sanitizers observe the C programs, and the library only where it
//! calls the C library (memcpy, malloc, free, system calls). With a nightly compiler they observe
//! each access of the library, too.

use crate::{steps::Steps, tools};
use anyhow::{Result, ensure};
use cargo_metadata::MetadataCommand;
use std::path::PathBuf;
use std::process::Command;

/// The command that runs the test program, which compiles and runs the C programs.
const TEST: [&str; 5] = ["test", "-p", PACKAGE, "--test", "c"];
const PACKAGE: &str = "kedgefs-capi";
/// Environment variable with options that the test program passes to the C compiler.
const FLAGS: (&str, &str) =
    ("KEDGEFS_C_FLAGS", "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer");
const LIBRARY: &str = "KEDGEFS_C_LIBRARY";
/// Options of the sanitizers' runtime, which starts with the program, before the library is loaded.
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

/// Builds the shared library with AddressSanitizer, in a target directory of its own. `--target`
/// restricts the instrumentation to the library: build scripts and macros, which run during the
/// build, have none.
fn instrumented() -> Result<PathBuf> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let target = metadata.target_directory.as_std_path().join("sanitized");
    let machine = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = Command::new("cargo");
    cargo.args(["+nightly", "build", "--locked", "-p", PACKAGE, "--lib", "--target", &machine]);
    cargo.arg("--target-dir").arg(&target).env("RUSTFLAGS", "-Zsanitizer=address");
    // The cargo that runs xtask sets these variables, and they name another toolchain.
    tools::run(cargo.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN"))?;
    let library = target.join(machine).join("debug/libkedgefs_c.so");
    ensure!(library.exists(), "cargo built no {}", library.display());
    Ok(library)
}
