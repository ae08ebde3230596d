use crate::{FileSystem, FormatOptions, Ino, ManualClock, MountOptions, Owner, RenameMode};
use kedge_device::sim::{FaultPlan, SimDevice};
use kedge_device::{Device, MemDevice};
use kedge_store::CheckpointCause;
use std::sync::Arc;

/// A file system with `new_name=sync`, two directories below the root, and no record since the last
/// checkpoint.
struct Scene {
    fs: FileSystem,
    a: Ino,
    b: Ino,
}

const ROOT: Ino = Ino::ROOT;

impl Scene {
    fn new() -> Scene {
        Scene::on(Arc::new(MemDevice::new(32 << 20)))
    }

    fn on(device: Arc<dyn Device>) -> Scene {
        let clock = Arc::new(ManualClock::default());
        FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
        let fs = FileSystem::open(device, clock, MountOptions::default()).unwrap();
        fs.set_options("new_name=sync").unwrap();
        let dir = |name: &[u8]| fs.mkdir(ROOT, name, 0o755, Owner::default()).unwrap().ino;
        let (a, b) = (dir(b"a"), dir(b"b"));
        let scene = Scene { fs, a, b };
        scene.fs.checkpoint().unwrap();
        scene
    }

    fn make(&self, dir: Ino, name: &str) -> Ino {
        self.fs.create(dir, name.as_bytes(), 0o644, Owner::default()).unwrap().ino
    }

    fn fsync(&self, ino: Ino) {
        self.fs.fsync(ino, false).unwrap();
    }

    /// Returns the numbers of forces for names and of checkpoints that `work` caused.
    fn paid(&self, work: impl FnOnce(&FileSystem)) -> (u64, u64) {
        let count = || {
            let stats: serde_json::Value = serde_json::from_str(&self.fs.stats_json()).unwrap();
            let checkpoints = self.fs.fs.engine().store().stats();
            let requested = checkpoints.checkpoints[CheckpointCause::Request as usize].get();
            (stats["log"]["forces"]["rename"].as_u64().unwrap(), requested)
        };
        let before = count();
        work(&self.fs);
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> (u64, u64) {
        self.paid(|fs| fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode).unwrap())
    }

    fn moves(&self, from: (Ino, &str), to: (Ino, &str)) -> (u64, u64) {
        self.rename(from, to, RenameMode::Replace)
    }
}

const NOTHING: (u64, u64) = (0, 0);
const FORCE: (u64, u64) = (1, 0);
const COMMIT: (u64, u64) = (0, 1);

#[test]
fn rename_looks_at_the_inode_and_the_directory_that_it_leaves() {
    let s = Scene::new();
    let (f, g) = (s.make(s.a, "f"), s.make(s.a, "g"));
    assert_eq!(s.moves((s.a, "f"), (s.a, "f2")), NOTHING, "nothing was fsynced");
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f2"), (s.a, "f3")), FORCE);
    assert_eq!(s.moves((s.a, "g"), (s.a, "g2")), NOTHING, "another inode");
    s.fsync(g);
    s.fs.link(g, s.b, b"same").unwrap();
    assert_eq!(s.moves((s.a, "g2"), (s.b, "same")), NOTHING, "two names of one inode: nothing is done");
    s.fs.checkpoint().unwrap();
    assert_eq!(s.moves((s.a, "f3"), (s.a, "f4")), NOTHING, "a checkpoint has it");
    s.fs.checkpoint().unwrap();
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f4"), (s.a, "f5")), NOTHING, "an fsync of what has not changed logs nothing");
    s.make(s.a, "h");
    s.fsync(s.a);
    assert_eq!(s.moves((s.b, "same"), (s.a, "h2")), NOTHING, "the new directory does not count");
    assert_eq!(s.moves((s.a, "h"), (ROOT, "h")), FORCE, "the old one does");
}

#[test]
fn link_looks_at_the_inode_only() {
    let s = Scene::new();
    let f = s.make(s.a, "f");
    s.fsync(s.a);
    s.make(s.b, "x");
    s.fsync(s.b);
    let link = |name: &str| s.paid(|fs| assert!(fs.link(f, s.b, name.as_bytes()).unwrap().nlink > 1));
    assert_eq!(link("f1"), NOTHING);
    s.fsync(f);
    assert_eq!(link("f2"), FORCE);
}

#[test]
fn an_exchange_counts_both_inodes_and_both_directories() {
    for fsynced in ["f", "g", "a", "b", ""] {
        let s = Scene::new();
        let (f, g) = (s.make(s.a, "f"), s.make(s.b, "g"));
        match fsynced {
            "f" => s.fsync(f),
            "g" => s.fsync(g),
            "a" => s.fsync(s.a),
            "b" => s.fsync(s.b),
            _ => {}
        }
        let paid = s.rename((s.a, "f"), (s.b, "g"), RenameMode::Exchange);
        // If one side was logged, the directory of the other side is marked as moved out, and each
        // name is below one of the two directories.
        let want = if fsynced.is_empty() { NOTHING } else { COMMIT };
        assert_eq!(paid, want, "{fsynced:?} was fsynced");
    }
    // A rename within one directory moves nothing out of it.
    let s = Scene::new();
    s.make(s.a, "f");
    s.fsync(s.make(s.a, "g"));
    assert_eq!(s.rename((s.a, "f"), (s.a, "g"), RenameMode::Exchange), FORCE, "one force for both");
}

#[test]
fn a_directory_that_something_left_unlogged_costs_a_checkpoint() {
    let s = Scene::new();
    let f = s.make(s.a, "f");
    s.make(s.b, "g");
    assert_eq!(s.moves((s.b, "g"), (s.a, "g")), NOTHING);
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f"), (s.a, "f2")), FORCE, "nothing left the new directory");
    assert_eq!(s.moves((s.a, "f2"), (s.b, "f")), COMMIT, "g has left it");
    assert_eq!(s.moves((s.b, "f"), (s.b, "f2")), NOTHING, "the checkpoint has it all");
}

#[test]
fn a_logged_directory_that_moves_costs_a_checkpoint() {
    let s = Scene::new();
    let dir = s.fs.mkdir(s.a, b"dir", 0o755, Owner::default()).unwrap().ino;
    s.fsync(dir);
    assert_eq!(s.moves((s.a, "dir"), (s.a, "dir2")), FORCE, "it stays in its directory");
    assert_eq!(s.moves((s.a, "dir2"), (s.b, "dir")), COMMIT);
}

#[test]
fn a_force_marks_new_directories_above_as_logged() {
    let s = Scene::new();
    let new = s.fs.mkdir(s.a, b"new", 0o755, Owner::default()).unwrap().ino;
    let f = s.make(s.a, "f");
    s.make(new, "g");
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f"), (new, "f")), FORCE);
    assert_eq!(s.moves((new, "g"), (s.b, "g")), FORCE, "it leaves a directory that the force marked");
    s.make(s.a, "h");
    assert_eq!(s.moves((s.a, "h"), (s.b, "h")), NOTHING, "an old directory above is not marked");
}

/// The force marks the directory in which the last checkpoint has the file, not its present one.
#[test]
fn a_force_marks_the_directory_that_the_checkpoint_knows() {
    let s = Scene::new();
    let (f, g) = (s.make(s.a, "f"), s.make(s.a, "g"));
    s.fs.checkpoint().unwrap();
    for ino in [f, g] {
        s.fs.write(ino, 0, b"changed").unwrap();
    }
    s.make(s.a, "x");
    s.make(s.b, "y");
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f"), (s.a, "f2")), FORCE);
    assert_eq!(s.moves((s.a, "x"), (s.a, "x2")), FORCE, "its directory is logged with f");
    assert_eq!(s.moves((s.a, "g"), (s.b, "g")), FORCE);
    assert_eq!(s.moves((s.b, "y"), (s.b, "y2")), NOTHING);
    assert_eq!(s.moves((s.b, "g"), (s.b, "g2")), FORCE, "the force has marked it");
    assert_eq!(s.moves((s.b, "y2"), (s.b, "y3")), NOTHING, "the checkpoint has g elsewhere");
}

#[test]
fn a_file_whose_directory_something_left_unlogged_costs_a_checkpoint() {
    let s = Scene::new();
    let f = s.make(s.a, "f");
    s.make(s.a, "x");
    s.fs.checkpoint().unwrap();
    assert_eq!(s.moves((s.a, "x"), (s.b, "x")), NOTHING);
    s.fs.write(f, 0, b"changed").unwrap();
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f"), (ROOT, "f")), COMMIT, "its old directory must be logged with it");
}

/// Btrfs had the same exception.
#[test]
fn the_parent_of_a_directory_is_not_looked_at() {
    let s = Scene::new();
    s.make(s.a, "x");
    assert_eq!(s.moves((s.a, "x"), (s.b, "x")), NOTHING);
    let dir = s.fs.mkdir(s.a, b"dir", 0o755, Owner::default()).unwrap().ino;
    let f = s.make(dir, "f");
    s.fsync(dir);
    assert_eq!(s.moves((s.a, "dir"), (s.a, "dir2")), FORCE, "x has left a");
    s.fsync(f);
    assert_eq!(s.moves((dir, "f"), (dir, "f2")), COMMIT, "above a file each one counts");
}

/// Data that cannot be written in place holds the log's tail. The checkpoint makes the records
/// after the tail part of the tree nevertheless, and so ends their marks.
#[test]
fn a_checkpoint_ends_the_marks_wherever_the_tail_is() {
    let sim = Arc::new(SimDevice::new(MemDevice::new(32 << 20)));
    let s = Scene::on(sim.clone());
    let (r, f) = (s.make(s.a, "r"), s.make(s.a, "f"));
    s.fs.write(r, 0, b"unplaced").unwrap();
    s.fsync(r);
    s.fsync(f);
    sim.set_plan(FaultPlan::new(1).refuse(*b"unplaced", 5));
    s.fs.checkpoint().unwrap();
    let store = s.fs.fs.engine().store();
    assert!(store.log().tail_lsn() < store.checkpoint_lsn(), "r is still in the log");
    assert_eq!(s.moves((s.a, "f"), (s.a, "f2")), NOTHING);
}

#[test]
fn a_removed_directory_leaves_its_mark_to_its_parent() {
    let s = Scene::new();
    let dir = s.fs.mkdir(s.b, b"dir", 0o755, Owner::default()).unwrap().ino;
    s.make(dir, "g");
    let f = s.make(s.a, "f");
    assert_eq!(s.moves((dir, "g"), (s.a, "g")), NOTHING);
    s.fs.rmdir(s.b, b"dir").unwrap();
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f"), (s.b, "f")), COMMIT);
}

#[test]
fn the_rule_knows_what_was_fsynced_before_it_came_into_force() {
    let s = Scene::new();
    s.fs.set_options("new_name=lazy").unwrap();
    let f = s.make(s.a, "f");
    s.make(s.a, "g");
    s.fsync(f);
    assert_eq!(s.moves((s.a, "f"), (s.a, "f2")), NOTHING, "lazy");
    s.fs.set_options("new_name=sync").unwrap();
    assert_eq!(s.moves((s.a, "g"), (s.a, "g2")), NOTHING, "never fsynced");
    assert_eq!(s.moves((s.a, "f2"), (s.a, "f3")), FORCE);
}
