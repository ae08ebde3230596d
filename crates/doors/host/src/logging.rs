//! Where messages go: standard error, and the system's log.

use crate::syslog;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// `to_syslog`: this is a process in the background. Nobody reads its standard error once it
/// serves.
pub fn start(to_syslog: bool) {
    let filter = EnvFilter::try_from_env("KEDGE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::registry()
        .with(filter)
        .with(syslog::Limit::default())
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false))
        .with(to_syslog.then(|| syslog::ToSyslog.boxed()))
        .init();
}
