//! `kedge top`: shows the activity of a mount as figures of the last interval.
//!
//! Each page is made from two readings of the counters that `kedge stats` shows. On a terminal the
//! page is drawn in place, until `q`, SIGINT or SIGTERM; elsewhere, pages follow one another. No
//! crate for terminal interfaces is used: one table without input needs only a page that is redrawn
//! and two settings of the terminal.

use crate::report::Histogram;
use crate::summary;
use anyhow::{Context, Result};
use kedge_base::{Clock, SystemClock};
use kedge_host::os::TerminationSignals;
use kedge_host::text::duration;
use kedge_host::{mounts, status};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print the figures of one interval, and end
    #[arg(long)]
    once: bool,
    /// Seconds from one page to the next
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// The mount point
    dir: PathBuf,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let interval = Duration::from_secs(args.interval);
    let clock = SystemClock::default();
    let mut before = (clock.monotonic(), status::counters(&args.dir)?);
    let (ends, end) = channel();
    // Block signals before the threads start: a signal must not kill the program while the terminal
    // is in its changed mode.
    let signals = TerminationSignals::block().context("block signals")?;
    let screen = if args.once { None } else { Screen::take(ends.clone())? };
    kedge_base::spawn_named("signals", move || {
        // A send fails only if the program is ending.
        let _ = ends.send(signals.wait().map(|_| ()));
    })
    .context("start a thread")?;
    loop {
        match wait(&end, interval) {
            Wait::Over => {}
            Wait::Ended(outcome) => {
                outcome.context("wait for a signal or a key")?;
                return Ok(ExitCode::SUCCESS);
            }
        }
        let now = (clock.monotonic(), status::counters(&args.dir)?);
        let dir = mounts::resolve(&args.dir)?;
        let text = picture(&dir, &before.1, &now.1, now.0.saturating_sub(before.0).as_secs_f64());
        match &screen {
            Some(screen) => screen.draw(&text)?,
            None => std::io::stdout().lock().write_all(text.as_bytes())?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
    }
}

enum Wait {
    Over,
    Ended(std::io::Result<()>),
}

fn wait(end: &Receiver<std::io::Result<()>>, interval: Duration) -> Wait {
    match end.recv_timeout(interval) {
        Ok(outcome) => Wait::Ended(outcome),
        Err(RecvTimeoutError::Timeout) => Wait::Over,
        Err(RecvTimeoutError::Disconnected) => {
            Wait::Ended(Err(std::io::Error::other("the threads that wait for the end are gone")))
        }
    }
}

/// The terminal in its changed mode; dropping this restores it.
struct Screen {
    /// The settings to restore; `None` if standard input is not a terminal.
    keys: Option<Termios>,
}

impl Screen {
    /// Changes the terminal's mode; `None` if standard output is not a terminal.
    fn take(ends: Sender<std::io::Result<()>>) -> Result<Option<Screen>> {
        if !std::io::stdout().is_terminal() {
            return Ok(None);
        }
        let mut screen = Screen { keys: None };
        if std::io::stdin().is_terminal() {
            let before = tcgetattr(std::io::stdin()).context("ask the terminal for its settings")?;
            let mut settings = before.clone();
            // Read keys without waiting for a line end and without echo. Ctrl-C stays a signal.
            settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(std::io::stdin(), OptionalActions::Now, &settings).context("set the terminal")?;
            screen.keys = Some(before);
        }
        kedge_base::spawn_named("keys", move || {
            let mut keys = std::io::BufReader::new(std::io::stdin()).bytes();
            // If standard input ends, signals can still end the program.
            if keys.any(|key| key.is_ok_and(|key| matches!(key, b'q' | b'Q'))) {
                let _ = ends.send(Ok(()));
            }
        })
        .context("start a thread")?;
        // Switch to the alternate screen and hide the cursor.
        write!(std::io::stdout(), "\x1b[?1049h\x1b[?25l").context("write to the terminal")?;
        Ok(Some(screen))
    }

    /// Draws as much of the page as fits.
    fn draw(&self, text: &str) -> Result<()> {
        let size = tcgetwinsize(std::io::stdout()).context("ask the terminal for its size")?;
        // 0 means that the terminal does not know its size.
        let or = |n: u16, default: usize| if n == 0 { default } else { n as usize };
        let (rows, columns) = (or(size.ws_row, 24), or(size.ws_col, 80));
        let lines = text.lines().take(rows.max(2) - 1).map(|line| {
            let shown: String = line.chars().take(columns).collect();
            format!("{shown}\x1b[K")
        });
        let lines: Vec<String> = lines.collect();
        let mut out = std::io::stdout().lock();
        write!(out, "\x1b[H{}\n\x1b[J", lines.join("\n")).and_then(|()| out.flush())?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no reset.
        let _ = write!(std::io::stdout(), "\x1b[?25h\x1b[?1049l").and_then(|()| std::io::stdout().flush());
        if let Some(before) = &self.keys {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

/// The difference of two readings.
struct Change<'a> {
    before: &'a Value,
    now: &'a Value,
    seconds: f64,
}

impl Change<'_> {
    fn at(&self, pointer: &str) -> u64 {
        self.now.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    fn since(&self, pointer: &str) -> u64 {
        self.at(pointer).saturating_sub(self.before.pointer(pointer).and_then(Value::as_u64).unwrap_or(0))
    }

    fn rate(&self, pointer: &str) -> f64 {
        self.since(pointer) as f64 / self.seconds
    }

    fn bytes_rate(&self, pointer: &str) -> String {
        format!("{}/s", bytes(self.rate(pointer) as u64))
    }

    /// The average of a histogram over the interval.
    fn average(&self, pointer: &str) -> f64 {
        let part = |name: &str| self.since(&format!("{pointer}/{name}")) as f64;
        part("sum") / part("count").max(1.0)
    }
}

/// The page of an interval.
fn picture(dir: &Path, before: &Value, now: &Value, seconds: f64) -> String {
    let c = Change { before, now, seconds: seconds.max(0.001) };
    let mut out = format!("KedgeFS on {}, the last {seconds:.1} s\n", dir.display());
    if let Some(reason) = now["state"]["reason"].as_str() {
        let since = now["state"]["since"].as_str().unwrap_or("?");
        let _ = writeln!(out, "SHUT DOWN since {since}: {reason}");
    }
    if let Some(told) = now["state"]["device"].as_str() {
        let _ = writeln!(out, "THE DEVICE {told}");
    }
    if let Some(since) = now["state"]["frozen_since"].as_str() {
        let _ = writeln!(out, "FROZEN since {since}");
    }
    let (used, ring) = (c.at("/log/used_bytes"), c.at("/log/ring_bytes").max(1));
    let percent = used.min(ring) * 100 / ring;
    let filled = "#".repeat(percent.div_ceil(5) as usize);
    let lines = [
        format!(
            "log         [{filled:<20}] {percent} % of {}, {} appended",
            bytes(ring),
            c.bytes_rate("/log/bytes_appended")
        ),
        format!(
            "log writes  {:.0}/s, {} each, {:.1} records and {:.1} waiting calls in one",
            c.rate("/log/writes"),
            bytes(c.since("/log/bytes_written").checked_div(c.since("/log/writes")).unwrap_or(0)),
            c.average("/log/group_records"),
            c.average("/log/group_forces"),
        ),
        format!(
            "dirty       {} in {} files, {} of the tree; {} pages and {} inodes cached",
            bytes(c.at("/cache/dirty_pages") * kedge_base::BLOCK_SIZE as u64),
            c.at("/cache/dirty_inodes"),
            bytes(c.at("/cache/tree_dirty_bytes")),
            c.at("/cache/pages"),
            c.at("/cache/inodes"),
        ),
        format!(
            "checkpoint  generation {}, {:.2}/s, {:.1} ms each, {} written, operations waited {} times",
            c.at("/checkpoint/generation"),
            c.rate("/checkpoint/ns/count"),
            c.average("/checkpoint/ns") / 1e6,
            c.bytes_rate("/checkpoint/bytes_written"),
            c.since("/log/space_stall_ns/count")
                + c.since("/checkpoint/node_stalls")
                + c.since("/checkpoint/dirty_stalls"),
        ),
        format!(
            "device      {:.0} reads/s {}, {:.0} writes/s {}, {:.0} flushes/s, {} outstanding",
            c.rate("/device/reads"),
            c.bytes_rate("/device/read_bytes"),
            c.rate("/device/writes"),
            c.bytes_rate("/device/write_bytes"),
            c.rate("/device/flushes"),
            c.at("/device_requests/outstanding"),
        ),
        format!("latency     {}", summary::latency(&now["device"]["latency"])),
        format!("placement   {}", summary::placement(&now["fuse"]["placement"])),
    ];
    lines.iter().for_each(|line| {
        let _ = writeln!(out, "{line}");
    });
    let _ = writeln!(
        out,
        "\n{:<14} {:>10} {:>10} {:>10} {:>12}",
        "operation", "per second", "average", "p99", "count"
    );
    let mut rows = operations(&c);
    // The busiest first; idle operations keep their order.
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    rows.into_iter().for_each(|(_, row)| out += &row);
    out
}

/// A row for each operation, with its rate.
fn operations(c: &Change<'_>) -> Vec<(f64, String)> {
    let all = c.now["operations"].as_object().into_iter().flatten();
    all.filter_map(|(name, value)| {
        let h = Histogram::of(value)?;
        let before = c.before["operations"].get(name).and_then(Histogram::of);
        let passed = h.since(before.as_ref());
        let rate = passed.count as f64 / c.seconds;
        let time = |ns: u64| if passed.count == 0 { "-".into() } else { duration(ns) };
        let average = passed.sum.checked_div(passed.count).unwrap_or(0);
        let row = format!(
            "{name:<14} {rate:>10.1} {:>10} {:>10} {:>12}\n",
            time(average),
            time(passed.quantile(0.99)),
            h.count
        );
        Some((rate, row))
    })
    .collect()
}

fn bytes(n: u64) -> String {
    match n {
        0..10_240 => format!("{n} B"),
        10_240..10_485_760 => format!("{:.1} KiB", n as f64 / 1024.0),
        10_485_760..10_737_418_240 => format!("{:.1} MiB", n as f64 / 1048576.0),
        _ => format!("{:.1} GiB", n as f64 / 1073741824.0),
    }
}

#[cfg(test)]
#[path = "top_tests.rs"]
mod tests;
