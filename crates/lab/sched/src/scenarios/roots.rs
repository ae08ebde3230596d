//! The first tree is replaced while callers create and read files: an inode number that a caller
//! got refers to the file for which the caller got it, or to none.

use super::stage::{self, Stage, text};
use crate::run::{Run, explore};
use crate::strategy::Plan;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_device::sim::SimDevice;
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Number of files, of mode 0600, that a caller creates in the first tree.
const CREATED: u32 = 3;
/// Mode of the files in the tree that replaces it. They have the same inode numbers as the created
/// ones.
const OTHER_MODE: u32 = 0o644;
/// The approximate virtual time of a replacement.
const SPAN: Duration = Duration::from_millis(2);

/// An image with a fork `t` of the empty first tree. In `t` the next inode numbers are in use.
static IMAGE: LazyLock<MemDevice> = LazyLock::new(|| prepare().expect("an image in memory"));

fn prepare() -> Result<MemDevice, String> {
    let setup = stage::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let tree = fs.fork(Ino::ROOT, Ino::ROOT, b"t", false).map_err(text("fork"))?.ino;
    for i in 0..2 * CREATED {
        fs.create(tree, format!("other{i}").as_bytes(), OTHER_MODE, OWNER).map_err(text("create"))?;
    }
    fs.close().map_err(text("close"))?;
    Ok(device.view())
}

/// Returns the permissions of an inode, or `None` if the number refers to none.
fn mode(fs: &FileSystem, ino: Ino) -> Option<u32> {
    fs.getattr(ino).ok().map(|attr| attr.mode & 0o7777)
}

fn create(fs: &FileSystem) -> Result<(), String> {
    for i in 0..CREATED {
        let Ok(attr) = fs.create(Ino::ROOT, format!("new{i}").as_bytes(), 0o600, OWNER) else { continue };
        if let Some(mode) = mode(fs, attr.ino).filter(|mode| *mode != 0o600) {
            return Err(format!("inode {} was created, and is another file of mode {mode:o}", attr.ino));
        }
    }
    Ok(())
}

fn look(fs: &FileSystem) -> Result<(), String> {
    for i in 0..CREATED {
        for (name, wanted) in [(format!("new{i}"), 0o600), (format!("other{i}"), OTHER_MODE)] {
            let Ok(attr) = fs.lookup(Ino::ROOT, name.as_bytes()) else { continue };
            if let Some(mode) = mode(fs, attr.ino).filter(|mode| *mode != wanted) {
                return Err(format!("{name} is inode {}, which is a file of mode {mode:o}", attr.ino));
            }
        }
    }
    Ok(())
}

fn body(seed: u64) -> Result<MemDevice, String> {
    let stage = Stage::open(IMAGE.fork(), &stage::setup().mount, seed)?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let fs = stage.fs.clone();
    let creates = stage::start(&mut rng, "creates", SPAN, move || create(&fs))?;
    let fs = stage.fs.clone();
    let looks = stage::start(&mut rng, "looks", SPAN, move || look(&fs))?;
    let fs = stage.fs.clone();
    let replaces = move || {
        let tree = fs.tree_named(Ino::ROOT, b"t").ok_or("the tree has no name")?;
        fs.commit_root(tree, true).map_err(text("commit"))
    };
    let replaces = stage::start(&mut rng, "replaces", SPAN, replaces)?;
    let panicked = |_| "a thread panicked".to_owned();
    creates.join().map_err(panicked)??;
    looks.join().map_err(panicked)??;
    replaces.join().map_err(panicked)??;
    explore(false);
    stage.close()
}

fn judge(medium: MemDevice) -> Result<(), String> {
    let fs = stage::recovered(medium, &stage::setup())?;
    for i in 0..2 * CREATED {
        let name = format!("other{i}");
        let attr = fs.lookup(Ino::ROOT, name.as_bytes()).map_err(text(&name))?;
        if attr.mode & 0o7777 != OTHER_MODE {
            return Err(format!("{name} has mode {:o} after a remount", attr.mode));
        }
    }
    fs.close().map_err(text("close"))
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(seed, plan, move || body(seed), judge)
}
