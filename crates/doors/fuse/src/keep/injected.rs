//! Kills servers within requests, for tests of a whole mount, in builds with debug assertions.
//!
//! With `KEDGE_DEATHS=SEED,FILE`, every second server of a mount dies at one step of one kind of
//! request, by a panic or by abort(3). The seed and the number of the life select these, so that
//! rare kinds are tried as often as common ones. The lives in between must end for other reasons,
//! because a request that kills three consecutive servers is refused. With
//! `KEDGE_DEATHS=READ/Received,FILE`, the first server dies by a panic at this step of the first
//! such request, and with `KEDGE_DEATHS=READ/Received*,FILE` each server dies so. Before its death
//! a server appends a line to FILE.

use super::step::Step;
use crate::abi::{op, op_name};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const VARIABLE: &str = "KEDGE_DEATHS";
/// A server dies at one of this many first passages of the step.
const PASSAGES: u64 = 4;

/// Kinds of requests that change the file system.
const CHANGES: &[u32] = &[
    op::SETATTR,
    op::SYMLINK,
    op::MKNOD,
    op::MKDIR,
    op::UNLINK,
    op::RMDIR,
    op::RENAME,
    op::RENAME2,
    op::LINK,
    op::WRITE,
    op::SETXATTR,
    op::REMOVEXATTR,
    op::FALLOCATE,
    op::TMPFILE,
];
const OF_CHANGES: &[Step] =
    &[Step::Received, Step::Begun, Step::Marked, Step::Made, Step::Finished, Step::Served, Step::Redone];
const OTHERS: &[u32] = &[
    op::LOOKUP,
    op::FORGET,
    op::GETATTR,
    op::READLINK,
    op::READ,
    op::STATFS,
    op::FSYNC,
    op::GETXATTR,
    op::LISTXATTR,
    op::READDIR,
    op::READDIRPLUS,
    op::FSYNCDIR,
    op::LSEEK,
    op::SYNCFS,
    op::IOCTL,
];
const OF_OTHERS: &[Step] = &[Step::Received, Step::Served];
/// Requests at which a server dies only if they are named.
const LAST: &[u32] = &[op::DESTROY];

static DEATH: OnceLock<Option<Death>> = OnceLock::new();

/// How this process must die.
struct Death {
    opcode: u32,
    step: Step,
    panics: bool,
    /// The passages of the step that are left until the death.
    left: AtomicU64,
    file: PathBuf,
}

impl Death {
    fn of(life: u64) -> Option<Death> {
        let words = std::env::var(VARIABLE).ok()?;
        let (which, file) = words.split_once(',')?;
        let pairs = |opcodes: &'static [u32], steps: &'static [Step]| {
            opcodes.iter().flat_map(|opcode| steps.iter().map(|step| (*opcode, *step)))
        };
        let mut all = pairs(CHANGES, OF_CHANGES).chain(pairs(OTHERS, OF_OTHERS));
        let Ok(seed) = which.parse::<u64>() else {
            let (which, each) = which.strip_suffix('*').map_or((which, false), |which| (which, true));
            let named = |(opcode, step): &(u32, Step)| format!("{}/{step:?}", op_name(*opcode)) == which;
            let (opcode, step) =
                all.chain(pairs(LAST, OF_OTHERS)).find(named).filter(|_| each || life == 1)?;
            return Some(Death { opcode, step, panics: true, left: AtomicU64::new(1), file: file.into() });
        };
        let mut random = Random(seed.wrapping_add(life << 32));
        let count = all.clone().count() as u64;
        let (opcode, step) = all.nth(random.below(count) as usize).filter(|_| life.is_multiple_of(2))?;
        let left = AtomicU64::new(1 + random.below(PASSAGES));
        Some(Death { opcode, step, panics: random.below(2) == 0, left, file: file.into() })
    }

    fn die(&self) -> ! {
        let how = if self.panics { "panic" } else { "abort" };
        let line = format!("{} {:?} {how}\n", op_name(self.opcode), self.step);
        let noted = OpenOptions::new().append(true).open(&self.file);
        let noted = noted.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(!self.panics, "a death that {VARIABLE} asks for, {line}noted: {noted:?}");
        std::process::abort()
    }
}

/// A generator of random numbers: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Called at the begin of this process's life.
pub(super) fn begin(life: u64) {
    DEATH.get_or_init(|| Death::of(life));
}

/// Called when a request of this kind reaches this step.
pub(super) fn at(step: Step, opcode: u32) {
    let Some(Some(death)) = DEATH.get() else { return };
    if (death.step, death.opcode) == (step, opcode) && death.left.fetch_sub(1, Relaxed) == 1 {
        death.die();
    }
}
