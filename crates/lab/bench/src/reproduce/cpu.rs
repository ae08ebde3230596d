//! Processor time of a process, including its ended threads, and of the whole machine.
//!
//! Kernel threads belong to no process. So the time of a process lacks the work of loop devices and
//! of other file systems' threads. The machine's time includes that work, and all other load.

use anyhow::{Context, Result};

/// Units per second of these times in `/proc`, whatever the kernel's tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cpu {
    pub user: f64,
    pub system: f64,
}

impl Cpu {
    pub fn now() -> Result<Cpu> {
        Cpu::of("self")
    }

    /// Reads the times of another process, which is given by its number.
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

/// Parses the fields after the name, which may itself contain spaces and parentheses.
fn parse(stat: &str) -> Option<Cpu> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Cpu { user: seconds()?, system: seconds()? })
}

/// Processor seconds of all processors together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Busy {
    pub busy: f64,
    pub idle: f64,
}

impl Busy {
    pub fn now() -> Result<Busy> {
        let stat = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        parse_machine(&stat).context("no processor times in /proc/stat")
    }

    pub fn since(self) -> Result<Busy> {
        let now = Busy::now()?;
        Ok(Busy { busy: now.busy - self.busy, idle: now.idle - self.idle })
    }

    pub fn percent(self) -> f64 {
        self.busy / (self.busy + self.idle) * 100.0
    }
}

/// Parses the first line: user, nice, system, idle, iowait, irq, softirq.
fn parse_machine(stat: &str) -> Option<Busy> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<f64> =
        line.split_whitespace().take(7).map(|t| t.parse()).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, idle, iowait, irq, softirq] = times[..] else { return None };
    let busy = user + nice + system + irq + softirq;
    Some(Busy { busy: busy / TICKS_PER_SECOND, idle: (idle + iowait) / TICKS_PER_SECOND })
}

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;
