//! A freeze while writers run: the image contains each write that succeeded before the freeze. It
//! is clean and does not change until the thaw.

use super::stage::{self, Stage, text};
use crate::run::Run;
use crate::strategy::Plan;
use kedge_base::pause;
use kedge_device::MemDevice;
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::Ino;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const WRITES: u64 = 4;
const PIECE: u64 = 3000;
/// The approximate virtual time of a freeze.
const SPAN: Duration = Duration::from_millis(2);

static IMAGE: LazyLock<MemDevice> = LazyLock::new(|| {
    let setup = stage::setup();
    rig::format(setup.image, setup.log).expect("an image in memory can be formatted")
});

/// Just before the thaw: the file, the number of bytes that writes have accepted, and the image.
type Frozen = (Ino, u64, MemDevice);

fn body(seed: u64) -> Result<(Frozen, MemDevice), String> {
    let stage = Stage::open(IMAGE.fork(), &stage::setup().mount, seed)?;
    let ino = stage.fs.create(Ino::ROOT, b"f", 0o644, OWNER).map_err(text("create"))?.ino;
    let accepted = Arc::new(AtomicU64::new(0));
    let (fs, count) = (stage.fs.clone(), accepted.clone());
    let write = move || {
        for n in 0..WRITES {
            let written = fs.write(ino, n * PIECE, &[7; PIECE as usize]).map_err(text("write"))?;
            count.fetch_add(written as u64, SeqCst);
        }
        fs.fsync(ino, false).map_err(text("fsync"))
    };
    let mut rng = SmallRng::seed_from_u64(seed);
    let writes = stage::start(&mut rng, "writes", SPAN, write)?;
    stage.fs.freeze().map_err(text("freeze"))?;
    let at_first = stage.device.op_counts().total();
    pause(Duration::from_micros(300));
    let frozen = (ino, accepted.load(SeqCst), stage.device.view());
    if stage.device.op_counts().total() != at_first {
        return Err("a frozen file system uses its device".to_owned());
    }
    stage.fs.thaw().map_err(text("thaw"))?;
    writes.join().map_err(|_| "a thread panicked")??;
    Ok((frozen, stage.close()?))
}

fn judge(((ino, count, frozen), medium): (Frozen, MemDevice)) -> Result<(), String> {
    for (what, medium, least) in [("frozen", frozen, count), ("closed", medium, WRITES * PIECE)] {
        let fs = stage::recovered(medium, &stage::setup()).map_err(|e| format!("{what}: {e}"))?;
        let size = fs.getattr(ino).map_err(text("stat"))?.size;
        if size < least {
            return Err(format!("{what}: {least} bytes were accepted, the image has {size}"));
        }
        fs.close().map_err(text("close"))?;
    }
    Ok(())
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(seed, plan, move || body(seed), judge)
}
