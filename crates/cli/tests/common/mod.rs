//! Runs the program as a user would.
#![allow(dead_code, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a run of `kedge` left.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// Fails unless the exit code was 0.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self.out
    }

    /// Fails unless the exit code was `code` and stderr is one line that has all of `words`.
    #[track_caller]
    pub fn refused(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "one line: {}", self.err);
        assert!(self.err.starts_with("kedge: "), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "'{word}' in {}", self.err);
        }
    }
}

/// A directory of its own for a test, without mounts when it ends.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `kedge` in the directory.
    pub fn kedge<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
        command.current_dir(self.0.path()).env_remove("KEDGE_LOG").args(args);
        let Output { status, stdout, stderr } = command.output().unwrap();
        Run {
            code: status.code().expect("ends by itself"),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }

    /// The words of one line as arguments.
    pub fn run(&self, line: &str) -> Run {
        self.kedge(line.split(' '))
    }

    pub fn info(&self, target: &str) -> serde_json::Value {
        serde_json::from_str(&self.kedge(["info", "--json", target]).ok()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that failed may have left a mount behind, live or dead.
        let here = self.0.path().canonicalize().unwrap();
        for mount in kedge_fuse::mounts().into_iter().rev().filter(|m| m.dir.starts_with(&here)) {
            if let Err(e) = kedge_fuse::unmount(&mount.dir, true) {
                eprintln!("{}: {e}", mount.dir.display());
            }
        }
    }
}

/// Whether the person who runs the tests has asked for none that mount. Never inferred: a machine that cannot mount
/// would else pass for one that was tested.
pub fn no_fuse() -> bool {
    let no = std::env::var_os("KEDGE_NO_FUSE").is_some_and(|v| v == "1");
    if no {
        eprintln!("KEDGE_NO_FUSE=1: left out");
    }
    no
}

pub fn write_and_fsync(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}
