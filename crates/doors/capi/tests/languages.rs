//! Languages other than C use the library without glue. docs/C.md has a program in Python.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, ok, output_of, root};
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
