//! Chooses which thread runs next.

use kedge_base::machine::Step;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// What a strategy knows when it chooses.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// The number of the choice in the run, from 0.
    pub at: u64,
    /// The threads that can run, in ascending order; at least one.
    pub ready: &'a [usize],
    /// The thread that has the turn, if it can keep it.
    pub current: Option<usize>,
    pub what: Option<Step>,
    /// Whether a thread sleeps that could be woken early, as if the others were slow.
    pub sleeper: bool,
}

impl Look<'_> {
    /// The choice of a schedule without switches: a thread keeps its turn. Only a thread that spins
    /// passes it on to the next one, for which it may wait.
    pub fn plain(&self) -> usize {
        if self.what != Some(Step::Spin) {
            return self.current.unwrap_or(self.ready[0]);
        }
        let next = self.ready.iter().find(|thread| Some(**thread) > self.current);
        *next.unwrap_or(&self.ready[0])
    }
}

/// What happens next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Choice {
    Run(usize),
    /// Virtual time jumps to the end of the next sleep.
    Jump,
}

pub trait Strategy: Send {
    fn choose(&mut self, look: &Look<'_>) -> Choice;
}

/// How a run chooses its threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// At random. How often a thread loses its turn is random, too: rarely in some runs, since many
    /// races need a thread that makes many steps in a row; at every second step in others.
    Random,
    /// Probabilistic concurrency testing (Burckhardt and others, 2010). Threads have random
    /// priorities, and the highest one that can run does. At `depth - 1` random steps of about
    /// `length` the running thread gets the lowest priority. Finds a race of that depth among `n`
    /// threads with a probability of at least 1 / (n · length^(depth - 1)).
    Pct { depth: u32, length: u64 },
    /// As `Pct` with `depth`, but a thread that loses its turn at one of these steps is stalled
    /// until a random number of sleepers have woken up, even if no other thread can run: as if its
    /// processor served another program. Finds races with whole calls of another thread that wait
    /// for the device.
    Stall { depth: u32, length: u64 },
    /// The recorded choices at their numbers; elsewhere [`Look::plain`].
    Replay(Vec<(u64, Choice)>),
}

impl Plan {
    pub fn strategy(&self, seed: u64) -> Box<dyn Strategy> {
        let mut rng = SmallRng::seed_from_u64(seed);
        match self {
            Plan::Random => {
                let one_in = 1 << rng.random_range(1..8);
                Box::new(Random { rng, one_in })
            }
            Plan::Pct { depth, length } => Box::new(Pct::new(rng, *depth, *length)),
            Plan::Stall { depth, length } => {
                Box::new(Stall { pct: Pct::new(rng, *depth, *length), stalled: None })
            }
            Plan::Replay(schedule) => Box::new(Replay(schedule.iter().copied().collect())),
        }
    }
}

/// One in this many choices wakes a sleeper early.
const JUMP_ONE_IN: u32 = 400;

struct Random {
    rng: SmallRng,
    one_in: u32,
}

impl Strategy for Random {
    fn choose(&mut self, look: &Look<'_>) -> Choice {
        if look.sleeper && self.rng.random_ratio(1, JUMP_ONE_IN) {
            return Choice::Jump;
        }
        let stays = look.current.filter(|_| look.what != Some(Step::Spin));
        match stays {
            Some(current) if !self.rng.random_ratio(1, self.one_in) => Choice::Run(current),
            _ => Choice::Run(look.ready[self.rng.random_range(0..look.ready.len())]),
        }
    }
}

struct Pct {
    rng: SmallRng,
    changes: Vec<u64>,
    /// By thread. Positive: as drawn. Negative: lowered; a later change is lower.
    priorities: BTreeMap<usize, i64>,
    lowest: i64,
}

impl Pct {
    fn new(mut rng: SmallRng, depth: u32, length: u64) -> Pct {
        let changes = (1..depth).map(|_| rng.random_range(0..length.max(1))).collect();
        Pct { rng, changes, priorities: BTreeMap::new(), lowest: 0 }
    }
}

impl Strategy for Pct {
    fn choose(&mut self, look: &Look<'_>) -> Choice {
        for thread in look.ready {
            let rng = &mut self.rng;
            self.priorities.entry(*thread).or_insert_with(|| rng.random_range(1..i64::MAX));
        }
        if look.sleeper && self.rng.random_ratio(1, JUMP_ONE_IN) {
            return Choice::Jump;
        }
        // A spinning thread waits for another thread, which may have a lower priority.
        if let Some(current) = look.current
            && (look.what == Some(Step::Spin) || self.changes.contains(&look.at))
        {
            self.lowest -= 1;
            self.priorities.insert(current, self.lowest);
        }
        let highest = look.ready.iter().max_by_key(|thread| self.priorities[thread]);
        Choice::Run(*highest.expect("at least one is ready"))
    }
}

/// Limit of the sleepers that wake up while a thread is stalled.
const STALL_MAX: u32 = 256;

struct Stall {
    pct: Pct,
    /// The stalled thread, and how many sleepers wake up before it runs again.
    stalled: Option<(usize, u32)>,
}

impl Strategy for Stall {
    fn choose(&mut self, look: &Look<'_>) -> Choice {
        if let Some(current) = look.current.filter(|_| self.pct.changes.contains(&look.at)) {
            self.stalled = Some((current, self.pct.rng.random_range(1..=STALL_MAX)));
        }
        let Some((thread, left)) = &mut self.stalled else { return self.pct.choose(look) };
        let others: Vec<usize> = look.ready.iter().copied().filter(|ready| ready != thread).collect();
        // A spinning thread may wait for the stalled one.
        let waits = others.is_empty() || look.what == Some(Step::Spin);
        if waits && (*left == 0 || others.is_empty() && !look.sleeper) {
            self.stalled = None;
            return self.pct.choose(look);
        }
        if waits {
            *left -= 1;
        }
        if others.is_empty() {
            return Choice::Jump;
        }
        let current = look.current.filter(|current| current != thread);
        self.pct.choose(&Look { ready: &others, current, ..*look })
    }
}

struct Replay(BTreeMap<u64, Choice>);

impl Strategy for Replay {
    fn choose(&mut self, look: &Look<'_>) -> Choice {
        match self.0.get(&look.at) {
            Some(Choice::Jump) if look.sleeper => Choice::Jump,
            Some(Choice::Run(thread)) if look.ready.contains(thread) => Choice::Run(*thread),
            _ => Choice::Run(look.plain()),
        }
    }
}
