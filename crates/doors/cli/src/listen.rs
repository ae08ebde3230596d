//! `kedge stats --listen`: the counters of mounts over HTTP, for Prometheus.
//!
//! # Bounds
//! A request has at most [`REQUEST_BYTES_MAX`] bytes, and [`PATIENCE`] limits its arrival and its
//! reply. At most [`CONNECTIONS_MAX`] connections are served at once, each by a thread; further
//! connections are closed. Only one thread at a time queries a mount, for at most
//! [`MOUNT_PATIENCE`]: after that the reply is sent without the mount, and no second query starts
//! before the first has returned. So neither a client that sends nothing nor a mount that does not
//! respond delays the others or occupies more than one thread.
//!
//! Only GET and HEAD of `/metrics` are supported, one request for each connection. No HTTP crate is
//! used, because a scrape needs no more.

use crate::report;
use anyhow::{Context, Result};
use kedge_base::{Clock, SystemClock};
use kedge_host::{Usage, mounts, notify, status};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const REQUEST_BYTES_MAX: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
const MOUNT_PATIENCE: Duration = Duration::from_secs(2);
const CONNECTIONS_MAX: usize = 16;
/// The pause after an error of accept(2), such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A port of this machine, or an address and a port.
pub fn address(text: &str) -> Result<SocketAddr> {
    address_of("--listen", text)
}

/// [`address`] as the value of this option.
pub fn address_of(option: &str, text: &str) -> Result<SocketAddr> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
    }
    let parsed = text.replace("localhost:", "127.0.0.1:").parse();
    parsed.map_err(|_| Usage(format!("{option} {text}: neither a port nor ADDRESS:PORT")).into())
}

/// Serves until a signal ends the process. Without `dirs` each reply covers all trusted mounts at
/// that time.
pub fn run(address: SocketAddr, dirs: Vec<PathBuf>) -> Result<ExitCode> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    let address = listener.local_addr().context("find the address listened on")?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "{address} can be reached from other machines: every machine that reaches it sees the counters"
        );
    }
    println!("http://{address}/metrics");
    notify::ready();
    let (dirs, active) = (Arc::new(dirs), Arc::new(AtomicUsize::new(0)));
    let asked = Asked::default();
    for connection in listener.incoming() {
        let connection = match connection {
            Ok(connection) => connection,
            Err(e) => {
                tracing::warn!("no connection accepted: {e}");
                SystemClock::default().sleep(PAUSE);
                continue;
            }
        };
        let Some(turn) = Turn::take(&active) else { continue };
        let (dirs, asked) = (dirs.clone(), asked.clone());
        let serve = move || {
            let _turn = turn;
            // A client that has disconnected is not an error.
            if let Err(e) = answer(connection, &dirs, &asked) {
                tracing::debug!("request not answered: {e}");
            }
        };
        if let Err(e) = kedge_base::spawn_named("scrape", serve) {
            tracing::warn!("a request was dropped: {e}");
        }
    }
    unreachable!("incoming connections have no end")
}

/// The permit for one of [`CONNECTIONS_MAX`] connections.
struct Turn(Arc<AtomicUsize>);

impl Turn {
    fn take(active: &Arc<AtomicUsize>) -> Option<Turn> {
        // Only the accepting thread takes permits, so the check and the increment need not be
        // atomic.
        if active.load(Ordering::Relaxed) == CONNECTIONS_MAX {
            return None;
        }
        active.fetch_add(1, Ordering::Relaxed);
        Some(Turn(active.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(mut connection: TcpStream, dirs: &[PathBuf], asked: &Asked) -> std::io::Result<()> {
    let clock = SystemClock::default();
    let head = read_head(&mut connection, &clock)?;
    let (status, body) = match request(&head) {
        Request::Metrics => ("200 OK", metrics(dirs, asked)),
        Request::Other(status) => (status, format!("{status}; the counters are at /metrics\n")),
    };
    let shown = if head.starts_with(b"HEAD ") { "" } else { &body };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{shown}",
        body.len()
    );
    connection.set_write_timeout(Some(PATIENCE))?;
    connection.write_all(text.as_bytes())
}

/// Reads up to the empty line, or [`REQUEST_BYTES_MAX`] bytes.
fn read_head(connection: &mut TcpStream, clock: &SystemClock) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let begun = clock.monotonic();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < REQUEST_BYTES_MAX {
        let left = PATIENCE.saturating_sub(clock.since(begun));
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        connection.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match connection.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&part[..n]),
        }
    }
    Ok(head)
}

#[derive(PartialEq, Eq, Debug)]
enum Request {
    Metrics,
    /// Any other request, with the status line of its reply.
    Other(&'static str),
}

fn request(head: &[u8]) -> Request {
    if !head.windows(4).any(|end| end == b"\r\n\r\n") {
        return Request::Other("431 Request Header Fields Too Large");
    }
    let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&b| b == b' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next());
    if !version.is_some_and(|v| v.starts_with(b"HTTP/1.")) {
        return Request::Other("400 Bad Request");
    }
    let path = target.split(|&b| b == b'?').next();
    match (method, path) {
        (Some(b"GET" | b"HEAD"), Some(b"/metrics")) => Request::Metrics,
        (Some(b"GET" | b"HEAD"), _) => Request::Other("404 Not Found"),
        _ => Request::Other("405 Method Not Allowed"),
    }
}

/// The mounts that are being queried, each by one thread whose result all connections share.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<HashMap<PathBuf, Arc<Slot>>>>);

/// Receives the result of a query; connections wait on it.
#[derive(Default)]
struct Slot {
    answered: Mutex<Option<Answered>>,
    changed: Condvar,
}

/// Marks a mount as being queried; when it is dropped, a new query may start.
struct Asking(Asked, PathBuf);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.0.lock().remove(&self.1);
    }
}

impl Asked {
    /// Starts a thread that queries a mount, unless such a thread runs already.
    fn start(&self, dir: &Path, ask: fn(&Path) -> Answered) -> Arc<Slot> {
        let slot = match self.0.lock().entry(dir.to_owned()) {
            Entry::Occupied(there) => return there.get().clone(),
            Entry::Vacant(free) => free.insert(Arc::default()).clone(),
        };
        let (asking, mine) = (Asking(self.clone(), dir.to_owned()), slot.clone());
        let thread = kedge_base::spawn_named("counters", move || {
            let answered = ask(&asking.1);
            // Unmark the mount before the result is published, so that a connection from here on
            // starts a new query.
            drop(asking);
            *mine.answered.lock() = Some(answered);
            mine.changed.notify_all();
        });
        if let Err(e) = thread {
            tracing::warn!("{}: not asked: {e}", dir.display());
        }
        slot
    }
}

impl Slot {
    fn wait(&self, patience: Duration) -> Option<Answered> {
        let mut answered = self.answered.lock();
        self.changed.wait_while_for(&mut answered, |answered| answered.is_none(), patience);
        answered.clone()
    }
}

/// The counters of a mount, and the directory under which they are shown.
type Answered = (Value, String);

fn ask(dir: &Path) -> Answered {
    let mut tree = status::counters(dir).unwrap_or_else(|e| {
        tracing::warn!("{}: {e:#}", dir.display());
        json!({})
    });
    tree["up"] = json!(!tree["state"].is_null());
    let shown = mounts::resolve(dir).unwrap_or_else(|_| dir.to_owned());
    (tree, shown.to_string_lossy().into_owned())
}

/// The counters of all mounts. A mount that cannot be queried is shown as down.
fn metrics(dirs: &[PathBuf], asked: &Asked) -> String {
    let found: Vec<PathBuf>;
    let dirs = match dirs {
        [] => {
            found = mounts::own();
            &found
        }
        named => named,
    };
    report::prometheus(&gather(dirs, asked, ask))
}

fn gather(dirs: &[PathBuf], asked: &Asked, ask: fn(&Path) -> Answered) -> Vec<Answered> {
    let clock = SystemClock::default();
    let begun = clock.monotonic();
    let slots: Vec<_> = dirs.iter().map(|dir| (dir, asked.start(dir, ask))).collect();
    let wait = |(dir, slot): (&PathBuf, Arc<Slot>)| {
        slot.wait(MOUNT_PATIENCE.saturating_sub(clock.since(begun))).unwrap_or_else(|| {
            tracing::warn!("{} does not respond", dir.display());
            let shown = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
            (json!({ "up": false }), shown.to_string_lossy().into_owned())
        })
    };
    slots.into_iter().map(wait).collect()
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
