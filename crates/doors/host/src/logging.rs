//! Sends messages to standard error and to the system's log.

use crate::syslog;
use std::fmt::Display;
use std::io::Write;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Writes a line to standard error, as a process that serves must do it: `eprintln!` panics if the
/// line cannot be written, for example because a log file is on a full file system, and a panic
/// shuts the mount down.
pub fn note(line: impl Display) {
    // There is no other place for the line.
    let _unwritable = writeln!(std::io::stderr(), "kedge: {line}");
}

/// Writes a warning to standard error, like [`note`].
pub fn warn(line: impl Display) {
    note(format_args!("warning: {line}"));
}

/// Starts logging. `to_syslog` is for a background process: its standard error becomes /dev/null
/// when it serves.
pub fn start(to_syslog: bool) {
    let filter = EnvFilter::try_from_env("KEDGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::registry()
        .with(filter)
        .with(syslog::Limit::default())
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false))
        .with(to_syslog.then(|| syslog::ToSyslog.boxed()))
        .init();
}
