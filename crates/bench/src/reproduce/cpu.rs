//! Processor time of a process, all its threads included, those that ended too.
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
        Cpu::of("self")
    }

    /// Of another process, by its number.
    pub fn of(process: &str) -> Result<Cpu> {
        let path = format!("/proc/{process}/stat");
        let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        parse(&stat).with_context(|| format!("no processor times in {path}"))
    }

    pub fn since(self) -> Result<Cpu> {
        Ok(Cpu::now()?.less(self))
    }

    pub fn less(self, earlier: Cpu) -> Cpu {
        Cpu { user: self.user - earlier.user, system: self.system - earlier.system }
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
