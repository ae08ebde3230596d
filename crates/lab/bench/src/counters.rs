//! KedgeFS's own counters at one moment, and their differences since.
//!
//! A missing counter is an error. If it counted as zero, a misspelt name would meet every goal of
//! zero.

use crate::shell::Shell;
use anyhow::{Context, Result};
use kedgefs::FileSystem;
use serde_json::Value;

pub struct Counters(Value);

impl Counters {
    pub fn of_mount(shell: &Shell, name: &str) -> Result<Counters> {
        Counters::parse(&shell.run(&format!("kedge stats --json {name}"))?)
    }

    pub fn of(fs: &FileSystem) -> Result<Counters> {
        Counters::parse(&fs.stats_json())
    }

    pub fn parse(json: &str) -> Result<Counters> {
        Ok(Counters(serde_json::from_str(json).context("read the counters")?))
    }

    /// Reads a counter by its path, such as `log/forces/rename`.
    pub fn get(&self, path: &str) -> Result<f64> {
        let found = self.0.pointer(&format!("/{path}")).and_then(Value::as_f64);
        found.with_context(|| format!("no counter {path}"))
    }

    /// A histogram's buckets.
    pub fn list(&self, path: &str) -> Result<Vec<f64>> {
        let list = self.0.pointer(&format!("/{path}")).and_then(Value::as_array);
        let list = list.with_context(|| format!("no counters {path}"))?;
        list.iter().map(|v| v.as_f64().with_context(|| format!("a bad counter in {path}"))).collect()
    }

    pub fn since(&self, before: &Counters, path: &str) -> Result<f64> {
        Ok(self.get(path)? - before.get(path)?)
    }

    /// The sum of all `log/forces`.
    pub fn forces_since(&self, before: &Counters) -> Result<f64> {
        FORCE_CAUSES.iter().map(|cause| self.since(before, &format!("log/forces/{cause}"))).sum()
    }

    /// The longest operation of any kind, in nanoseconds.
    pub fn longest(&self) -> Result<f64> {
        let all = self.0.pointer("/operations").and_then(Value::as_object).context("no operations")?;
        let mut longest = all.keys().map(|name| self.get(&format!("operations/{name}/max")));
        longest.try_fold(0.0, |most, next| Ok(next?.max(most)))
    }

    /// The average time that the engine itself took for an operation, in milliseconds.
    pub fn average_since(&self, before: &Counters, operation: &str) -> f64 {
        let sum = |of: &Counters| {
            let get = |name: &str| of.get(&format!("operations/{operation}/{name}")).unwrap_or(0.0);
            (get("average") * get("count"), get("count"))
        };
        let ((now, count), (old, old_count)) = (sum(self), sum(before));
        (now - old) / (count - old_count) / 1e6
    }

    /// A quantile of latencies such as `operations/fsync`, in nanoseconds. NaN if there are none,
    /// since operations that never ran are not listed. A histogram's bucket spans a factor of two.
    /// Values within a bucket are assumed to be spread evenly, up to the maximum.
    pub fn quantile_since(&self, before: &Counters, latency: &str, q: f64) -> f64 {
        let max = self.get(&format!("{latency}/max")).unwrap_or(f64::INFINITY);
        let buckets = |of: &Counters| -> Vec<f64> {
            let path = format!("/{latency}/histogram");
            let list = of.0.pointer(&path).and_then(Value::as_array);
            list.map_or(vec![], |l| l.iter().map(|v| v.as_f64().unwrap_or(0.0)).collect())
        };
        let (now, old) = (buckets(self), buckets(before));
        let counts: Vec<f64> =
            now.iter().enumerate().map(|(i, n)| n - old.get(i).copied().unwrap_or(0.0)).collect();
        let want = counts.iter().sum::<f64>() * q;
        let mut seen = 0.0;
        for (i, n) in counts.iter().enumerate() {
            if *n > 0.0 && seen + n >= want {
                let low = if i == 0 { 0.0 } else { (2.0f64).powi(i as i32 - 1) };
                return (low + low * (want - seen) / n).min(max);
            }
            seen += n;
        }
        f64::NAN
    }
}

/// The causes of log forces, by their names in `log/forces`.
pub const FORCE_CAUSES: [&str; 9] =
    ["fsync", "fdatasync", "sync", "commit_timer", "rename", "fallocate", "space", "checkpoint", "close"];

#[cfg(test)]
#[path = "counters_tests.rs"]
mod tests;
