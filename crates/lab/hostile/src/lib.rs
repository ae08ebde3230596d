//! Untrusted inputs and the code that reads them: see the README.
//!
//! ```text
//! drive, mutate             the driver, and mutation of inputs
//! kcr, nbd, uri, fuse, nfs  targets
//! ```
#![forbid(unsafe_code)]

pub mod drive;
pub mod fuse;
pub mod kcr;
mod mutate;
pub mod nbd;
pub mod nfs;
pub mod uri;

use drive::Target;

/// The targets of this crate. `crates/doors/transfer` has those of its own parsers.
pub const TARGETS: [&Target; 5] = [&kcr::TARGET, &nbd::TARGET, &uri::TARGET, &fuse::TARGET, &nfs::TARGET];

/// Runs a target for libFuzzer, which detects a find by a panic.
pub fn check(target: &Target, input: &[u8]) {
    let _ = (target.run)(&input[..input.len().min(target.len_max)]);
}

/// Runs a target on the files named on the command line; an error if none is named.
pub fn run_files(target: &Target) -> std::io::Result<()> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        return Err(std::io::Error::other("which files?"));
    }
    files.into_iter().try_for_each(|file| std::fs::read(file).map(|input| check(target, &input)))
}

/// The directory of a target's corpus.
pub fn corpus(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}
