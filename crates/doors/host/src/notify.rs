//! Notifies the service manager when mounts are live, by the protocol of sd_notify(3): one datagram
//! to the socket that `NOTIFY_SOCKET` names.
//!
//! No crate is used, because std has all that is needed.

use anyhow::{Context, Result, bail};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Reports that all requested mounts are live.
pub fn ready() {
    tell("READY=1");
}

/// Reports that a signal asked the process to end.
pub fn stopping() {
    tell("STOPPING=1");
}

/// Sends a state. A failure is only logged: a manager that gets no message ends the service at its
/// own time limit, and the mounts work until then.
fn tell(state: &str) {
    if let Err(e) = send(state) {
        tracing::warn!("the service manager was not notified of {state}: {e:#}");
    }
}

fn send(state: &str) -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(&name),
        _ => bail!("NOTIFY_SOCKET={} is neither a path nor an abstract name", name.display()),
    };
    let address = address.with_context(|| format!("NOTIFY_SOCKET={}", name.display()))?;
    let socket = UnixDatagram::unbound().context("make a socket")?;
    // A manager that does not read must not keep the mounts from being served.
    socket.set_write_timeout(Some(Duration::from_secs(2))).context("bound the wait")?;
    socket.send_to_addr(state.as_bytes(), &address).with_context(|| format!("send to {}", name.display()))?;
    Ok(())
}
