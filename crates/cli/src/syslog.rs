//! Messages to the system log, for errors that nobody would read on the standard error of a
//! background process.

use std::os::unix::net::UnixDatagram;

/// Facility daemon, severity error.
const DAEMON_ERROR: u32 = 3 << 3 | 3;

/// Sends an error to the system log, if there is one. The process's own log has it in any case.
pub fn error(text: &str) {
    let line = format!("<{DAEMON_ERROR}>kedge[{}]: {}", std::process::id(), crate::one_line(text));
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(line.as_bytes(), "/dev/log"));
    if let Err(e) = sent {
        tracing::debug!("not sent to the system log: {e}");
    }
}
