//! The SQLite of the package `libsqlite3-sys`, built with atomic writes, for use by python3. The
//! tests of the mount use it too.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

/// The system's Python, which loads extensions and is linked with SQLite's shared library.
pub const PYTHON: &str = "/usr/bin/python3";
const TRY: &str = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";

/// The directory of the library, which is built once for each target directory; or why it cannot be
/// built.
pub static LIBRARY: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let python = Command::new(PYTHON).args(["-c", TRY]).output();
    if !python.is_ok_and(|output| output.status.success()) {
        return Err(format!("{PYTHON} with a sqlite3 that loads extensions is not installed"));
    }
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sqlite-with-atomic-writes");
    let library = place.join("libsqlite3.so.0");
    if library.exists() {
        return Ok(place);
    }
    std::fs::create_dir_all(&place).unwrap();
    let half = place.join(format!("{}.part", std::process::id()));
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-Wl,-soname,libsqlite3.so.0"])
        .args(["-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE", "-DSQLITE_THREADSAFE=1", "-DHAVE_FDATASYNC=1"])
        .args(["-DSQLITE_ENABLE_COLUMN_METADATA", "-DSQLITE_ENABLE_DESERIALIZE"])
        .arg("-o")
        .arg(&half)
        .arg(amalgamation())
        .args(["-lpthread", "-ldl", "-lm"])
        .output();
    match built {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("cc: {}", String::from_utf8_lossy(&output.stderr)),
        Err(e) => return Err(format!("cc cannot be started: {e}")),
    }
    std::fs::rename(half, library).unwrap();
    Ok(place)
});

/// The path of SQLite's source in the package `libsqlite3-sys`.
fn amalgamation() -> PathBuf {
    let metadata =
        cargo_metadata::MetadataCommand::new().other_options(["--offline".to_owned()]).exec().unwrap();
    let package = metadata.packages.iter().find(|package| package.name.as_str() == "libsqlite3-sys").unwrap();
    package.manifest_path.parent().unwrap().join("sqlite3/sqlite3.c").into()
}
