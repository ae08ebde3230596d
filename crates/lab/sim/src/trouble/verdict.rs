//! Compares the errors that the calls of a run returned with the requests that the device failed.

use super::{Class, Layout, Report};
use crate::ledger::owners;
use kedge_device::sim::{OpKind, Strike};
use kedgefs::Error;
use std::collections::{BTreeMap, BTreeSet};

/// The last call of a run.
pub(super) const CLOSE: &str = "close";

/// The failed requests that a call may report, besides those that affect every call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Concern {
    /// No request with a file's data.
    Metadata,
    /// Requests with data of this file that failed during the call.
    File(usize),
    /// Requests with data of this file that failed since the file was last durable.
    Sync(usize),
    /// All failed requests.
    All,
}

/// A completed call.
pub(super) struct Call {
    pub what: &'static str,
    pub concern: Concern,
    /// Number of failed requests at the call's beginning, and at its end.
    pub start: u64,
    pub end: u64,
    /// The number at the beginning of the oldest call that was in progress when this one began.
    pub beside: u64,
    pub error: Option<Error>,
    /// The call failed, and the file system was shut down after it.
    pub down: bool,
}

impl Call {
    fn is_of(&self, file: usize) -> bool {
        match self.concern {
            Concern::Metadata => false,
            Concern::File(of) | Concern::Sync(of) => of == file,
            Concern::All => true,
        }
    }
}

/// What a failed request affects.
#[derive(Debug)]
enum Hit {
    /// Log, flush or superblock: the file system must shut down.
    Deadly,
    /// A tree node, or any read: a call that needs it may fail.
    Anybody,
    Data(BTreeSet<usize>),
}

pub(super) struct Judge<'a> {
    pub layout: &'a Layout,
    pub strikes: Vec<Strike>,
    pub calls: &'a [Call],
}

impl Judge<'_> {
    fn hit(&self, strike: &Strike) -> Hit {
        match strike.kind {
            OpKind::Flush => Hit::Deadly,
            OpKind::Read => Hit::Anybody,
            OpKind::Write if self.layout.log.contains(&strike.offset) => Hit::Deadly,
            OpKind::Write => {
                let data = strike.data.as_ref().filter(|_| self.layout.data.contains(&strike.offset));
                let files = data.map_or_else(BTreeSet::new, |data| owners(&data.to_vec()));
                if files.is_empty() { Hit::Anybody } else { Hit::Data(files) }
            }
        }
    }

    /// Checks rules 2 and 3 of [`super`].
    pub fn told(&self, report: &mut Report, stats: &str) {
        let hits: Vec<Hit> = self.strikes.iter().map(|strike| self.hit(strike)).collect();
        let down = self.calls.iter().any(|call| call.down);
        if !down && hits.iter().any(|hit| matches!(hit, Hit::Deadly)) {
            report.find(Class::Lie, "a flush or log write failed and the file system did not shut down");
        }
        if !down && healed_elsewhere(stats) == 0 {
            for (at, hit) in hits.iter().enumerate() {
                let Hit::Data(files) = hit else { continue };
                if at as u64 >= self.made_good_from() {
                    continue;
                }
                for file in files {
                    // The call may have begun before the request failed.
                    let mut later = self.calls.iter().filter(|c| c.end > at as u64 && c.is_of(*file));
                    if !later.any(|call| call.error.is_some()) {
                        let strike = &self.strikes[at];
                        let (offset, len) = (strike.offset, strike.len);
                        let what =
                            format!("no call reported file {file}: write {at} at {offset}, {len} bytes");
                        report.find(Class::Lie, what);
                    }
                }
            }
        }
        self.innocents(report, &hits);
    }

    /// Returns the number of the first failure that happened during a close that succeeded. The
    /// close wrote the data again, and no later call can report the failure. The last media show
    /// whether the close was right.
    fn made_good_from(&self) -> u64 {
        let close = self.calls.last().filter(|call| call.what == CLOSE && call.error.is_none());
        close.map_or(u64::MAX, |call| call.start)
    }

    fn innocents(&self, report: &mut Report, hits: &[Hit]) {
        let mut since: BTreeMap<usize, u64> = BTreeMap::new();
        // For each file, the number below which failures have been reported.
        let mut told: BTreeMap<usize, u64> = BTreeMap::new();
        for call in self.calls {
            let Some(error) = &call.error else {
                if let Concern::Sync(file) = call.concern {
                    since.insert(file, call.start);
                }
                continue;
            };
            if call.down {
                continue;
            }
            let from = match call.concern {
                Concern::Metadata | Concern::File(_) => call.start,
                Concern::Sync(file) => since.get(&file).copied().unwrap_or(0).min(call.start),
                Concern::All => 0,
            };
            // If more requests failed than were recorded, the call cannot be judged.
            if call.end as usize > hits.len() {
                continue;
            }
            // A writeback may see its failure while an fsync writes the same bytes. Then the next
            // fsync reports it.
            let mut untold = |file: usize| {
                let first = told.insert(file, call.end).unwrap_or(0).min(call.end);
                let mut hits = hits[first as usize..call.end as usize].iter();
                hits.any(|hit| matches!(hit, Hit::Data(files) if files.contains(&file)))
            };
            let late = if let Concern::Sync(file) = call.concern { untold(file) } else { false };
            let concerned = hits[from as usize..call.end as usize].iter().any(|hit| match hit {
                Hit::Deadly | Hit::Anybody => true,
                Hit::Data(files) => match call.concern {
                    Concern::Metadata => false,
                    Concern::File(file) | Concern::Sync(file) => files.contains(&file),
                    Concern::All => true,
                },
            });
            // Threads that need the same block share one read. A thread that joins a read that has
            // already failed gets its error.
            let shared = self.strikes[call.beside as usize..call.start as usize]
                .iter()
                .any(|strike| strike.kind == OpKind::Read);
            if !concerned && !late && !shared {
                report.find(Class::Innocent, format!("{} {:?} answers {error}", call.what, call.concern));
            }
        }
    }
}

/// Returns the file system's count of writes that failed in one place and succeeded in another.
fn healed_elsewhere(stats: &str) -> u64 {
    let stats: serde_json::Value = serde_json::from_str(stats).expect("the file system writes JSON");
    stats["data"]["relocated_writes"].as_u64().unwrap_or(0)
}
