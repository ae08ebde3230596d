//! What a process in the background has to say, for whom there is no terminal and no log file:
//! lines for the system's log, which syslog daemons and the journal take alike.
//!
//! A fault that stays says the same thing with each request. So warnings and errors are limited,
//! for the system's log and all others: of each place in the code some lines a minute, and then how
//! many were left out.

use crate::text::one_line;
use kedge_base::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;
use std::os::unix::net::UnixDatagram;
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
/// For tests: another socket.
const SOCKET_VARIABLE: &str = "KEDGE_SYSLOG";

/// Lines of one place in the code within [`WINDOW`].
const BURST: u64 = 3;
const WINDOW: Duration = Duration::from_secs(60);

/// Sends an error to the system log, if there is one. The process's own log has it in any case.
pub fn error(text: &str) {
    send(ERROR, text);
}

fn send(severity: u32, text: &str) {
    let line = format!("<{}>kedge[{}]: {}", DAEMON | severity, std::process::id(), one_line(text));
    let socket = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.into());
    let sent = UnixDatagram::unbound().and_then(|from| {
        // A log that is full must not hold up the file system that complains.
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

/// Lets warnings and errors pass as often as is useful.
#[derive(Default)]
pub struct Limit {
    clock: SystemClock,
    /// By file and line: as many as the program has places that complain. A lock without a rank:
    /// a message may come from under any other lock, and nothing is taken below this one.
    seen: Mutex<HashMap<(&'static str, u32), Seen>>,
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Seen {
    since: Duration,
    count: u64,
}

/// What becomes of one line.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// With the number of those that were left out before it.
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
        // Whoever asks for more detail wants all of it.
        if *place.level() > Level::WARN {
            return true;
        }
        let (Some(file), Some(line)) = (place.file(), place.line()) else { return true };
        let now = self.clock.monotonic();
        let verdict =
            self.seen.lock().entry((file, line)).or_insert(Seen { since: now, count: 0 }).judge(now);
        if let Verdict::Pass(left_out @ 1..) = verdict {
            let text = format!("{left_out} messages like the next one were left out");
            eprintln!("kedge: {text}");
            send(WARNING, &text);
        }
        verdict != Verdict::Drop
    }
}

#[cfg(test)]
#[path = "syslog_tests.rs"]
mod tests;
