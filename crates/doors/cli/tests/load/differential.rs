//! Compares permissions and their side effects with ext4: the same generated operations run in two
//! directories, one on ext4 and one on a mount, under many users, groups, capabilities, user
//! namespaces and umasks, with access control lists, set-id bits, flags and attributes of all
//! namespaces. After each operation the error and the visible state of the files are compared.
//!
//! `KEDGE_DIFFERENTIAL_SEED` names a seed, `KEDGE_DIFFERENTIAL_OPERATIONS` a number of operations.

use crate::common::{Place, full, needs_fuse, tool};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

const PROGRAM: &str = include_str!("../differential/run.py");
const OPERATIONS: u64 = 6000;
const SEED: u64 = 20;

/// The differences from ext4, with the reason why each is right or unavoidable.
const DIFFERENT: [(&str, &str); 10] = [
    (
        "both refuse what is flagged",
        "the kernel judges modes, kinds and names before it asks; the engine, which knows the flags, comes \
         after that, so that the error is another one",
    ),
    ("chown: EPERM, ours ok", CHOWN),
    ("lchown: EPERM, ours ok", CHOWN),
    (
        "chown of nothing: EPERM, ours ok",
        "the kernel sends no request for a chown that names neither owner nor group: nothing changes",
    ),
    (
        "chown of nothing: mode",
        "the kernel sends no request for a chown that names neither owner nor group: set-id bits stay, of a \
         file whose content and owner stay",
    ),
    (
        "write: ok, ours EPERM (a)",
        "an append-only file that has capabilities of a program: ext4 takes them with the first append, ours \
         refuses the append",
    ),
    (
        "write: EPERM, ours ok (a)",
        "ext4 refuses an append that would take set-id bits, as it refuses a change of the mode; ours takes \
         them and appends",
    ),
    ("removexattr: EPERM, ours ok (a)", REMOVED),
    ("removexattr: EPERM, ours ok (i)", REMOVED),
    ("access: result (i)", "the kernel judges access(2) by the mode, and does not ask; open(2) is refused"),
];
const REMOVED: &str =
    "only directories have a default list: the kernel sends no request to remove one of a file";
const CHOWN: &str = "ext4 changes the mode to take set-id bits, for which the kernel asks for CAP_FOWNER, though \
    CAP_CHOWN permits the change of the owner; with FUSE it leaves the bits to the server, which takes them";

fn run(ext4: &Path, ours: &Path, seed: u64, operations: u64) -> Vec<serde_json::Value> {
    let mut command = std::process::Command::new("python3");
    command.args(["-c", PROGRAM]).args([ext4, ours]).args([seed.to_string(), operations.to_string()]);
    let out = tool(command, "python3");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Mounts a new ext4 on a directory, until it is dropped.
struct Ext4<'a>(&'a Place);

impl Ext4<'_> {
    fn new(place: &Place) -> Ext4<'_> {
        fs::create_dir(place.path("ext4")).unwrap();
        File::create(place.path("ext4.img")).unwrap().set_len(100 << 20).unwrap();
        for (line, package) in
            [("mkfs.ext4 -q -F ext4.img", "e2fsprogs"), ("mount -o loop ext4.img ext4", "mount")]
        {
            let words: Vec<_> = line.split(' ').collect();
            let mut command = place.command(words[0]);
            command.args(&words[1..]);
            tool(command, package);
        }
        Ext4(place)
    }
}

impl Drop for Ext4<'_> {
    fn drop(&mut self) {
        let done = self.0.command("umount").arg("ext4").status();
        assert!(std::thread::panicking() || done.is_ok_and(|status| status.success()));
    }
}

#[test]
fn permissions_are_those_of_ext4() {
    needs_fuse!(root: "it takes root to be every user, and to mount ext4");
    let seed = number("KEDGE_DIFFERENTIAL_SEED", SEED);
    let operations = number("KEDGE_DIFFERENTIAL_OPERATIONS", OPERATIONS * if full() { 10 } else { 1 });
    let place = Place::new();
    let ext4 = Ext4::new(&place);
    place.run("mkfs --immutable --size 100M disk.kedge").ok();
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount disk.kedge mnt").ok();
    for base in ["ext4/base", "mnt/base"] {
        fs::create_dir(place.path(base)).unwrap();
    }
    let lines = run(&place.path("ext4/base"), &place.path("mnt/base"), seed, operations);
    drop(ext4);
    place.unmount_and_check("disk.kedge");
    let (summary, examples) = lines.split_last().unwrap();
    let found: BTreeMap<String, u64> = serde_json::from_value(summary["found"].clone()).unwrap();
    println!("seed {seed}: {summary}");
    assert!(summary["operations"].as_u64().unwrap() >= operations);
    let defended = |key: &str| DIFFERENT.iter().any(|(known, _)| *known == key);
    for example in examples.iter().filter(|e| !defended(e["key"].as_str().unwrap())) {
        println!("{example}");
    }
    let unknown: Vec<_> = found.keys().filter(|key| !defended(key)).collect();
    assert!(unknown.is_empty(), "seed {seed}: not as on ext4: {unknown:#?}");
    let gone: Vec<_> = DIFFERENT.iter().filter(|(key, _)| !found.contains_key(*key)).collect();
    assert!(gone.is_empty(), "these do not differ any more: {gone:#?}");
}
