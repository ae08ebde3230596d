//! Formats trees of counters as text.
//!
//! The engine describes itself as JSON: nested objects with numbers, words and histograms at the
//! leaves. A histogram is an object of `count`, `sum`, `max` and `histogram` (or `buckets`), by
//! powers of two. Nothing here knows a counter by name, so a new one needs no change. By convention
//! the end of a name gives the unit: `_ns`, `_bytes`.

use kedge_host::text::duration;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A leaf and its path, with keys joined by dots.
pub struct Row<'a> {
    pub path: String,
    pub value: &'a Value,
}

/// The leaves, in the order of the tree.
pub fn rows(tree: &Value) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    collect(String::new(), tree, &mut rows);
    rows
}

fn collect<'a>(path: String, value: &'a Value, rows: &mut Vec<Row<'a>>) {
    let under = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) if Histogram::of(value).is_none() => {
            for (key, value) in map {
                collect(under(key), value, rows);
            }
        }
        Value::Array(items) if items.iter().any(|i| i.is_object() || i.is_array()) => {
            for (i, value) in items.iter().enumerate() {
                collect(under(&i.to_string()), value, rows);
            }
        }
        _ => rows.push(Row { path, value }),
    }
}

pub fn name_width(rows: &[Row<'_>]) -> usize {
    rows.iter().map(|r| r.path.len()).max().unwrap_or(0)
}

pub struct Histogram<'a> {
    pub count: u64,
    pub sum: u64,
    pub max: u64,
    buckets: &'a [Value],
}

impl Histogram<'_> {
    pub fn of(value: &Value) -> Option<Histogram<'_>> {
        let field = |name: &str| value.get(name)?.as_u64();
        Some(Histogram {
            count: field("count")?,
            sum: field("sum")?,
            max: field("max")?,
            buckets: value.get("histogram").or_else(|| value.get("buckets"))?.as_array()?,
        })
    }

    /// Largest value that bucket `i` counts: bucket 0 holds 0, bucket `i` holds `[2^(i-1), 2^i)`.
    fn bound(i: usize) -> u64 {
        u64::MAX.checked_shr(64 - i as u32).unwrap_or(if i == 0 { 0 } else { u64::MAX })
    }

    fn counts(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(|n| n.as_u64().unwrap_or(0))
    }

    pub fn quantile(&self, q: f64) -> u64 {
        quantile(self.counts(), self.count, self.max, q)
    }

    /// The samples added since an earlier reading of the same histogram.
    pub fn since(&self, before: Option<&Histogram<'_>>) -> Interval {
        let Some(before) = before else {
            return Interval {
                count: self.count,
                sum: self.sum,
                max: self.max,
                buckets: self.counts().collect(),
            };
        };
        let earlier = before.counts().chain(std::iter::repeat(0));
        Interval {
            count: self.count.saturating_sub(before.count),
            sum: self.sum.saturating_sub(before.sum),
            max: self.max,
            buckets: self.counts().zip(earlier).map(|(now, then)| now.saturating_sub(then)).collect(),
        }
    }
}

/// A part of a histogram.
pub struct Interval {
    pub count: u64,
    pub sum: u64,
    /// The maximum of the whole histogram, because that of the interval is not known.
    max: u64,
    buckets: Vec<u64>,
}

impl Interval {
    pub fn quantile(&self, q: f64) -> u64 {
        quantile(self.buckets.iter().copied(), self.count, self.max, q)
    }
}

fn quantile(buckets: impl Iterator<Item = u64>, count: u64, max: u64, q: f64) -> u64 {
    let want = (count as f64 * q).ceil().max(1.0) as u64;
    let mut seen = 0;
    for (i, n) in buckets.enumerate() {
        seen += n;
        if seen >= want {
            return Histogram::bound(i).min(max);
        }
    }
    max
}

/// A table: first the scalars in order, then each histogram on a line with its count, average,
/// quantiles and maximum.
pub fn table(tree: &Value) -> String {
    let rows = rows(tree);
    let width = name_width(&rows);
    let mut out = String::new();
    for row in &rows {
        let shown = match Histogram::of(row.value) {
            None => text(row.value),
            Some(h) => {
                let unit = |n: u64| if is_time(&row.path) { duration(n) } else { n.to_string() };
                let average = h.sum.checked_div(h.count).unwrap_or(0);
                format!(
                    "count {}  average {}  p50 {}  p99 {}  max {}",
                    h.count,
                    unit(average),
                    unit(h.quantile(0.5)),
                    unit(h.quantile(0.99)),
                    unit(h.max)
                )
            }
        };
        writeln!(out, "{:width$}  {shown}", row.path).expect("a String takes all");
    }
    out
}

/// Whether a histogram counts nanoseconds. Histograms of operations have the operation's name
/// without a unit.
fn is_time(path: &str) -> bool {
    path.ends_with("_ns") || path.ends_with(".ns") || path.starts_with("operations.")
}

/// A leaf without JSON's quotes.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(s) if s.is_empty() => "-".into(),
        Value::String(s) => s.clone(),
        Value::Null => "-".into(),
        Value::Bool(b) => if *b { "yes" } else { "no" }.into(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The Prometheus text format of the counters of mounts, each mount's samples labelled with its
/// mount point. Strings are left out, since a sample is a number. The samples of a metric follow
/// its head, as the format demands.
pub fn prometheus(mounts: &[(Value, String)]) -> String {
    let mut metrics: Vec<String> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (tree, mount) in mounts {
        let label = mount.replace('\\', r"\\").replace('"', "\\\"").replace('\n', "\\n");
        for row in rows(tree) {
            let name = metric_name(&row.path);
            let histogram = Histogram::of(row.value);
            let kind = match (&histogram, sample(row.value)) {
                (Some(_), _) => "histogram",
                (None, None) => continue,
                (None, Some(_)) if is_gauge(&row.path) || row.value.is_boolean() => "gauge",
                (None, Some(_)) => "counter",
            };
            let place = *places.entry(name.clone()).or_insert_with(|| {
                metrics.push(head(&name, &row.path, kind));
                metrics.len() - 1
            });
            let out = &mut metrics[place];
            let written = match (&histogram, sample(row.value)) {
                (Some(h), _) => write_histogram(out, &name, &label, h),
                (None, Some(number)) => writeln!(out, "{name}{{mount=\"{label}\"}} {number}"),
                (None, None) => Ok(()),
            };
            written.expect("a String takes all");
        }
    }
    metrics.concat()
}

fn sample(value: &Value) -> Option<String> {
    match value {
        Value::Bool(b) => Some((*b as u8).to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Whether a value is a gauge, that is, a present state. All other values count events since the
/// mount.
fn is_gauge(path: &str) -> bool {
    const NOW: &[&str] = &[
        "free_percent",
        "parked_bytes",
        "promised_bytes",
        "reserved_bytes",
        "ring_bytes",
        "used_bytes",
        "height",
        "bad_blocks",
        "outstanding",
        "late",
        "oldest_ns",
    ];
    let last = path.rsplit('.').next().unwrap_or(path);
    path.starts_with("cache.")
        || path.starts_with("device.latency.")
        || NOW.contains(&last)
        || last.ends_with("_avg")
        || last.ends_with("_avg_ns")
        || last.ends_with("_max")
}

/// The `# HELP` and `# TYPE` lines; the help names the counter's path and its unit.
fn head(name: &str, path: &str, kind: &str) -> String {
    let unit = match path {
        _ if path.ends_with("_ns") || (kind == "histogram" && path.starts_with("operations.")) => {
            ", in nanoseconds"
        }
        _ if path.ends_with("_bytes") => ", in bytes",
        _ => "",
    };
    let when = if kind == "gauge" { "at present" } else { "since the mount" };
    let words = path.trim_end_matches("_ns").trim_end_matches("_bytes").replace('_', " ").replace('.', ": ");
    format!("# HELP {name} KedgeFS, {words}{unit}, {when}.\n# TYPE {name} {kind}\n")
}

fn write_histogram(out: &mut String, name: &str, label: &str, h: &Histogram<'_>) -> std::fmt::Result {
    let mut seen = 0;
    for (i, n) in h.buckets.iter().enumerate() {
        seen += n.as_u64().unwrap_or(0);
        writeln!(out, "{name}_bucket{{mount=\"{label}\",le=\"{}\"}} {seen}", Histogram::bound(i))?;
    }
    writeln!(out, "{name}_bucket{{mount=\"{label}\",le=\"+Inf\"}} {}", h.count)?;
    writeln!(out, "{name}_sum{{mount=\"{label}\"}} {}", h.sum)?;
    writeln!(out, "{name}_count{{mount=\"{label}\"}} {}", h.count)
}

fn metric_name(path: &str) -> String {
    let clean = path.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    format!("kedgefs_{}", clean.collect::<String>())
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
