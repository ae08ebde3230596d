//! What a newcomer copies from the README does what the README says.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, no_fuse, output_within};
use std::path::Path;
use std::time::Duration;

/// The blocks of shell commands below a heading or a line of the README, the nearest first.
fn blocks(below: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let text = readme.split_once(below).unwrap_or_else(|| panic!("the README has no '{below}'")).1;
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// Runs the commands, which must all succeed. Answers what they printed.
fn shell(place: &Place, commands: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_kedge")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut command = place.command("sh");
    command.args(["-eu", "-c", commands]).env("PATH", path).env_remove("KEDGE_LOG");
    let output = output_within(command, Duration::from_secs(300)).unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{commands}\n{out}{err}");
    out
}

#[test]
fn a_disk_that_survives_kill_9() {
    if no_fuse() {
        return;
    }
    let place = Place::new();
    let said = shell(&place, &blocks("**A disk that survives `kill -9`**")[0]);
    assert!(said.ends_with("kept\n"), "{said}");
    assert!(said.contains("kedge umount"), "how to end the mount: {said}");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn the_short_tour() {
    if no_fuse() {
        return;
    }
    let tour = blocks("## A short tour").remove(0);
    let (alias, commands) = tour.split_once('\n').unwrap();
    assert!(alias.starts_with("alias kedge="), "{alias}");
    let place = Place::new();
    let said = shell(&place, commands);
    for words in ["kept\n", "uuid", "commit", "clean"] {
        assert!(said.contains(words), "'{words}' in {said}");
    }
    assert_eq!(place.info("demo.kedge")["state"], "clean");
    assert_eq!(place.info("demo.kedge")["label"], "demo");
}
