//! How much is tried: the limits of a search, for one recording and for a cluster.

use super::parse_time;
use kedge_crash::{Budget, SearchOrder};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Effort {
    /// Limit of the search: a number of states, or a time such as 5m [default: 10000 states; 1000
    /// of a cluster]
    #[arg(long, value_name = "TIME|STATES", value_parser = parse_budget)]
    budget: Option<Limit>,
    /// Limit of the time in which failing states are shrunk and explained; 0: do not explain
    /// [default: the budget's time, at least 30s; no limit without such a budget]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    explain: Option<Duration>,
    /// Record what the check does in crash states, crash that recovery as well, and its recovery in
    /// turn, up to N deep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub again: Option<u32>,
    /// With --again: recoveries to crash at each depth [default: 32; 8 of a cluster]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub again_recoveries: Option<u64>,
    /// Stop after this number of failing states
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_failures: Option<u64>,
    /// Seed of the random part
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    States(u64),
    Time(Duration),
}

fn parse_budget(text: &str) -> Result<Limit, String> {
    let limit = match text.parse() {
        Ok(states) => Limit::States(states),
        Err(_) => Limit::Time(parse_time(text)?),
    };
    match limit {
        Limit::States(0) | Limit::Time(Duration::ZERO) => Err("nothing could be tried".into()),
        limit => Ok(limit),
    }
}

impl Effort {
    /// The limits; `states` if the user sets neither states nor time.
    pub fn budget(&self, states: u64, jobs: usize, order: SearchOrder, stop: Arc<AtomicBool>) -> Budget {
        let (states, time) = match self.budget {
            None => (Some(states), None),
            Some(Limit::States(n)) => (Some(n), None),
            Some(Limit::Time(t)) => (None, Some(t)),
        };
        let (failures, explain, seed) = (self.max_failures, self.explain, self.seed);
        Budget { states, time, explain, failures, seed, order, jobs, stop }
    }
}
