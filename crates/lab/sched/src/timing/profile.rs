//! How threads spent virtual time.

use std::collections::HashMap;
use std::panic::Location;
use std::time::Duration;

/// What a thread does with its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Does the engine's or the load's own work.
    Computing,
    /// Is ready, but no processor is free.
    RunQueue,
    /// Is woken, but has not begun to run on its idle processor.
    WakeUp,
    /// Puts threads to sleep, wakes them, and switches between them.
    Switch,
    /// Fetches cache lines that another processor has changed, or waits for them.
    CacheLine,
    /// Spins or sleeps until a lock is free.
    Lock,
    /// Checks again and again what another thread must change.
    Spin,
    /// Sleeps until another thread wakes it.
    Condition,
    /// Sleeps for a time.
    Sleep,
    /// Waits for the end of another thread.
    Join,
}

impl Kind {
    pub fn words(self) -> &'static str {
        match self {
            Kind::Computing => "computing",
            Kind::RunQueue => "run queue",
            Kind::WakeUp => "wake-up latency",
            Kind::Switch => "switches and wake-ups of others",
            Kind::CacheLine => "cache lines",
            Kind::Lock => "lock",
            Kind::Spin => "spinning",
            Kind::Condition => "condition",
            Kind::Sleep => "sleep",
            Kind::Join => "end of a thread",
        }
    }
}

/// The time of one kind, at one place of the source code, of all threads with one name.
#[derive(Clone, Debug)]
pub struct Row {
    pub thread: String,
    pub kind: Kind,
    /// The place in the source code; `None` for computing, the run queue, wake-ups and switches.
    pub site: Option<&'static Location<'static>>,
    pub count: u64,
    pub time: Duration,
}

type Key = (usize, Kind, Option<&'static Location<'static>>);

/// See the module. The row with the longest time is first.
#[derive(Clone, Default, Debug)]
pub struct Profile {
    pub rows: Vec<Row>,
}

impl Profile {
    /// The time of this kind of all threads with this name.
    pub fn time(&self, thread: &str, kind: Kind) -> Duration {
        self.rows.iter().filter(|row| row.thread == thread && row.kind == kind).map(|row| row.time).sum()
    }

    /// The time of this kind of all threads.
    pub fn total(&self, kind: Kind) -> Duration {
        self.rows.iter().filter(|row| row.kind == kind).map(|row| row.time).sum()
    }
}

/// The sums that the running machine collects.
#[derive(Default, Debug)]
pub(super) struct Sums {
    sums: HashMap<Key, (u64, u64)>,
    names: Vec<String>,
}

impl Sums {
    /// Returns the number of a name, a new one for a new name.
    pub fn name(&mut self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    pub fn name_of(&self, number: usize) -> &str {
        &self.names[number]
    }

    pub fn add(&mut self, name: usize, kind: Kind, site: Option<&'static Location<'static>>, nanos: u64) {
        if nanos > 0 {
            let sum = self.sums.entry((name, kind, site)).or_default();
            sum.0 += 1;
            sum.1 += nanos;
        }
    }

    pub fn take(&mut self) -> Profile {
        let mut rows: Vec<Row> = self
            .sums
            .drain()
            .map(|((name, kind, site), (count, nanos))| Row {
                thread: self.names[name].clone(),
                kind,
                site,
                count,
                time: Duration::from_nanos(nanos),
            })
            .collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.time), row.kind, row.site.map(|site| site.line())));
        Profile { rows }
    }
}
