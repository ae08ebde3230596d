//! `FileSystem::close` while writers run: the image contains each write that succeeded, and no
//! write disturbs the close.

use super::stage::{self, Stage, text};
use crate::run::Run;
use crate::strategy::Plan;
use kedge_base::pause;
use kedge_device::MemDevice;
use kedge_sim::ops::OWNER;
use kedge_sim::rig;
use kedgefs::Ino;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::LazyLock;
use std::time::Duration;

const WRITERS: usize = 2;
const WRITES: u64 = 3;
const PIECE: u64 = 5000;
/// The approximate virtual time of a close.
const SPAN: Duration = Duration::from_micros(500);

static IMAGE: LazyLock<MemDevice> = LazyLock::new(|| {
    let setup = stage::setup();
    rig::format(setup.image, setup.log).expect("an image in memory can be formatted")
});

/// For each writer: its file, and the number of bytes that its writes have returned as written.
type Accepted = Vec<(Ino, u64)>;

fn body(seed: u64) -> Result<(MemDevice, Accepted), String> {
    let stage = Stage::open(IMAGE.fork(), &stage::setup().mount, seed)?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut threads = Vec::new();
    for i in 0..WRITERS {
        let fs = stage.fs.clone();
        let name = format!("w{i}");
        let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, OWNER).map_err(text("create"))?.ino;
        let write = move || {
            let mut accepted = 0;
            for n in 0..WRITES {
                let bytes = [i as u8 + 1; PIECE as usize];
                match fs.write(ino, n * PIECE, &bytes) {
                    Ok(count) => accepted += count as u64,
                    Err(_) => break,
                }
            }
            (ino, accepted)
        };
        threads.push(stage::start(&mut rng, &name, SPAN, write)?);
    }
    pause(rng.random_range(Duration::ZERO..SPAN));
    stage.fs.close().map_err(text("close"))?;
    let medium = stage.close()?;
    let accepted: Result<Vec<_>, _> = threads.into_iter().map(|thread| thread.join()).collect();
    Ok((medium, accepted.map_err(|_| "a writer panicked")?))
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(
        seed,
        plan,
        move || body(seed),
        |(medium, accepted)| {
            let fs = stage::recovered(medium, &stage::setup())?;
            for (ino, count) in accepted {
                let size = fs.getattr(ino).map_err(text("stat"))?.size;
                let mut bytes = vec![0; count as usize];
                let found = fs.read(ino, 0, &mut bytes).map_err(text("read"))?;
                if size < count || found as u64 != count || bytes.contains(&0) {
                    return Err(format!("{count} bytes were accepted, {size} are left after the close"));
                }
            }
            fs.close().map_err(text("close"))
        },
    )
}
