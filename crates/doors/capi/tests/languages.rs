//! Languages other than C use the library without glue. docs/C.md has a program in Python.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, is_there, ok, output_of, root};
use std::path::Path;
use std::process::Command;

/// Go without cgo calls through purego, which is downloaded once.
#[test]
fn a_program_in_go() {
    let go = |args: &[&str]| {
        let mut command = Command::new("go");
        command.args(args).current_dir(root().join("tests/go")).env("CGO_ENABLED", "0").env_remove("GOFLAGS");
        command
    };
    if !Command::new("go").arg("version").output().is_ok_and(|out| out.status.success()) {
        return kedge_base::skip::note("Go is not installed: the program in Go did not run");
    }
    let downloaded = output_of(&mut go(&["mod", "download"]));
    if !downloaded.status.success() {
        let why = String::from_utf8_lossy(&downloaded.stderr).into_owned();
        return kedge_base::skip::note(&format!(
            "purego cannot be had, the program in Go did not run: {why}"
        ));
    }
    let place = Place::new();
    let program = place.path("program");
    ok(go(&["build", "-o"]).arg(&program).arg("."));
    let mut run = Command::new(&program);
    let printed = ok(run.arg(place.path("libkedgefs.so.0")).arg(place.path("image")));
    assert_eq!(printed, "saved 64 notes\n");
}

/// Java calls through JNA, of which Debian has a package.
#[test]
fn a_program_in_java() {
    let jna = Path::new("/usr/share/java/jna.jar");
    if !is_there("javac") || !jna.exists() {
        return kedge_base::skip::note(
            "a JDK or JNA (Debian's package libjna-java) is not installed: the program in Java did not run",
        );
    }
    let place = Place::new();
    let mut run = Command::new("java");
    run.arg("-cp").arg(jna).arg(root().join("tests/java/Main.java"));
    let printed = ok(run.arg(place.path("libkedgefs.so.0")).arg(place.path("image")));
    assert_eq!(printed, "saved 64 notes\n");
}
