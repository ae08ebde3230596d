//! Compiles and runs C programs as a user of the library would: with the header, `-lkedgefs`, and
//! nothing else of the workspace.
#![allow(dead_code, clippy::unwrap_used)]

use kedge_base::HANG;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;

/// A variable with more options for the compiler, separated by blanks. `cargo xtask sanitize` sets
/// it.
const FLAGS: &str = "KEDGEFS_C_FLAGS";
/// A variable with the shared library to use instead of the one that cargo built with the tests.
const LIBRARY: &str = "KEDGEFS_C_LIBRARY";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The path of a file that cargo built with this test; it is next to the test.
pub fn built(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(name);
    assert!(path.exists(), "cargo built no {}", path.display());
    path
}

/// The output of a command. If it hangs, it and its children are killed.
#[track_caller]
pub fn output_of(command: &mut Command) -> Output {
    let line = format!("{command:?}");
    let command = command.process_group(0).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|e| panic!("{line}: {e}"));
    let group = Pid::from_raw(child.id() as i32).unwrap();
    let (send, receive) = mpsc::channel();
    kedge_base::spawn_named("output", move || send.send(child.wait_with_output())).unwrap();
    let output = receive.recv_timeout(HANG).unwrap_or_else(|_| {
        let killed = kill_process_group(group, Signal::KILL);
        panic!("{line}: still running after {HANG:?} (killed: {killed:?})")
    });
    output.unwrap()
}

/// Runs a command, which must succeed. Returns what it printed.
#[track_caller]
pub fn ok(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = output_of(command);
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}

/// Whether a program of this name can be started.
pub fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The directory of a test, with the library under its installed names.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        for name in ["libkedgefs.so", "libkedgefs.so.0"] {
            let library = std::env::var_os(LIBRARY).map(PathBuf::from);
            let library = library.unwrap_or_else(|| built("libkedgefs_c.so"));
            symlink(library, place.path(name)).unwrap();
        }
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles `tests/c/NAME.c` without a warning.
    #[track_caller]
    pub fn compile(&self, name: &str) -> PathBuf {
        let place = self.0.path();
        let rpath = format!("-Wl,-rpath,{}", place.display());
        self.compile_with(name, &["-L".as_ref(), place.as_ref(), "-lkedgefs".as_ref(), rpath.as_ref()])
    }

    /// Compiles a program with other options for the linker.
    #[track_caller]
    pub fn compile_with(&self, name: &str, linker: &[&OsStr]) -> PathBuf {
        let (root, program) = (root(), self.path(name));
        let mut cc = Command::new("cc");
        cc.args([
            "-std=gnu11",
            "-g",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wshadow",
            "-Werror",
            "-pthread",
        ]);
        cc.args(std::env::var(FLAGS).unwrap_or_default().split_whitespace());
        cc.arg("-I").arg(root.join("include")).arg("-I").arg(root.join("tests/c"));
        cc.arg(root.join(format!("tests/c/{name}.c"))).arg("-o").arg(&program);
        ok(cc.args(linker));
        program
    }

    /// Compiles a program and runs it, which must succeed.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, name: &str, args: impl IntoIterator<Item = S>) -> String {
        ok(Command::new(self.compile(name)).args(args).current_dir(self.0.path()))
    }
}
