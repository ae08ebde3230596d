//! Forks and deletions of trees while other threads open a tree and change it: a fork shows the
//! tree at one moment, and does not change afterwards.

use super::stage::{self, Stage, text};
use crate::run::{Run, explore};
use crate::strategy::Plan;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_device::sim::SimDevice;
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::{Error, FileSystem, Ino};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Length of the file in bytes. Each write replaces all of them.
const LEN: usize = 2 * BLOCK;
const WRITES: u8 = 3;
/// The approximate virtual time of a fork.
const SPAN: Duration = Duration::from_millis(2);

/// An image with a tree `t` that holds a file, and with a fork `gone` of that tree.
static IMAGE: LazyLock<MemDevice> = LazyLock::new(|| prepare().expect("an image in memory"));

fn prepare() -> Result<MemDevice, String> {
    let setup = stage::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let tree = fs.fork(Ino::ROOT, Ino::ROOT, b"t", false).map_err(text("fork"))?.ino;
    let file = fs.create(tree, b"f", 0o644, OWNER).map_err(text("create"))?.ino;
    fs.write(file, 0, &[1; LEN]).map_err(text("write"))?;
    for i in 0..40 {
        fs.create(tree, format!("crowd{i}").as_bytes(), 0o644, OWNER).map_err(text("create"))?;
    }
    fs.fork(tree, Ino::ROOT, b"gone", true).map_err(text("fork"))?;
    fs.close().map_err(text("close"))?;
    Ok(device.view())
}

/// Returns the byte that fills the file of the tree: each write fills it with another byte.
fn stamp(fs: &FileSystem, name: &[u8]) -> Result<u8, String> {
    let tree = fs.tree_named(Ino::ROOT, name).ok_or("the tree has no name")?;
    let file = fs.lookup(tree, b"f").map_err(text("lookup"))?.ino;
    let mut bytes = [0; LEN];
    let count = fs.read(file, 0, &mut bytes).map_err(text("read"))?;
    if count != LEN || bytes.iter().any(|byte| *byte != bytes[0]) {
        return Err(format!("{}: {count} bytes of more than one write", name.escape_ascii()));
    }
    Ok(bytes[0])
}

fn change(fs: &FileSystem) -> Result<(), String> {
    let tree = fs.tree_named(Ino::ROOT, b"t").ok_or("the tree has no name")?;
    let file = fs.lookup(tree, b"f").map_err(text("lookup"))?.ino;
    for n in 0..WRITES {
        fs.write(file, 0, &[2 + n; LEN]).map_err(text("write"))?;
        fs.create(tree, format!("new{n}").as_bytes(), 0o644, OWNER).map_err(text("create"))?;
        fs.unlink(tree, format!("crowd{n}").as_bytes()).map_err(text("unlink"))?;
        if n == 1 {
            fs.fsync(file, false).map_err(text("fsync"))?;
        }
    }
    Ok(())
}

/// Returns the image, and the byte that the fork's file had at first.
fn body(seed: u64) -> Result<(MemDevice, u8), String> {
    let stage = Stage::open(IMAGE.fork(), &stage::setup().mount, seed)?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let fs = stage.fs.clone();
    let changes = stage::start(&mut rng, "changes", SPAN, move || change(&fs))?;
    let fs = stage.fs.clone();
    let forks = move || {
        let tree = fs.tree_named(Ino::ROOT, b"t").ok_or("the tree has no name")?;
        fs.fork(tree, Ino::ROOT, b"fork", seed.is_multiple_of(2)).map_err(text("fork"))?;
        stamp(&fs, b"fork")
    };
    let forks = stage::start(&mut rng, "forks", SPAN, forks)?;
    let fs = stage.fs.clone();
    let ends = move || match fs.delete_tree(Ino::ROOT, b"gone") {
        Ok(()) | Err(Error::Busy(_)) => Ok(()),
        Err(e) => Err(format!("delete: {e}")),
    };
    let ends = stage::start(&mut rng, "ends", SPAN, ends)?;
    let panicked = |_| "a thread panicked".to_owned();
    changes.join().map_err(panicked)??;
    let first = forks.join().map_err(panicked)??;
    ends.join().map_err(panicked)??;
    explore(false);
    match stage.fs.reclaim() {
        Ok(()) | Err(Error::Busy(_)) => {}
        Err(e) => return Err(format!("reclaim: {e}")),
    }
    change_again(&stage.fs)?;
    let later = stamp(&stage.fs, b"fork")?;
    if later != first {
        return Err(format!("the fork held {first}, and {later} once its origin has changed"));
    }
    Ok((stage.close()?, first))
}

/// Makes changes that overwrite blocks that the tree shares with no other, and free nodes.
fn change_again(fs: &FileSystem) -> Result<(), String> {
    fs.checkpoint().map_err(text("checkpoint"))?;
    let tree = fs.tree_named(Ino::ROOT, b"t").ok_or("the tree has no name")?;
    let file = fs.lookup(tree, b"f").map_err(text("lookup"))?.ino;
    fs.write(file, 0, &[99; LEN]).map_err(text("write"))?;
    fs.sync().map_err(text("sync"))?;
    fs.checkpoint().map_err(text("checkpoint"))
}

fn judge((medium, first): (MemDevice, u8)) -> Result<(), String> {
    let fs = stage::recovered(medium, &stage::setup())?;
    let (fork, origin) = (stamp(&fs, b"fork")?, stamp(&fs, b"t")?);
    if (fork, origin) != (first, 99) {
        return Err(format!("after a remount the fork holds {fork} instead of {first}, its origin {origin}"));
    }
    fs.close().map_err(text("close"))
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(seed, plan, move || body(seed), judge)
}
