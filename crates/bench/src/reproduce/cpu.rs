//! Processor time of this process, all its threads included, those that ended too.
//!
//! Kernel threads are not included, so the work of loop devices and of other file systems' own
//! threads is missing.

use anyhow::{Context, Result};

/// What Linux counts these times in, whatever its own clock ticks at.
const TICKS_PER_SECOND: f64 = 100.0;

/// In seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cpu {
    pub user: f64,
    pub system: f64,
}

impl Cpu {
    pub fn now() -> Result<Cpu> {
        let stat = std::fs::read_to_string("/proc/self/stat").context("read our own times")?;
        parse(&stat).context("no processor times in /proc/self/stat")
    }

    pub fn since(self) -> Result<Cpu> {
        let now = Cpu::now()?;
        Ok(Cpu { user: now.user - self.user, system: now.system - self.system })
    }

    pub fn total(self) -> f64 {
        self.user + self.system
    }
}

/// The fields after the name, which may itself contain spaces and parentheses.
fn parse(stat: &str) -> Option<Cpu> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Cpu { user: seconds()?, system: seconds()? })
}

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;
