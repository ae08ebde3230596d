//! Parses the output of fs_mark and dbench.

use anyhow::{Context, Result, bail};

/// Files per second, from the last line of fs_mark's table.
pub fn fs_mark(output: &str) -> Result<f64> {
    let mut lines = output.lines().skip_while(|l| !l.trim_start().starts_with("FSUse%"));
    let header = lines.next().context("fs_mark printed no table")?;
    // The names of this column and of those before it are single words.
    let column = header.split_whitespace().position(|w| w == "Files/sec").context("no column Files/sec")?;
    let row = lines.filter(|l| !l.trim().is_empty()).last().context("fs_mark's table is empty")?;
    let word = row.split_whitespace().nth(column).with_context(|| format!("no rate in '{row}'"))?;
    positive(word).with_context(|| format!("the rate in '{}'", row.trim()))
}

/// dbench's summary.
#[derive(Debug, PartialEq)]
pub struct Dbench {
    /// Megabytes per second.
    pub throughput: f64,
    /// Milliseconds.
    pub max_latency: f64,
}

pub fn dbench(output: &str) -> Result<Dbench> {
    let line = output.lines().rfind(|l| l.starts_with("Throughput ")).context("dbench printed no sum")?;
    let mut words = line.split_whitespace().skip(1);
    let throughput = words.next().unwrap_or_default();
    if words.next() != Some("MB/sec") {
        bail!("dbench's throughput is not in MB/sec: '{line}'");
    }
    let latency = words
        .find_map(|w| w.strip_prefix("max_latency="))
        .with_context(|| format!("no latency in '{line}'"))?;
    Ok(Dbench {
        throughput: positive(throughput).with_context(|| format!("the throughput in '{line}'"))?,
        max_latency: positive(latency).with_context(|| format!("the latency in '{line}'"))?,
    })
}

/// A row of dbench's table, with times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DbenchOperation {
    pub count: f64,
    pub average: f64,
    pub max: f64,
}

/// The table of operations by name. An operation that never ran has no row.
pub fn dbench_operations(output: &str) -> Result<Vec<(String, DbenchOperation)>> {
    let mut lines = output.lines().skip_while(|l| {
        let head: Vec<&str> = l.split_whitespace().collect();
        head != ["Operation", "Count", "AvgLat", "MaxLat"]
    });
    lines.next().context("dbench printed no table of operations")?;
    let mut rows = Vec::new();
    for line in lines.skip(1).take_while(|l| !l.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, count, average, max] = words[..] else { bail!("dbench's row '{}'", line.trim()) };
        let number = |word: &str| -> Result<f64> {
            let value: f64 = word.parse().with_context(|| format!("'{word}' in dbench's row '{line}'"))?;
            if value.is_finite() && value >= 0.0 {
                Ok(value)
            } else {
                bail!("'{word}' in dbench's row '{line}'")
            }
        };
        let row = DbenchOperation { count: number(count)?, average: number(average)?, max: number(max)? };
        rows.push((name.to_owned(), row));
    }
    if rows.is_empty() {
        bail!("dbench's table of operations is empty");
    }
    Ok(rows)
}

fn positive(word: &str) -> Result<f64> {
    match word.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => bail!("'{word}' is no rate or time"),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
