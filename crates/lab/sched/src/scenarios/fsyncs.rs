//! fsyncs of one file and of several, and syncs, some on a device that fails once: after each call
//! that succeeds, its bytes survive a power failure, whatever other calls do.

use super::stage::{self, Stage, text};
use crate::run::Run;
use crate::strategy::Plan;
use kedge_base::ManualClock;
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedge_sim::ops::{OWNER, errno};
use kedge_sim::rig;
use kedgefs::{FileSystem, Ino};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Length in bytes of a write: more than an fsync puts into the log.
const PIECE: usize = 32 << 10;
const FILES: usize = 2;
const PIECES: usize = 5;
const CALLERS_MAX: usize = 5;
/// The approximate virtual time of an fsync.
const SPAN: Duration = Duration::from_micros(300);

/// An image with files whose blocks are all allocated, so that each write is an overwrite.
static IMAGE: LazyLock<(MemDevice, [Ino; FILES])> = LazyLock::new(|| prepare().expect("an image in memory"));

fn prepare() -> Result<(MemDevice, [Ino; FILES]), String> {
    let setup = stage::setup();
    let device = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
    let mut files = [Ino(0); FILES];
    for (i, file) in files.iter_mut().enumerate() {
        *file = fs.create(Ino::ROOT, format!("f{i}").as_bytes(), 0o644, OWNER).map_err(text("create"))?.ino;
        fs.write(*file, 0, &[1; PIECES * PIECE]).map_err(text("write"))?;
    }
    fs.close().map_err(text("close"))?;
    Ok((device.view(), files))
}

/// By file: the pieces that writes have accepted, one bit each. A later fsync or sync that succeeds
/// makes them durable.
type Accepted = Arc<[AtomicU64; FILES]>;

/// A file, the pieces that a successful call has made durable, and the medium after the call.
type Answered = (usize, u64, MemDevice);

/// The call that makes the pieces durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Fsync,
    /// An asynchronous fsync: another thread passes the result to the caller.
    Later,
    Sync,
}

struct Caller {
    fs: FileSystem,
    device: Arc<SimDevice>,
    accepted: Accepted,
    file: usize,
    piece: usize,
    call: Call,
}

impl Caller {
    fn run(self) -> Option<Answered> {
        let (ino, bit) = (IMAGE.1[self.file], 1 << self.piece);
        let bytes = vec![2; PIECE];
        if self.fs.write(ino, (self.piece * PIECE) as u64, &bytes).is_ok_and(|count| count == PIECE) {
            self.accepted[self.file].fetch_or(bit, SeqCst);
        }
        let covers = self.accepted[self.file].load(SeqCst);
        let device = self.device.clone();
        let after = move |ok: bool| ok.then(|| device.crash_as(Choice::None));
        let medium = if self.call == Call::Sync {
            after(self.fs.sync().is_ok())
        } else if self.call == Call::Later {
            let slot = Arc::new((Mutex::new(Rank::Leaf, None), Condvar::new()));
            let answer = slot.clone();
            let done = Box::new(move |result: kedgefs::Result<()>| {
                *answer.0.lock() = Some(after(result.is_ok()));
                answer.1.notify_all();
            });
            self.fs.fsync_async(ino, true, done);
            let mut answered = slot.0.lock();
            loop {
                if let Some(medium) = answered.take() {
                    break medium;
                }
                slot.1.wait(&mut answered);
            }
        } else {
            after(self.fs.fsync(ino, self.piece.is_multiple_of(2)).is_ok())
        };
        medium.map(|medium| (self.file, covers, medium))
    }
}

fn body(seed: u64, syncs: bool) -> Result<Vec<Answered>, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let stage = Stage::open(IMAGE.0.fork(), &stage::setup().mount, seed)?;
    let callers = rng.random_range(2..=CALLERS_MAX);
    // More than three fsyncs at once wait in the queue of a group.
    let later = callers > 3 && !syncs;
    if !later && rng.random() {
        let nth = rng.random_range(0..4);
        let kind = if rng.random_ratio(1, 4) { OpKind::Flush } else { OpKind::Write };
        stage.device.set_plan(FaultPlan::new(seed).fail(kind, nth, errno::EIO));
    }
    let accepted = Accepted::default();
    let mut threads = Vec::new();
    for piece in 0..callers {
        let caller = Caller {
            fs: stage.fs.clone(),
            device: stage.device.clone(),
            accepted: accepted.clone(),
            file: if later { piece % FILES } else { rng.random_range(0..3) / 2 },
            piece,
            call: match later {
                _ if syncs => Call::Sync,
                true => Call::Later,
                false => Call::Fsync,
            },
        };
        let span = if later { Duration::from_micros(20) } else { SPAN };
        threads.push(stage::start(&mut rng, "caller", span, move || caller.run())?);
    }
    let mut answered = Vec::new();
    for thread in threads {
        answered.extend(thread.join().map_err(|_| "a caller panicked")?);
    }
    // The result of the close does not matter: a flush that failed has shut the file system down.
    let _ = stage.fs.close();
    Ok(answered)
}

fn judge(answered: Vec<Answered>) -> Result<(), String> {
    for (file, covers, medium) in answered {
        let fs = stage::recovered(medium, &stage::setup())?;
        for piece in (0..PIECES).filter(|piece| covers >> piece & 1 == 1) {
            let mut bytes = vec![0; PIECE];
            fs.read(IMAGE.1[file], (piece * PIECE) as u64, &mut bytes).map_err(text("read"))?;
            if let Some(at) = bytes.iter().position(|byte| *byte != 2) {
                return Err(format!(
                    "a call for file {file} succeeded, and byte {at} of piece {piece} is lost"
                ));
            }
        }
        fs.close().map_err(text("close"))?;
    }
    Ok(())
}

pub fn play(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(seed, plan, move || body(seed, false), judge)
}

pub fn play_syncs(seed: u64, plan: &Plan) -> Run {
    LazyLock::force(&IMAGE);
    stage::play(seed, plan, move || body(seed, true), judge)
}
