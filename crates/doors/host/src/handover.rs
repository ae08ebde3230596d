//! Replaces the server of a mount by another program, without a crash: `kedge upgrade-server`.
//!
//! 1. The command connects to the socket of the mount's keeper and names its own program.
//! 2. The keeper opens that file with its own rights, and runs it once to find out what it can
//!    serve ([`Offer`]). If that does not fit the mount, nothing has changed.
//! 3. The keeper starts the new program, which prepares everything that does not need the image,
//!    and waits (`await_turn`). If it ends instead, nothing has changed.
//! 4. The keeper asks the old server to leave. The old server makes everything durable while it
//!    still serves, stops receiving requests, makes the rest durable, releases the image (`leave`),
//!    and reports that.
//! 5. The keeper asks the new program to serve. The old process ends in the meantime. If the new
//!    program does not serve, the keeper starts the old program again.
//!
//! The program of the keeper itself is not replaced.
//!
//! # Access
//! The socket is in a directory that only the keeper's user can enter, and the keeper asks the
//! kernel for the user of the peer, which must be the keeper's user or root. It opens and runs the
//! named program with the rights of its own user. So neither that user nor root of a container
//! gains rights.
//!
//! # Bounds
//! The keeper serves one request at a time, and each step has a time limit.

use crate::image::Image;
use crate::kept_server::{CLOSED, HANDED_OVER, LEAVE, LEFT, REFUSED, RELEASED, WAITS, await_serve};
use crate::key::ImageKey;
use crate::offer::{Offer, Program};
use crate::os;
use crate::text::one_line;
use crate::{background, key};
use anyhow::{Context, Result, anyhow, bail, ensure};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_device::{Device, WatchedDevice};
use kedge_fuse::keep::{Area, Leave};
use kedge_fuse::{Bound, MountEntry, MountedSession, PrivateDir};
use kedgefs::FileSystem;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::time::Duration;

const REQUEST_MAX: u64 = 16 << 10;
const REQUEST_WAIT: Duration = Duration::from_secs(5);
/// Pause after a request that could not be served.
const PAUSE: Duration = Duration::from_millis(5);
const NOTED_PAUSE: Duration = Duration::from_millis(1);
/// Time limit for the new server to note its pause.
const NOTE_WAIT: Duration = Duration::from_secs(60);
/// Upper bound for the time of a request: the keeper waits for two programs and for a sync.
const REQUEST_MAX_WAIT: Duration = Duration::from_secs(300);
/// If a checkpoint took longer than this, the server writes another one while it still serves:
/// fewer changes are then left for the pause.
const SHORT: Duration = Duration::from_millis(10);
const CHECKPOINTS_MAX: usize = 3;
/// How long a server waits at the end of the mount for the keeper to release the image.
const RELEASE_WAIT: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
struct Request {
    program: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Reply {
    error: Option<String>,
    done: Option<Done>,
}

/// The result of a handover.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Done {
    pub from: String,
    pub to: String,
    /// The time from the last request that the old server received to the first that the new one
    /// could receive.
    pub pause: Duration,
}

fn socket_name(device: &str) -> String {
    format!("keeper-{device}")
}

/// Handovers on the keeper's side. One thread receives requests; the thread that watches the server
/// carries them out, one after another.
pub(crate) struct Handovers {
    state: Mutex<State>,
    changed: Condvar,
    /// An eventfd that is readable while a request is pending.
    bell: OwnedFd,
    /// The key of an encrypted image, which each server gets.
    key: Option<ImageKey>,
}

#[derive(Default)]
struct State {
    /// The version of the present server.
    version: String,
    /// The program of the pending request.
    wanted: Option<Program>,
    /// The result of the last request: the version that was replaced, or the error.
    outcome: Option<Result<String, String>>,
}

impl Handovers {
    pub(crate) fn new(key: Option<ImageKey>) -> io::Result<Handovers> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Handovers { state: Mutex::default(), changed: Condvar::new(), bell, key })
    }

    /// The key of an encrypted image, which each server gets.
    pub(crate) fn key(&self) -> Option<&ImageKey> {
        self.key.as_ref()
    }

    /// Listens for requests as long as the returned socket lives.
    pub(crate) fn listen(
        self: &Arc<Handovers>,
        device: Option<&str>,
        image: &Path,
        area: &Area,
    ) -> Result<Bound> {
        let name = socket_name(device.context("the mount that was just made is gone")?);
        let bound = PrivateDir::make()?.listen(&name)?;
        let listener = bound.listener().try_clone()?;
        let area = Area::inherited(area.fd().try_clone_to_owned()?)?;
        let (mine, image) = (self.clone(), image.to_owned());
        // The thread is detached: it waits forever and ends with the process.
        spawn_named("upgrades", move || {
            for stream in listener.incoming() {
                let answered = stream.and_then(|stream| mine.answer(stream, &image, &area));
                if let Err(e) = answered {
                    tracing::warn!("a request for a handover was not answered: {e}");
                    SystemClock::default().sleep(PAUSE);
                }
            }
        })
        .context("start a thread")?;
        Ok(bound)
    }

    fn answer(&self, mut stream: UnixStream, image: &Path, area: &Area) -> io::Result<()> {
        stream.set_read_timeout(Some(REQUEST_WAIT))?;
        stream.set_write_timeout(Some(REQUEST_WAIT))?;
        let done = self.serve(&stream, image, area);
        if let Err(e) = &done {
            tracing::warn!("the server is not replaced: {e:#}");
        }
        let error = done.as_ref().err().map(|e| one_line(&format!("{e:#}")));
        let reply = serde_json::to_string(&Reply { error, done: done.ok() })? + "\n";
        stream.write_all(reply.as_bytes())
    }

    fn serve(&self, stream: &UnixStream, image: &Path, area: &Area) -> Result<Done> {
        let peer = socket_peercred(stream).context("find the user that asks")?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            bail!("only root and the owner of the mount may replace its server");
        }
        let mut line = String::new();
        BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line).context("read the request")?;
        let request: Request = serde_json::from_str(&line).context("read the request")?;
        let (program, offer) = Program::open(&request.program)?;
        let readable = self.key.as_ref().map_or_else(|| Image::open(image), |key| key.image(image))?;
        let special = match (self.key.is_some(), area.frozen().is_some(), area.has_options()) {
            (true, ..) => Some("an encrypted image"),
            (_, true, _) => Some("a frozen mount"),
            (.., true) => Some("a mount whose options a remount has changed"),
            _ => None,
        };
        offer.check(&Offer::own(), &readable.superblock()?.geometry, special)?;
        let to = program.version().to_owned();
        let before = (area.handovers(), area.deaths().deaths);
        let from = self.replace(program)?;
        let pause = noted_pause(area, before)?;
        tracing::info!(pause_ms = pause.as_millis() as u64, "{} serves now", request.program.display());
        Ok(Done { from, to, pause })
    }

    /// Waits until the program has replaced the server. Returns the version of the replaced one.
    fn replace(&self, program: Program) -> Result<String> {
        let mut state = self.state.lock();
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).context("wake the keeper")?;
        (state.wanted, state.outcome) = (Some(program), None);
        // No time limit is needed here: the watching thread ends each request, and limits each
        // step.
        self.changed.wait_while(&mut state, |state| state.outcome.is_none());
        let outcome = state.outcome.take().expect("waited for");
        outcome.map_err(|why| anyhow!(why))
    }

    /// A descriptor that is readable while a request is pending.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes the pending request's program. The caller must report the outcome.
    pub(crate) fn wanted(&self) -> Option<Program> {
        let mut count = [0; 8];
        // An error means that no request is pending.
        let _rung = rustix::io::read(&self.bell, &mut count);
        self.state.lock().wanted.take()
    }

    /// Reports that the pending request has failed.
    pub(crate) fn fail(&self, why: String) {
        self.state.lock().outcome = Some(Err(why));
        self.changed.notify_all();
    }

    /// Notes that a server serves. With `is_new` it is the first server of a requested program, so
    /// the pending request has succeeded.
    pub(crate) fn serves(&self, version: &str, is_new: bool) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.version, version.to_owned());
        if is_new {
            state.outcome = Some(Ok(before));
            self.changed.notify_all();
        }
    }
}

/// Returns the pause of a handover. The new server notes it after it has redone the changes that it
/// has to redo. `before`: the numbers of handovers and of deaths before this handover.
fn noted_pause(area: &Area, before: (u64, u64)) -> Result<Duration> {
    let clock = SystemClock::default();
    let begun = clock.monotonic();
    while area.handovers() == before.0 {
        ensure!(
            area.deaths().deaths == before.1,
            "a server died while the mount was taken over; another one of the new program takes its place"
        );
        let late = clock.since(begun) > NOTE_WAIT;
        ensure!(!late, "the new server did not note its pause within {} seconds", NOTE_WAIT.as_secs());
        clock.sleep(NOTED_PAUSE);
    }
    Ok(area.last_handover())
}

/// Waits until the keeper asks this process to serve. Until then another process may be serving.
pub(crate) fn await_turn() -> Result<()> {
    background::report(WAITS).context("the keeper is gone")?;
    let keeper = rustix::stdio::stdin().try_clone_to_owned().context("use standard input")?;
    if let Some(key) = await_serve(UnixStream::from(keeper))? {
        key::take(key);
    }
    Ok(())
}

/// In a server with a keeper, starts the thread that reads the keeper's lines: the request to
/// leave, and at the end of the mount that the keeper has released the image, which the thread
/// passes on to `released`.
pub(crate) fn obey(fs: &FileSystem, session: &MountedSession, released: Sender<()>) -> Result<()> {
    let Some(handover) = session.handover() else { return Ok(()) };
    let fs = fs.clone();
    let keeper = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned().context("use standard input")?);
    // The thread is detached: it waits forever and ends with the process.
    spawn_named("handover", move || {
        for line in BufReader::new(&keeper).lines() {
            let why = match line {
                Ok(line) if line == LEAVE => match durable(&fs) {
                    Ok(()) => handover.begin(),
                    Err(e) => e,
                },
                Ok(line) if line == RELEASED => {
                    // An error means that the server does not wait any more.
                    let _waits = released.send(());
                    continue;
                }
                Ok(line) => anyhow!("the server does not know what '{line}' asks"),
                // The keeper has ended, so there will be no handover.
                Err(e) => return tracing::debug!("no keeper asks for handovers: {e}"),
            };
            let reply = format!("{REFUSED}{}\n", one_line(&format!("{why:#}")));
            if let Err(e) = (&keeper).write_all(reply.as_bytes()) {
                tracing::warn!("the keeper does not see that there is no handover: {e}");
            }
        }
    })
    .context("start a thread")?;
    Ok(())
}

/// Reports to the keeper that the server has closed the image at the end of the mount, and waits
/// until the keeper has released it.
pub(crate) fn report_closed(released: &Receiver<()>) {
    if let Err(e) = rustix::io::write(rustix::stdio::stdin(), format!("{CLOSED}\n").as_bytes()) {
        return tracing::warn!("the keeper does not see that the image is closed: {e}");
    }
    if released.recv_timeout(RELEASE_WAIT).is_err() {
        tracing::warn!("the keeper has not released the image yet");
    }
}

/// How a server leaves: it releases the image, reports that, and ends. Its threads may still try to
/// write until the process ends, so the device first stops accepting requests.
pub(crate) fn leave(device: Weak<WatchedDevice>) -> Leave {
    let give_up = move || {
        if let Some(device) = device.upgrade() {
            give_up_device(&device);
        }
        let said = rustix::io::write(rustix::stdio::stdin(), format!("{LEFT}\n").as_bytes());
        if let Err(e) = said {
            tracing::warn!("the keeper does not see that the server has left: {e}");
        }
    };
    Leave { give_up: Box::new(give_up), exit: || os::leave(HANDED_OVER) }
}

/// Ends the use of the device, and closes it. The process has its memory to give back before it
/// ends, and the mount may have ended by then.
fn give_up_device(device: &WatchedDevice) {
    device.retire();
    if let Err(e) = device.release() {
        tracing::warn!("the device stays open until this process ends: {e}");
    }
}

/// Writes checkpoints while requests are still served. The log is short then, and so is the pause.
fn durable(fs: &FileSystem) -> Result<()> {
    let clock = SystemClock::default();
    for _ in 0..CHECKPOINTS_MAX {
        let begun = clock.monotonic();
        fs.sync().context("sync before a handover")?;
        fs.checkpoint().context("write a checkpoint before a handover")?;
        if clock.since(begun) < SHORT {
            break;
        }
    }
    Ok(())
}

/// Whether a keeper of this mount listens for requests.
pub fn is_kept(mount: &MountEntry) -> bool {
    let name = socket_name(&mount.device);
    PrivateDir::all().any(|dir| dir.has(&name))
}

/// Asks the keeper of a mount to make `program` the mount's server.
pub fn ask(mount: &MountEntry, program: &Path) -> Result<Done> {
    const NONE: &str =
        "no keeper of this user listens there: the mount has none (-o keeper), or another user's";
    let name = socket_name(&mount.device);
    let dir = PrivateDir::all().find(|dir| dir.has(&name)).context(NONE)?;
    let mut stream = dir.connect(&name, REQUEST_WAIT).map_err(|e| match e.kind() {
        // A stale socket: its keeper was killed, and the device number belongs to another mount
        // now.
        io::ErrorKind::ConnectionRefused => anyhow!(NONE),
        _ => anyhow::Error::new(e).context("connect to the keeper"),
    })?;
    // The keeper may serve another request first.
    let patience = 2 * REQUEST_MAX_WAIT;
    stream.set_read_timeout(Some(patience)).context("wait for the keeper")?;
    let request = Request { program: program.to_owned() };
    let line = serde_json::to_string(&request).context("name this program")? + "\n";
    stream.write_all(line.as_bytes()).context("ask the keeper")?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).context("wait for the keeper")?;
    ensure!(!answer.is_empty(), "the keeper has ended");
    let reply: Reply = serde_json::from_str(&answer).context("read the keeper's reply")?;
    match (reply.error, reply.done) {
        (Some(why), _) => bail!("{why}"),
        (None, Some(done)) => Ok(done),
        (None, None) => bail!("the keeper's reply is empty"),
    }
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
