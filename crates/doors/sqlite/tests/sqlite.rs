//! SQLite on databases in an image: the scripts in `tests/py`, run by python3 with the SQLite that
//! the package `libsqlite3-sys` contains, built with atomic writes.
#![allow(clippy::unwrap_used)]

mod library;

use kedge_base::skip;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::FileSystem;
use kedgefs::device::{FileDevice, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use library::{LIBRARY, PYTHON};

const MIB: u64 = 1 << 20;
struct Place(tempfile::TempDir);

impl Place {
    /// A directory with a new image; `None` if SQLite cannot be run here.
    fn new(size: u64) -> Option<Place> {
        if let Err(why) = &*LIBRARY {
            skip::note(why);
            return None;
        }
        let place = Place(tempfile::tempdir().unwrap());
        FileSystem::create_image(place.image(), size).unwrap().close().unwrap();
        Some(place)
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("disk.kedge")
    }

    /// Makes another image, and returns its path.
    fn another(&self) -> String {
        let path = self.0.path().join("other.kedge");
        FileSystem::create_image(&path, 32 * MIB).unwrap().close().unwrap();
        path.display().to_string()
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Command {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/py");
        let extension = std::env::current_exe().unwrap().with_file_name("libkedgefs_sqlite.so");
        assert!(extension.exists(), "cargo built no {}", extension.display());
        let mut command = Command::new(PYTHON);
        command.arg(scripts.join(name)).args(arguments).stdin(Stdio::null());
        command.env("LD_LIBRARY_PATH", LIBRARY.as_ref().unwrap()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("EXTENSION", extension).env("IMAGE", self.image()).env("TMPDIR", self.0.path());
        command
    }

    /// Runs a script, which must succeed. Returns what it printed.
    #[track_caller]
    fn run(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.script(name, arguments).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name} {arguments:?}: {}\n{out}{err}", output.status);
        out.into_owned()
    }

    #[track_caller]
    fn check(&self) {
        let device =
            FileDevice::open(self.image(), OpenOptions { read_only: true, ..OpenOptions::default() });
        let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
        let report = kedge_fsck::check(device.unwrap(), &options);
        assert_eq!(report.exit_code(), 0, "{report}");
    }
}

#[test]
fn each_journal_works() {
    let Some(place) = Place::new(256 * MIB) else { return };
    assert_eq!(place.run("uses.py", &[]), "done\n");
    place.check();
}

/// The names in the root directory.
fn names(image: &Path) -> Vec<String> {
    let fs = FileSystem::open_image(image).unwrap();
    let names = fs.root().read_dir("/").unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().name.to_string_lossy().into_owned()).collect();
    names.sort();
    fs.close().unwrap();
    names
}

#[test]
fn a_transaction_needs_no_journal_and_survives_a_kill() {
    let Some(place) = Place::new(64 * MIB) else { return };
    let output = place.script("batch.py", &["100"]).output().unwrap();
    assert_eq!(output.stdout, b"done\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(&place.image()), ["app.db"], "the journal was never made durable");
    place.check();
}

#[test]
fn connections_of_many_threads_exclude_one_another() {
    let Some(place) = Place::new(64 * MIB) else { return };
    assert_eq!(place.run("threads.py", &[]), "done\n");
    place.check();
}

#[test]
fn a_full_image_fails_the_transaction_alone() {
    for mode in ["delete", "wal"] {
        let Some(place) = Place::new(32 * MIB) else { return };
        assert_eq!(place.run("full.py", &[mode]), "done\n");
        place.check();
    }
}

#[test]
fn what_cannot_be_opened_is_refused_with_the_reason() {
    let Some(place) = Place::new(32 * MIB) else { return };
    assert_eq!(place.run("refused.py", &[]), "done\n");
    place.check();
}

#[test]
fn a_connection_leaves_the_wal_of_a_database_that_replaced_its_own() {
    let Some(place) = Place::new(64 * MIB) else { return };
    assert_eq!(place.run("replaced.py", &[]), "done\n");
    place.check();
}

#[test]
fn the_wal_stays_where_a_program_asks_for_it() {
    for (choice, left) in [("0", &["app.db"][..]), ("1", &["app.db", "app.db-wal"])] {
        let Some(place) = Place::new(64 * MIB) else { return };
        assert_eq!(place.run("persists.py", &[choice]), "done\n");
        assert_eq!(names(&place.image()), left);
        place.check();
    }
}

#[test]
fn an_image_that_is_open_elsewhere_is_refused_and_delays_no_other() {
    let Some(place) = Place::new(32 * MIB) else { return };
    let fs = FileSystem::open_image(place.image()).unwrap();
    let said = place.run("busy.py", &[&place.another()]);
    assert!(said.contains("disk.kedge") && said.contains("in use"), "{said}");
    fs.close().unwrap();
}

#[test]
fn a_killed_process_leaves_whole_transactions_and_all_that_were_committed() {
    for mode in ["delete", "wal"] {
        let Some(place) = Place::new(64 * MIB) else { return };
        let mut last = 0;
        for round in 0..6 {
            let mut child = place.script("killed.py", &[mode]).stdout(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            for line in lines.take(20 + 7 * round) {
                last = line.unwrap().parse().unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let found = place.run("whole.py", &[mode, &format!("{last}")]);
            last = found.trim_start_matches("done ").trim().parse().unwrap();
        }
        assert!(last >= 6 * 20);
        place.check();
    }
}

#[test]
fn a_database_has_one_wal_under_all_its_paths() {
    let Some(place) = Place::new(64 * MIB) else { return };
    let fs = FileSystem::open_image(place.image()).unwrap();
    fs.root().create_dir("/d").unwrap();
    for (target, link) in [("app.db", "/link.db"), ("../link.db", "/d/link.db"), ("/d/..", "/way")] {
        fs.root().symlink(target, link).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let killed = place.script("links.py", &["kill"]).output().unwrap();
    assert!(killed.status.signal() == Some(9), "{}", String::from_utf8_lossy(&killed.stderr));
    assert_eq!(place.run("links.py", &["look"]), "done\n");
    assert_eq!(names(&place.image()), ["app.db", "d", "link.db", "way"]);
    place.check();
}

#[test]
fn a_forked_process_can_use_no_image() {
    let Some(place) = Place::new(32 * MIB) else { return };
    assert_eq!(place.run("forked.py", &[&place.another()]), "done\n");
    place.check();
}

/// The program is the first process of a PID namespace, and its child that of another one.
#[test]
fn a_forked_process_with_the_number_of_its_parent_can_use_no_image() {
    let Some(place) = Place::new(32 * MIB) else { return };
    if std::fs::metadata(place.0.path()).unwrap().uid() != 0 {
        return skip::note("only root makes PID namespaces");
    }
    let script = place.script("forked_alike.py", &[]);
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc"]).arg(script.get_program()).args(script.get_args());
    command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{output:?}");
    place.check();
}

#[test]
fn a_panic_shuts_the_file_system_down() {
    let Some(place) = Place::new(32 * MIB) else { return };
    if !cfg!(debug_assertions) {
        return skip::note("only builds with debug assertions have a way to panic");
    }
    assert_eq!(place.run("panics.py", &[]), "done\n");
    place.check();
}

#[test]
fn a_write_to_a_read_only_image_is_refused_as_such() {
    let Some(place) = Place::new(32 * MIB) else { return };
    assert_eq!(place.run("readonly.py", &[]), "done\n");
    place.check();
}

/// The Python program of the document works, with paths of this machine.
#[test]
fn the_document_works() {
    let Some(place) = Place::new(32 * MIB) else { return };
    let document = include_str!("../../../../docs/SQLITE.md");
    let block = document.split_once("```python\n").unwrap().1.split_once("```").unwrap().0;
    let extension = std::env::current_exe().unwrap().with_file_name("libkedgefs_sqlite");
    let block = block.replace("target/release/libkedgefs_sqlite", &extension.to_string_lossy());
    let script = place.0.path().join("document.py");
    std::fs::write(&script, block).unwrap();
    let mut python = Command::new(PYTHON);
    let output = python.arg(script).current_dir(place.0.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(names(&place.image()), ["app.db"]);
    place.check();
}
