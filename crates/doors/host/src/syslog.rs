//! Sends the messages of a background process without terminal or log file to the system's log, as
//! lines that syslog daemons and the journal both accept.
//!
//! A persistent fault repeats its message with each request. So warnings and errors are limited in
//! every log: a few lines a minute from each place in the code, and then the number of lines left
//! out.

use crate::stderr;
use crate::text::one_line;
use kedge_base::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Facility daemon.
const DAEMON: u32 = 3 << 3;
const ERROR: u32 = 3;
const WARNING: u32 = 4;
const SOCKET: &str = "/dev/log";
/// An environment variable that names another socket, for tests.
const SOCKET_VARIABLE: &str = "KEDGE_SYSLOG";

/// The most lines from one place in the code within [`WINDOW`].
const BURST: u64 = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// Sends an error to the system log, if there is one. The caller logs it in the process's own log
/// too.
pub fn error(text: &str) {
    send(ERROR, text);
}

fn send(severity: u32, text: &str) {
    let line = format!("<{}>kedge[{}]: {}", DAEMON | severity, std::process::id(), one_line(text));
    let socket = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.into());
    let sent = UnixDatagram::unbound().and_then(|from| {
        // A full log must not block the file system.
        from.set_nonblocking(true)?;
        from.send_to(line.as_bytes(), socket)
    });
    if let Err(e) = sent {
        tracing::debug!("not sent to the system log: {e}");
    }
}

/// Sends warnings and errors to the system's log.
pub struct ToSyslog;

impl<S: Subscriber> Layer<S> for ToSyslog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let severity = match *event.metadata().level() {
            Level::ERROR => ERROR,
            Level::WARN => WARNING,
            _ => return,
        };
        let mut words = Words::default();
        event.record(&mut words);
        send(severity, &(words.message + &words.fields));
    }
}

#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("a String takes all");
    }
}

/// Limits the rate of warnings and errors.
pub struct Limit {
    clock: Arc<dyn Clock>,
    /// By file and line, so bounded by the number of log statements. The lock has no rank: a
    /// message may be logged under any other lock, and no lock is taken under this one.
    seen: Mutex<BTreeMap<(&'static str, u32), Seen>>,
}

impl Default for Limit {
    fn default() -> Limit {
        Limit { clock: Arc::new(SystemClock::default()), seen: Mutex::default() }
    }
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Seen {
    since: Duration,
    count: u64,
}

/// The decision about one line.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The line is logged, after a note about this number of lines left out before it.
    Pass(u64),
    Drop,
}

impl Seen {
    fn judge(&mut self, now: Duration) -> Verdict {
        let mut left_out = 0;
        if now.saturating_sub(self.since) >= WINDOW {
            left_out = self.count.saturating_sub(BURST);
            *self = Seen { since: now, count: 0 };
        }
        self.count += 1;
        if self.count > BURST { Verdict::Drop } else { Verdict::Pass(left_out) }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let place = event.metadata();
        // Levels below warning are enabled only on request, and then all their lines are wanted.
        if *place.level() > Level::WARN {
            return true;
        }
        let (Some(file), Some(line)) = (place.file(), place.line()) else { return true };
        let now = self.clock.monotonic();
        let verdict =
            self.seen.lock().entry((file, line)).or_insert(Seen { since: now, count: 0 }).judge(now);
        if let Verdict::Pass(left_out @ 1..) = verdict {
            let text = format!("{left_out} messages like the next one were left out");
            stderr::note(&text);
            send(WARNING, &text);
        }
        verdict != Verdict::Drop
    }
}

#[cfg(test)]
#[path = "syslog_tests.rs"]
mod tests;
