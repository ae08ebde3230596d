//! The header of the C library, `crates/doors/capi/include/kedgefs.h`, which cbindgen makes from
//! the sources of the crate and its `cbindgen.toml`.
//!
//! The header is in the repository, so that using the library needs only a C compiler. `cargo xtask
//! header` writes it; `--check`, a step of `ci` and `test`, fails if it would change.

use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use std::process::Stdio;

const CRATE: &str = "crates/doors/capi";
const HEADER: &str = "crates/doors/capi/include/kedgefs.h";

/// Returns why the header cannot be made here, or `None` if it can. The version must be right:
/// other versions of cbindgen break the lines of the same declarations differently.
pub fn missing() -> Option<String> {
    let (name, version) = tools::CBINDGEN;
    let found = tools::installed(name, &["--version"]).and_then(|mut command| Ok(command.output()?));
    let is_there =
        found.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).trim() == format!("{name} {version}"));
    (!is_there)
        .then(|| format!("{name} {version} is not installed (cargo install {name} --version {version})"))
}

/// Rewrites the header, or with `check` only compares.
pub fn run(check: bool) -> Result<()> {
    if let Some(why) = missing() {
        bail!("{why}");
    }
    let config = format!("{CRATE}/cbindgen.toml");
    let mut command = tools::installed(tools::CBINDGEN.0, &["--quiet", "--config", &config, CRATE])?;
    let made = command.stderr(Stdio::inherit()).output().context("start cbindgen")?;
    ensure!(made.status.success(), "cbindgen: {}", made.status);
    let wanted = format!("{}\n", String::from_utf8(made.stdout).context("output of cbindgen")?.trim_end());
    ensure!(wanted.contains("kedgefs_open("), "cbindgen has found no functions");
    if wanted == std::fs::read_to_string(HEADER).unwrap_or_default() {
        println!("{HEADER}: as the code has it");
    } else if check {
        bail!("`cargo xtask header` would rewrite {HEADER}: run it");
    } else {
        std::fs::write(HEADER, wanted).context(HEADER)?;
        println!("{HEADER}: rewritten");
    }
    Ok(())
}
