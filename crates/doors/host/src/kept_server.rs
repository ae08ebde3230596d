//! The process of a server, from the keeper's point of view.
//!
//! Until it serves, a server writes lines to its standard output: [`WAITS`], then `ready`, or
//! `failed` and the reason. Its standard input is a socket, over which both sides send lines:
//!
//! | line | from | meaning |
//! |---|---|---|
//! | [`SERVE`] | the keeper | the process is the mount's server from now on |
//! | [`SERVE_WITH_KEY`] | the keeper | the same; the key of the encrypted image follows, as bytes |
//! | [`LEAVE`] | the keeper | make everything durable and leave |
//! | [`LEFT`] | the server | the server uses neither the image nor the memory any more |
//! | [`REFUSED`] | the server | the server does not leave; the reason follows |
//! | [`CLOSED`] | the server | the mount ends, and the server has closed the image |
//! | [`RELEASED`] | the keeper | the keeper has closed the image too, and released its lock |
//!
//! Before [`SERVE`] a server neither reads the image nor changes the keeper's memory, so it may be
//! started while another one serves.

use crate::background::{self, STARTED};
use crate::key::ImageKey;
use crate::offer::Program;
use anyhow::{Context, Result, ensure};
use kedge_base::spawn_named;
use kedge_device::crypt::CRYPT_KEY;
use kedge_fuse::keep::{Area, sentinel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::Duration;
use zeroize::Zeroizing;

pub(crate) const WAITS: &str = "waits";
const SERVE: &str = "serve";
const SERVE_WITH_KEY: &str = "serve with key";
pub(crate) const LEAVE: &str = "leave";
pub(crate) const LEFT: &str = "left";
pub(crate) const REFUSED: &str = "refused ";
pub(crate) const CLOSED: &str = "closed";
pub(crate) const RELEASED: &str = "released";

/// The exit status of a server that has left.
pub(crate) const HANDED_OVER: u8 = 120;

/// The exit status of a server that did not serve for a reason that may pass, such as a lack of
/// space. An older keeper takes it for any failure.
pub(crate) const MAY_PASS: u8 = 121;

/// The longest line that is read at once, in bytes.
const LINE_MAX: u64 = 64 << 10;

/// The parameters with which servers of a mount are started.
pub(crate) struct Launch {
    pub image: PathBuf,
    pub dir: PathBuf,
    /// The part of a server's command line before the image.
    pub words: Vec<OsString>,
    /// Servers inherit the standard error of this process.
    pub keep_stderr: bool,
    /// The descriptors that servers inherit: the connection to the kernel and the keeper's memory.
    pub kept: (i32, i32),
}

/// How a server ended.
#[derive(Debug)]
pub(crate) enum End {
    Died {
        signal: i32,
    },
    Exited(ExitStatus),
    /// The server has left after a handover.
    Left,
    /// The server has reported why it does not serve.
    Refused {
        why: String,
        may_pass: bool,
    },
}

impl End {
    /// The reason for which a server ended before it served.
    pub(crate) fn of_start(&self) -> String {
        match self {
            End::Died { signal } => format!("it died of signal {signal} before it served"),
            End::Exited(status) => format!("it ended before it served: {status}"),
            End::Left => "it left before it served".to_owned(),
            End::Refused { why, .. } => why.clone(),
        }
    }
}

/// A process that serves, or waits until it may. Dropping this kills the process.
pub(crate) struct KeptServer {
    child: Child,
    pid: Pid,
    out: BufReader<ChildStdout>,
    socket: BufReader<UnixStream>,
    /// A pidfd, readable when the process has ended.
    process: OwnedFd,
    /// Readable when the process begins to end (`keep::sentinel`).
    sentinel: Option<OwnedFd>,
    /// The reason that the server has reported for not serving.
    refused: Option<String>,
    served: bool,
}

impl Drop for KeptServer {
    fn drop(&mut self) {
        let ended = match self.child.try_wait() {
            Ok(None) => self.child.kill().and_then(|()| self.child.wait()).map(drop),
            ended => ended.map(drop),
        };
        if let Err(e) = ended {
            tracing::warn!("a server that is not wanted is not ended: {e}");
        }
    }
}

impl KeptServer {
    /// Starts a server, which then waits for [`SERVE`].
    pub(crate) fn start(program: &Program, launch: &Launch) -> Result<KeptServer> {
        let (ours, theirs) = UnixStream::pair().context("make a socket for a server")?;
        let (connection, area) = launch.kept;
        let mut child = program
            .command()
            .args(["mount", "--foreground"])
            .arg(format!("--kept={connection},{area}"))
            .args(&launch.words)
            .arg("--")
            .args([&launch.image, &launch.dir])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(if launch.keep_stderr { Stdio::inherit() } else { Stdio::null() })
            .spawn()
            .context("start a server")?;
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            // Nothing watches the process, so it must not stay.
            child.kill().and_then(|()| child.wait()).map_or_else(|e| tracing::warn!("{e}"), drop);
        });
        let process = process.context("watch a server")?;
        let out = BufReader::new(child.stdout.take().expect("stdout was asked to be a pipe"));
        let socket = BufReader::new(ours);
        Ok(KeptServer { child, pid, out, socket, process, sentinel: None, refused: None, served: false })
    }

    /// Asks the server to serve. An error means that the server has ended, which its descriptor
    /// also shows.
    pub(crate) fn say_serve(&mut self, key: Option<&ImageKey>) {
        let Some(key) = key else { return self.say(SERVE) };
        let mut message = Zeroizing::new(Vec::with_capacity(SERVE_WITH_KEY.len() + 1 + CRYPT_KEY));
        message.extend_from_slice(SERVE_WITH_KEY.as_bytes());
        message.push(b'\n');
        message.extend_from_slice(key.bytes());
        if let Err(e) = self.socket.get_mut().write_all(&message) {
            tracing::debug!("a server does not get its key: {e}");
        }
    }

    /// Sends a line to the server. An error means that the server has ended, which its descriptor
    /// also shows.
    pub(crate) fn say(&mut self, line: &str) {
        if let Err(e) = self.socket.get_mut().write_all(format!("{line}\n").as_bytes()) {
            tracing::debug!("a server does not get '{line}': {e}");
        }
    }

    /// Waits until the server serves (`true`) or fails to (`false`). Kills the server if it sends
    /// nothing for `patience`.
    pub(crate) fn serves(&mut self, patience: Option<Duration>) -> Result<bool> {
        loop {
            if self.out.buffer().is_empty() && !is_ready_within(self.out.get_ref(), patience)? {
                self.kill()?;
            }
            let line = self.start_line()?;
            if line != WAITS {
                self.served = line == STARTED;
                return Ok(self.served);
            }
        }
    }

    /// Reads a line that the server writes during its start. Servers write whole lines. Returns an
    /// empty line at the end of the pipe. Kills a server that writes any other line, because it may
    /// neither serve nor end.
    pub(crate) fn start_line(&mut self) -> Result<String> {
        let line = read_line(&mut self.out).context("wait for a server")?;
        self.refused = background::reason(&line).map(str::to_owned);
        if self.refused.is_none() && !["", WAITS, STARTED].contains(&&*line) {
            tracing::warn!("a server is ended, because it writes '{}'", line.escape_debug());
            self.kill()?;
        }
        Ok(line)
    }

    /// Readable when [`KeptServer::start_line`] would not block, provided that it has read all
    /// earlier lines.
    pub(crate) fn starts(&self) -> BorrowedFd<'_> {
        self.out.get_ref().as_fd()
    }

    /// Reads a line that a serving server sends. Servers write whole lines. Returns an empty line
    /// at the end of the socket.
    pub(crate) fn line(&mut self) -> Result<String> {
        match read_line(&mut self.socket) {
            // The server has ended without reading all lines.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(String::new()),
            line => line.context("listen to a server"),
        }
    }

    /// Whether a line has been received that [`KeptServer::line`] has not returned.
    pub(crate) fn has_line(&self) -> bool {
        !self.socket.buffer().is_empty()
    }

    /// Readable when [`KeptServer::line`] would not block, provided that [`KeptServer::has_line`]
    /// is false.
    pub(crate) fn says(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }

    /// Opens the sentinel, which shows early that the serving process begins to end.
    pub(crate) fn expect_end(&mut self, area: &Area) {
        self.sentinel = sentinel::watch(area, self.pid).unwrap_or_else(|e| {
            tracing::debug!("the end of the server is not hastened: {e}");
            None
        });
    }

    /// Readable when the server begins to end, or has ended.
    pub(crate) fn ends(&self) -> BorrowedFd<'_> {
        self.sentinel.as_ref().unwrap_or(&self.process).as_fd()
    }

    /// Waits for a server that is ending.
    pub(crate) fn end(mut self) -> Result<End> {
        if let Some(sentinel) = &self.sentinel
            && let Err(e) = sentinel::hasten(sentinel, &self.process, self.pid)
        {
            tracing::debug!("the end of the server is not hastened: {e}");
        }
        let status = self.child.wait().context("wait for a server")?;
        Ok(match (status.signal(), self.refused.take()) {
            (_, Some(why)) => End::Refused { why, may_pass: status.code() == Some(MAY_PASS.into()) },
            (Some(signal), None) => End::Died { signal },
            (None, None) if self.served && status.code() == Some(HANDED_OVER.into()) => End::Left,
            (None, None) => End::Exited(status),
        })
    }

    /// Waits for the end of a server that has left, on a thread of its own.
    pub(crate) fn end_later(self) -> Result<End> {
        let wait = move || match self.end() {
            Ok(_) => {}
            Err(e) => tracing::warn!("a server that has left is not awaited: {e:#}"),
        };
        if let Err(e) = spawn_named("reaper", wait) {
            // Without the thread, the process was killed and awaited here. It uses nothing any
            // more.
            tracing::warn!("a server that has left is not awaited on a thread of its own: {e}");
        }
        Ok(End::Left)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("end a server")
    }
}

/// Waits, in a server, until the keeper asks it to serve. Returns the key of an encrypted image.
/// Reads byte by byte, so that no later bytes are consumed and no copy of the key stays in a
/// buffer.
pub(crate) fn await_serve(mut keeper: UnixStream) -> Result<Option<Zeroizing<[u8; CRYPT_KEY]>>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() <= SERVE_WITH_KEY.len() {
        let mut byte = [0];
        keeper.read_exact(&mut byte).context("wait for the keeper")?;
        line.push(byte[0]);
    }
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    if line == SERVE.as_bytes() {
        return Ok(None);
    }
    ensure!(line == SERVE_WITH_KEY.as_bytes(), "the keeper does not want this server");
    let mut key = Zeroizing::new([0; CRYPT_KEY]);
    keeper.read_exact(&mut *key).context("get the key from the keeper")?;
    Ok(Some(key))
}

/// Reads a line without its end, or up to `LINE_MAX` bytes of it. A line of a faulty program, of
/// any length and of any bytes, is no error.
fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut line)?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

/// Whether a descriptor becomes readable, or reaches its end, within `patience`.
fn is_ready_within(fd: &impl AsFd, patience: Option<Duration>) -> Result<bool> {
    let limit = patience.map(Timespec::try_from).transpose()?;
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], limit.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("wait for a server"),
        }
    }
}
