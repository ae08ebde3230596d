//! Another program takes a mount over without a death: `kedge upgrade-server`.
//!
//! 1. The command connects to the socket of the mount's keeper and names its own program.
//! 2. The keeper opens that file with its own rights, and runs it once to learn what it can serve
//!    ([`Offer`]). If that does not fit the mount, nothing has happened.
//! 3. The keeper asks the server, over the socket that is the server's standard input, to leave.
//!    The server makes everything durable while it serves, and then leaves
//!    ([`kedge_fuse::keep::Handover`]) with the status `HANDED_OVER`.
//! 4. The keeper starts the new program. If that does not serve, the keeper starts the old one.
//!
//! The keeper itself stays the program that it was.
//!
//! # Which users may ask
//! The socket lies in a directory that only the user of the keeper can enter, and the keeper asks
//! the kernel which user has connected: this one, or root. It opens and runs what is named with the
//! rights of its own user, so that root of a container and a user get nothing that they had not.
//!
//! # Bounds
//! One request at a time, each step with a time limit. What the named program prints is written to
//! memory of its own and read to at most `OFFER_MAX` bytes.

use crate::image::Image;
use crate::os;
use crate::text::one_line;
use anyhow::{Context, Result, anyhow, bail, ensure};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_format::superblock::{Geometry, INCOMPAT_KNOWN, RO_COMPAT_KNOWN};
use kedge_fuse::keep::Area;
use kedge_fuse::keep::area::VERSION as MEMORY;
use kedge_fuse::{Bound, MountEntry, MountedSession, PrivateDir};
use kedgefs::FileSystem;
use parking_lot::{Condvar, Mutex};
use rustix::fd::AsRawFd;
use rustix::fs::MemfdFlags;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The exit status of a server that has left its place.
pub(crate) const HANDED_OVER: u8 = 120;
/// How keeper and server talk: `--kept`, standard input and output, and the status above.
const PROTOCOL: u32 = 1;
/// The hidden subcommand that prints the [`Offer`] of a program.
pub const OFFER: &str = "server-offer";
/// What the keeper writes to its server.
const LEAVE: &str = "leave";
const REFUSED: &str = "refused ";

const REQUEST_MAX: u64 = 16 << 10;
const OFFER_MAX: u64 = 4096;
const REQUEST_WAIT: Duration = Duration::from_secs(5);
const OFFER_WAIT: Duration = Duration::from_secs(10);
const OFFER_PAUSE: Duration = Duration::from_millis(5);
const NOTED_PAUSE: Duration = Duration::from_millis(1);
/// For the old server, which first makes everything durable.
const LEAVE_WAIT: Duration = Duration::from_secs(60);
/// For the new server, and for the old one again if that does not serve.
const SERVE_WAIT: Duration = Duration::from_secs(60);

/// What a program can serve.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Offer {
    version: String,
    /// [`PROTOCOL`].
    protocol: u32,
    /// The layout of the keeper's memory.
    memory: u32,
    incompat: u64,
    ro_compat: u64,
}

impl Offer {
    /// That of this program.
    pub fn own() -> Offer {
        Offer {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            memory: MEMORY,
            incompat: INCOMPAT_KNOWN,
            ro_compat: RO_COMPAT_KNOWN,
        }
    }

    /// Refuses a program that cannot serve this image for a keeper of version `own`.
    fn check(&self, own: &Offer, image: &Geometry) -> Result<()> {
        let same = [
            ("keepers of protocol", self.protocol, own.protocol),
            ("a keeper's memory of layout", self.memory, own.memory),
        ];
        for (what, theirs, ours) in same {
            ensure!(
                theirs == ours,
                "version {} serves {what} {theirs}, and the keeper of this mount, version {}, has {ours}; an \
                 unmount and a mount are needed",
                self.version,
                own.version
            );
        }
        let unknown = [image.feature_incompat & !self.incompat, image.feature_ro_compat & !self.ro_compat];
        ensure!(
            unknown == [0, 0],
            "version {} does not know features of the image (incompat {:#x}, ro_compat {:#x})",
            self.version,
            unknown[0],
            unknown[1]
        );
        Ok(())
    }
}

/// A program that serves.
pub(crate) struct Program {
    /// `None`: that of this process.
    file: Option<File>,
    version: String,
}

impl Program {
    pub(crate) fn own() -> Program {
        Program { file: None, version: Offer::own().version }
    }

    /// Opens a program, and asks it what it can serve.
    fn open(path: &Path) -> Result<(Program, Offer)> {
        ensure!(path.is_absolute(), "{}: the path is not absolute", path.display());
        let named = || format!("open the program {}", path.display());
        // A pipe would wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = file.with_context(named)?;
        let meta = file.metadata().with_context(named)?;
        ensure!(meta.is_file(), "{} is no regular file", path.display());
        ensure!(meta.permissions().mode() & 0o111 != 0, "{} is not executable", path.display());
        let mut program = Program { file: Some(file), version: String::new() };
        let offer = program.offer().with_context(|| format!("ask {} what it can serve", path.display()))?;
        program.version.clone_from(&offer.version);
        Ok((program, offer))
    }

    /// The command of the program. The file that was opened is run, whatever its path names by now.
    pub(crate) fn command(&self) -> Command {
        let path = match &self.file {
            // It runs this binary even if its file has been replaced or deleted.
            None => PathBuf::from("/proc/self/exe"),
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
        };
        let mut command = Command::new(path);
        command.arg0("kedge");
        command
    }

    fn offer(&self) -> Result<Offer> {
        let said = File::from(rustix::fs::memfd_create("kedge-offer", MemfdFlags::CLOEXEC)?);
        let mut command = self.command();
        command.arg(OFFER).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(Stdio::null());
        let mut child = command.spawn().context("run it")?;
        let clock = SystemClock::default();
        let begun = clock.monotonic();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if clock.since(begun) > OFFER_WAIT => {
                    child.kill()?;
                    child.wait()?;
                    bail!("it does not end within {} seconds", OFFER_WAIT.as_secs());
                }
                None => clock.sleep(OFFER_PAUSE),
            }
        };
        ensure!(status.success(), "it is no kedge that can take a mount over ({status})");
        let len = said.metadata()?.len();
        ensure!(len <= OFFER_MAX, "it printed {len} bytes");
        let mut text = vec![0; len as usize];
        said.read_exact_at(&mut text, 0)?;
        serde_json::from_slice(&text).context("it is no kedge that can take a mount over")
    }
}

#[derive(Serialize, Deserialize)]
struct Request {
    program: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Reply {
    error: Option<String>,
    done: Option<Done>,
}

/// A mount that was taken over.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Done {
    pub from: String,
    pub to: String,
    /// From the last request that the old server received until the new one receives.
    pub pause: Duration,
}

fn socket_name(device: &str) -> String {
    format!("keeper-{device}")
}

/// The keeper's side of handovers.
#[derive(Default)]
pub(crate) struct Handovers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The socket of the server that serves.
    server: Option<UnixStream>,
    version: String,
    wanted: Option<Program>,
    /// The end of the handover that was asked for.
    outcome: Option<Result<(), String>>,
}

impl Handovers {
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
                    SystemClock::default().sleep(OFFER_PAUSE);
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
        let geometry = Image::open(image)?.superblock()?.geometry;
        offer.check(&Offer::own(), &geometry)?;
        let to = program.version.clone();
        let before = (area.handovers(), area.deaths().deaths);
        let from = self.replace(program)?;
        let pause = noted_pause(area, before)?;
        tracing::info!(pause_ms = pause.as_millis() as u64, "{} serves now", request.program.display());
        Ok(Done { from, to, pause })
    }

    /// Returns the version of the server that has left.
    fn replace(&self, program: Program) -> Result<String> {
        let mut state = self.state.lock();
        let server = state.server.as_ref().context("the mount has no server at this moment")?;
        let server = server.try_clone().context("ask the server to leave")?;
        let from = state.version.clone();
        (state.wanted, state.outcome) = (Some(program), None);
        drop(state);
        let said = ask_to_leave(&server);
        let mut state = self.state.lock();
        if let Err(e) = said {
            // It may leave later, and is then started again.
            state.wanted = None;
            return Err(e);
        }
        self.changed.wait_while_for(&mut state, |state| state.outcome.is_none(), SERVE_WAIT);
        match state.outcome.take() {
            Some(Ok(())) => Ok(from),
            Some(Err(why)) => Err(anyhow!(why)),
            None => bail!("no server serves after {} seconds", SERVE_WAIT.as_secs()),
        }
    }

    /// A server serves. `is_new`: it is the first one of a program.
    pub(crate) fn serves(&self, server: UnixStream, program: &Program, is_new: bool) {
        let mut state = self.state.lock();
        state.server = Some(server);
        state.version.clone_from(&program.version);
        if is_new {
            state.outcome = Some(Ok(()));
            self.changed.notify_all();
        }
    }

    /// Notes that the server has ended. Returns the program that takes its place, if the server
    /// ended for a handover (`has_left`) and not by a death.
    pub(crate) fn ended(&self, has_left: bool) -> Option<Program> {
        let mut state = self.state.lock();
        state.server = None;
        let wanted = state.wanted.take();
        if wanted.is_some() && !has_left {
            state.outcome = Some(Err("the server died, or the mount ended, before the handover".into()));
            self.changed.notify_all();
            return None;
        }
        wanted
    }

    /// The new program does not serve, and the old one is started.
    pub(crate) fn failed(&self, why: &str) {
        self.state.lock().outcome = Some(Err(format!("{why}; the old program serves again")));
        self.changed.notify_all();
    }
}

/// The new server says that it serves, and then makes again what it has to, and notes the pause.
/// `before`: the numbers of handovers and of deaths before.
fn noted_pause(area: &Area, before: (u64, u64)) -> Result<Duration> {
    let clock = SystemClock::default();
    let begun = clock.monotonic();
    while area.handovers() == before.0 {
        ensure!(
            area.deaths().deaths == before.1,
            "a server died while the mount was taken over; another one of the new program takes its place"
        );
        let late = clock.since(begun) > SERVE_WAIT;
        ensure!(!late, "the new server did not note its pause within {} seconds", SERVE_WAIT.as_secs());
        clock.sleep(NOTED_PAUSE);
    }
    Ok(area.last_handover())
}

/// Returns when the server has ended.
fn ask_to_leave(mut server: &UnixStream) -> Result<()> {
    server.set_read_timeout(Some(LEAVE_WAIT))?;
    server.write_all(format!("{LEAVE}\n").as_bytes()).context("ask the server to leave")?;
    let mut line = String::new();
    match BufReader::new(server).read_line(&mut line) {
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            bail!("the server does not leave within {} seconds", LEAVE_WAIT.as_secs())
        }
        // It may have left with bytes unread.
        Err(_) | Ok(0) => Ok(()),
        Ok(_) => bail!("{}", line.trim_end().strip_prefix(REFUSED).unwrap_or("the server refuses to leave")),
    }
}

/// Has the thread that waits for the keeper's request started in a server.
pub(crate) fn obey(fs: &FileSystem, session: &MountedSession) -> Result<()> {
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
                Ok(line) => anyhow!("the server does not know what '{line}' asks"),
                // Without a keeper there are no handovers.
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

/// Ends a server that has left its place.
pub(crate) fn leave() -> ! {
    os::leave(HANDED_OVER)
}

/// Makes the log short while requests are still served, so that the pause is short.
fn durable(fs: &FileSystem) -> Result<()> {
    fs.sync().context("sync before a handover")?;
    fs.checkpoint().context("write a checkpoint before a handover")
}

/// Whether a mount has a keeper that listens.
pub fn is_kept(mount: &MountEntry) -> bool {
    let name = socket_name(&mount.device);
    PrivateDir::all().any(|dir| dir.has(&name))
}

/// Asks the keeper of a mount to have this program serve it.
pub fn ask(mount: &MountEntry, program: &Path) -> Result<Done> {
    const NONE: &str =
        "no keeper of this user listens there: the mount has none (-o keeper), or another user's";
    let name = socket_name(&mount.device);
    let dir = PrivateDir::all().find(|dir| dir.has(&name)).context(NONE)?;
    let mut stream = dir.connect(&name, REQUEST_WAIT).map_err(|e| match e.kind() {
        // The socket of a keeper that was killed, at a mount whose device number was used again.
        io::ErrorKind::ConnectionRefused => anyhow!(NONE),
        _ => anyhow::Error::new(e).context("connect to the keeper"),
    })?;
    // Another request may be served first.
    let patience = 2 * (OFFER_WAIT + LEAVE_WAIT + SERVE_WAIT);
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
