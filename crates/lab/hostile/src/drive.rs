//! The driver: runs a target on its corpus and on mutated inputs, for a given processor time.
//!
//! A panic on any thread is a find. An input that takes longer than two minutes is a find, too, and
//! ends the process, since a thread cannot be killed.

use crate::mutate::mutate;
use kedge_base::{Clock, SystemClock, panic_words, spawn_named};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Limit for an input: many times what the slowest input takes on a busy machine.
const HANG: Duration = Duration::from_secs(120);
/// Interval between checks of the running input.
const LOOK: Duration = Duration::from_millis(200);
/// Limit of inputs that are mutated. At the limit a new input replaces an older one.
const POOL_MAX: usize = 4096;
/// Limit of finds, since many inputs find the same fault.
const FINDS_MAX: usize = 20;
/// Processor seconds of a target unless `KEDGE_FUZZ_SECONDS` is set.
const SECONDS: f64 = 2.0;

/// Number of panics on all threads of this process, including threads that the code under test
/// starts.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Allows one run at a time, since panics and processor time are counted for the process.
static ONE: Mutex<()> = Mutex::new(());

/// Code that must not panic on any input.
pub struct Target {
    pub name: &'static str,
    /// Returns a digest of the outcome, so that inputs with new outcomes are recognised.
    pub run: fn(&[u8]) -> u64,
    /// Byte strings of the format that random mutation would not find.
    pub words: &'static [&'static [u8]],
    pub len_max: usize,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub seed: u64,
    pub executions: u64,
    pub seconds: f64,
    /// Number of inputs in the corpus.
    pub kept: usize,
    /// Number of inputs in the pool at the end.
    pub pool: usize,
    pub outcomes: usize,
    /// The input that took longest.
    pub slowest: (Duration, Vec<u8>),
    /// The finds: what happened, and the input.
    pub finds: Vec<(String, Vec<u8>)>,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { name, seed, executions, seconds, kept, pool, outcomes, slowest, finds } = self;
        write!(
            f,
            "{name}: {executions} executions in {seconds:.1} s of processor time, seed {seed}; corpus {kept}, \
             {pool} mutated, {outcomes} outcomes, slowest {:.3} s; {} finds",
            slowest.0.as_secs_f64(),
            finds.len()
        )?;
        finds.iter().try_for_each(|(why, input)| write!(f, "\n{why}\n  input: {}", hex(input)))
    }
}

/// Hashes a value to one number.
pub fn outcome(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The words of a message, without numbers that differ from input to input.
pub fn words_of(message: &str) -> String {
    let is_plain = |word: &&str| word.len() < 20 && word.bytes().all(|b| b.is_ascii_lowercase());
    message.split_whitespace().filter(is_plain).collect::<Vec<_>>().join(" ")
}

fn hex(input: &[u8]) -> String {
    input.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn processor_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The running input and the time at which it began; `None` between inputs.
type Running = Option<(Duration, Vec<u8>)>;

/// Ends the process if an input takes too long.
struct Watch {
    now: Arc<Mutex<Running>>,
    ended: Arc<AtomicBool>,
    clock: SystemClock,
}

impl Watch {
    fn start(name: &'static str) -> Watch {
        let watch = Watch { now: Arc::default(), ended: Arc::default(), clock: SystemClock::default() };
        let (now, ended, clock) = (watch.now.clone(), watch.ended.clone(), watch.clock);
        let look = move || {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
                if let Some((since, input)) = &*now.lock()
                    && clock.since(*since) > HANG
                {
                    eprintln!("{name}: an input still runs after {HANG:?}\n  input: {}", hex(input));
                    std::process::exit(1);
                }
            }
        };
        spawn_named("fuzz-watch", look).expect("a test can start a thread");
        watch
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
}

struct Driver<'t> {
    target: &'t Target,
    watch: Watch,
    seen: HashSet<u64>,
    finds: Vec<(String, Vec<u8>)>,
    executions: u64,
    slowest: (Duration, Vec<u8>),
}

impl Driver<'_> {
    /// Runs the target on the input. Returns whether the outcome is new.
    fn run(&mut self, input: &[u8]) -> bool {
        self.executions += 1;
        let start = self.watch.clock.monotonic();
        *self.watch.now.lock() = Some((start, input.to_vec()));
        let before = PANICS.load(Ordering::SeqCst);
        let ran = catch_unwind(AssertUnwindSafe(|| (self.target.run)(input)));
        *self.watch.now.lock() = None;
        let took = self.watch.clock.since(start);
        if took > self.slowest.0 {
            self.slowest = (took, input.to_vec());
        }
        let panicked = PANICS.load(Ordering::SeqCst) != before;
        match ran {
            Ok(_) if panicked => self.finds.push(("a thread panicked".to_owned(), input.to_vec())),
            Ok(outcome) => return self.seen.insert(outcome),
            Err(panic) => self.finds.push((panic_words(&*panic).to_owned(), input.to_vec())),
        }
        false
    }
}

/// Runs the corpus, then mutations for `seconds` of processor time.
pub fn drive(target: &Target, corpus: &Path, seconds: f64, seed: u64) -> std::io::Result<Outcome> {
    let _one = ONE.lock();
    count_panics();
    let mut pool = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(corpus)?.collect::<std::io::Result<_>>()?;
    // readdir's order differs between systems, and a seed must define the run.
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        pool.push(std::fs::read(file.path())?);
    }
    let kept = pool.len();
    if kept == 0 {
        return Err(std::io::Error::other(format!("no corpus in {}", corpus.display())));
    }
    let mut driver = Driver {
        target,
        watch: Watch::start(target.name),
        seen: HashSet::new(),
        finds: Vec::new(),
        executions: 0,
        slowest: (Duration::ZERO, Vec::new()),
    };
    let start = processor_seconds();
    for input in &pool {
        driver.run(input);
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut next = kept;
    while processor_seconds() - start < seconds && driver.finds.len() < FINDS_MAX {
        let input = mutate(&mut rng, &pool, target.words, target.len_max);
        if !driver.run(&input) {
            continue;
        }
        match pool.get_mut(next) {
            Some(old) => *old = input,
            None => pool.push(input),
        }
        next = if next + 1 < POOL_MAX { next + 1 } else { kept };
    }
    Ok(Outcome {
        name: target.name,
        seed,
        executions: driver.executions,
        seconds: processor_seconds() - start,
        kept,
        pool: pool.len(),
        outcomes: driver.seen.len(),
        slowest: driver.slowest,
        finds: driver.finds,
    })
}

/// Runs a target as a test: for `KEDGE_FUZZ_SECONDS` of processor time, with the seed `KEDGE_SEED`.
///
/// # Panics
/// If something was found, or the corpus cannot be read.
pub fn test(target: &Target, corpus: &Path) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().expect("a number"));
    let seconds = number("KEDGE_FUZZ_SECONDS").unwrap_or(SECONDS);
    let seed = number("KEDGE_SEED").unwrap_or(1.0) as u64;
    let outcome = drive(target, corpus, seconds, seed).expect("the corpus can be read");
    println!("{outcome}");
    assert!(outcome.finds.is_empty(), "{outcome}");
    assert!(outcome.executions > outcome.kept as u64, "nothing was mutated: {outcome}");
}
