//! Sends messages to standard error and to the system's log.

use crate::syslog;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

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
