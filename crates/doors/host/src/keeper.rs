//! The keeper: the process that starts the server of a mount, and another one when it dies.
//!
//! It holds what must outlive a server: the connection to the kernel, the lock on the image, and
//! the memory in which a server notes what the next one needs ([`kedge_fuse::keep`]). It reads no
//! request and writes no image, so what kills a server does not kill it. If it dies itself, its
//! server dies with it (PR_SET_PDEATHSIG), and the mount is as dead as any whose server died.
//!
//! A server gets both descriptors by inheritance: the keeper is the only process of the two that
//! starts programs, and they are servers, or fusermount3, which ends at once.

use crate::background::{self, STARTED};
use crate::engine;
use crate::handover::{HANDED_OVER, Handovers, Program};
use crate::image;
use crate::options::MountWords;
use crate::os::{self, TerminationSignals};
use crate::serve::{Mount, in_foreground_kept, unmount_on_signal};
use crate::usage::Usage;
use anyhow::{Context, Result, anyhow, bail};
use kedge_device::Device;
use kedge_fuse::Bound;
use kedge_fuse::keep::{Area, Life, sentinel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Servers that may die one after another before they serve.
const FAILED_STARTS_MAX: u32 = 5;
/// How long a program may take to serve that takes a mount over. After a handover there is little
/// to recover.
const PATIENCE: Duration = Duration::from_secs(30);
/// The first Linux that sends requests again.
const LINUX: (u32, u32) = (6, 9);

/// Refuses a mount for which there can be no keeper.
pub fn check(image: &Path, words: &MountWords, encrypted: bool) -> Result<()> {
    let refused = |why: &str| Err(Usage(format!("mount option keeper: {why}")).into());
    let location = image::locate(image)?;
    if location.is_uri() {
        return refused("the image must be a file or a block device as a whole");
    }
    if encrypted {
        return refused("a new server could not get the key of an encrypted image");
    }
    for (set, word) in [
        (words.tree.is_some(), "tree"),
        (words.read_only, "ro"),
        (words.volatile, "volatile"),
        (words.writeback_cache == Some(true), "writeback_cache"),
    ] {
        if set {
            return refused(&format!("it cannot be combined with {word}"));
        }
    }
    let immutable = |sb: kedge_format::superblock::Superblock| sb.geometry.has_immutable();
    if image.exists() && image::Image::open(image)?.superblock().is_ok_and(immutable) {
        return refused(
            "the image may hold immutable files, for which the server has to know each open file",
        );
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < LINUX {
        return refused(&format!("it needs Linux {}.{}, and this is {release}", LINUX.0, LINUX.1));
    }
    Ok(())
}

/// Holds what outlives a server.
struct Keeper {
    connection: OwnedFd,
    area: Area,
    handovers: Arc<Handovers>,
    /// Its name is removed with it. `None` if there is no place for it.
    _socket: Option<Bound>,
    /// Holds the lock on the image.
    _image: Arc<dyn Device>,
}

/// Mounts the image, and keeps a server for it until the mount has ended. `words` are those of the
/// server's command line before its image. `live` is called when the first server serves.
/// `keep_stderr` gives servers the standard error of this process.
pub fn run(
    mount: &Mount<'_>,
    words: &[OsString],
    keep_stderr: bool,
    live: impl FnOnce() -> Result<()>,
) -> Result<ExitCode> {
    let signals = TerminationSignals::block().context("block signals")?;
    let image = engine::open_locked(mount.image)?;
    let area = Area::make().context("get memory for what outlives a server")?;
    let options = engine::fuse_options(mount.words);
    let (connection, point) = kedge_fuse::make_for_keeper(mount.image, mount.dir, &options)?;
    if let Some(weaker) = engine::plain_mount_notice(&point) {
        eprintln!("kedge: warning: {weaker}");
    }
    let handovers = Arc::new(Handovers::default());
    let socket = handovers.listen(point.device.as_deref(), mount.image, &area);
    let socket = socket.inspect_err(|e| tracing::warn!("the server cannot be replaced: {e:#}")).ok();
    let keeper = Keeper { connection, area, handovers, _socket: socket, _image: image };
    for fd in [keeper.connection.as_fd(), keeper.area.fd()] {
        fcntl_setfd(fd, FdFlags::empty()).context("let servers inherit the connection")?;
    }
    let ended = keeper.keep(mount, words, keep_stderr, live, || {
        let point = point.clone();
        // The thread is detached: it waits forever and ends with the process.
        kedge_base::spawn_named("signals", move || unmount_on_signal(&signals, &point)).map(drop)
    });
    if ended.is_err() && kedge_fuse::mount_at(mount.dir).is_some() {
        // Without a server no request on the mount returns. Dropping the keeper closes the
        // connection, so that the requests fail and the unmount does not wait.
        drop(keeper);
        if let Err(e) = kedge_fuse::unmount(mount.dir, true) {
            tracing::error!("{e}");
        }
    }
    ended
}

/// What became of a server.
enum End {
    /// It was killed, after it had served or before.
    Died {
        signal: i32,
        served: bool,
    },
    Exited(ExitStatus),
    /// It has left its place for another program.
    Left,
    /// It says why it does not serve.
    Refused(String),
}

impl End {
    /// Why a server ended that has not served.
    fn of_start(&self, served: bool) -> Option<String> {
        match self {
            _ if served => None,
            End::Died { signal, .. } => Some(format!("it died of signal {signal} before it served")),
            End::Exited(status) => Some(format!("it ended before it served: {status}")),
            End::Left => None,
            End::Refused(why) => Some(why.clone()),
        }
    }
}

impl Keeper {
    fn keep(
        &self,
        mount: &Mount<'_>,
        words: &[OsString],
        keep_stderr: bool,
        live: impl FnOnce() -> Result<()>,
        serves: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<ExitCode> {
        let mut first = Some((live, serves));
        let mut failed_starts = 0;
        let mut program = Program::own();
        // The program that served before, until the new one serves.
        let mut before: Option<Program> = None;
        loop {
            let mut has_served = false;
            let is_new = before.is_some();
            let mut begun = |server: UnixStream| -> Result<()> {
                if let Some((live, serves)) = first.take() {
                    serves().context("start a thread")?;
                    live()?;
                }
                has_served = true;
                self.handovers.serves(server, &program, is_new);
                Ok(())
            };
            let patience = is_new.then_some(PATIENCE);
            let end = self.one_server((&program, patience), mount, words, keep_stderr, &mut begun)?;
            let next = self.handovers.ended(matches!(end, End::Left));
            if let (Some(old), Some(why)) = (before.take(), end.of_start(has_served)) {
                tracing::error!("the new program does not serve: {why}");
                if let End::Died { signal, .. } = end {
                    self.area.note_death(signal);
                }
                program = old;
                self.handovers.failed(&why);
                continue;
            }
            match end {
                End::Left => {
                    before = next.map(|next| std::mem::replace(&mut program, next));
                }
                End::Exited(status) if status.success() => return Ok(ExitCode::SUCCESS),
                End::Exited(status) => bail!("the server of {} ended: {status}", mount.dir.display()),
                End::Refused(why) => return Err(anyhow!(why)),
                End::Died { signal, served } => {
                    failed_starts = if served { 0 } else { failed_starts + 1 };
                    let deaths = self.area.note_death(signal);
                    let name = Signal::from_named_raw(signal).map(|s| format!("{s:?}")).unwrap_or_default();
                    tracing::warn!(deaths = deaths.deaths, "the server died of signal {signal} {name}");
                    if first.is_some() {
                        bail!("the server died of signal {signal} before the mount was live");
                    }
                    if failed_starts >= FAILED_STARTS_MAX {
                        bail!("{failed_starts} servers died one after another before they served");
                    }
                }
            }
        }
    }

    /// Starts a server and waits for its end.
    fn one_server(
        &self,
        (program, patience): (&Program, Option<Duration>),
        mount: &Mount<'_>,
        words: &[OsString],
        keep_stderr: bool,
        begun: &mut dyn FnMut(UnixStream) -> Result<()>,
    ) -> Result<End> {
        let (connection, area) = (self.connection.as_raw_fd(), self.area.fd().as_raw_fd());
        sentinel::expect(&self.area);
        let (ours, theirs) = UnixStream::pair().context("make a socket for a server")?;
        let started = program
            .command()
            .args(["mount", "--foreground"])
            .arg(format!("--kept={connection},{area}"))
            .args(words)
            .arg("--")
            .args([mount.image, mount.dir])
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(if keep_stderr { Stdio::inherit() } else { Stdio::null() })
            .spawn();
        let mut server = match started {
            Ok(server) => server,
            Err(e) => return Ok(End::Refused(format!("start a server: {e}"))),
        };
        let mut line = String::new();
        if let Some(pipe) = server.stdout.take() {
            if !is_ready_within(&pipe, patience)? {
                server.kill().context("end a server that does not serve")?;
            }
            BufReader::new(pipe).read_line(&mut line).context("wait for a server")?;
        }
        let served = line.trim_end() == STARTED;
        let live = if served { begun(ours) } else { Ok(()) };
        if live.is_err() {
            server.kill().context("end a server whose mount is not wanted any more")?;
        }
        // Without it the end takes longer on a busy machine.
        if let Err(e) = sentinel::hasten(&self.area, Pid::from_child(&server)) {
            tracing::debug!("the end of the server is not hastened: {e}");
        }
        let status = server.wait().context("wait for a server")?;
        live?;
        Ok(match (status.signal(), background::reason(&line)) {
            (_, Some(why)) => End::Refused(why.to_owned()),
            (Some(signal), None) => End::Died { signal, served },
            (None, None) if served && status.code() == Some(HANDED_OVER.into()) => End::Left,
            (None, None) => End::Exited(status),
        })
    }
}

/// Whether a pipe can be read, or has ended, within this time.
fn is_ready_within(pipe: &impl AsFd, patience: Option<Duration>) -> Result<bool> {
    let limit = patience.map(Timespec::try_from).transpose()?;
    loop {
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], limit.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("wait for a server"),
        }
    }
}

/// The descriptors of `--kept`: the connection to the kernel and the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFds {
    connection: i32,
    area: i32,
}

/// Parses the value of `--kept`.
pub fn parse_fds(text: &str) -> Result<KeptFds, String> {
    let wrong = || "two numbers of descriptors, which a keeper passes to its server".to_owned();
    let (connection, area) = text.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.parse().ok().filter(|fd| *fd > 2).ok_or_else(wrong);
    Ok(KeptFds { connection: number(connection)?, area: number(area)? })
}

/// Serves a mount for the keeper that started this process.
pub fn serve(mount: &Mount<'_>, fds: KeptFds, keep_stderr: bool) -> Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("die with the keeper")?;
    if rustix::process::getppid().is_none_or(|parent| parent.is_init()) {
        bail!("--kept is for a keeper, which has ended");
    }
    let [connection, area] = [fds.connection, fds.area].map(os::inherited);
    let (connection, area) = (connection.context("the connection")?, area.context("the memory")?);
    background::run(keep_stderr, |live| {
        let life = Area::inherited(area).map(Life::begin).context("go on with the keeper's memory")?;
        in_foreground_kept(mount, connection, life, live).map(|()| ExitCode::SUCCESS)
    })
}

/// The words of a server's command line that repeat those of its keeper.
pub fn words_of(options: &str, more: &[(&str, Option<&OsStr>)]) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if !options.is_empty() {
        words.extend(["-o".into(), options.into()]);
    }
    for (name, value) in more {
        if let Some(value) = value {
            words.push(name.into());
            if !value.is_empty() {
                words.push(value.into());
            }
        }
    }
    words
}
