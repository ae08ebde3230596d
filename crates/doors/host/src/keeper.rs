//! The keeper: the process that starts the server of a mount, and starts another when that one
//! dies.
//!
//! The keeper holds what must outlive a server: the connection to the kernel, the lock on the
//! image, the key of an encrypted image, and the memory in which a server notes what the next one
//! needs ([`kedge_fuse::keep`]). It neither reads requests nor writes the image, so a bug that
//! kills servers does not kill the keeper. If the keeper dies, its server dies with it
//! (PR_SET_PDEATHSIG), and the mount is dead as after the death of any server without a keeper.
//!
//! At the end of the mount the server closes the image, and the keeper then releases its lock,
//! before umount(2) returns. From then on another program may own the image, so no server is
//! started any more, however the last one ends.
//!
//! A server inherits both descriptors, which are not close-on-exec in the keeper. The keeper starts
//! no other programs except fusermount3, which ends at once.

use crate::background;
use crate::engine;
use crate::handover::{self, Handovers};
use crate::image;
use crate::kept_server::{CLOSED, End, KeptServer, LEAVE, LEFT, Launch, MAY_PASS, REFUSED, RELEASED, WAITS};
use crate::key::{self, ImageKey};
use crate::offer::Program;
use crate::options::MountWords;
use crate::os::{self, TerminationSignals};
use crate::serve::{Mount, in_foreground_kept, unmount_on_signal};
use crate::usage::Usage;
use crate::{stderr, syslog};
use anyhow::{Context, Result, bail, ensure};
use kedge_base::{Clock, SystemClock};
use kedge_device::Device;
use kedge_fuse::keep::{Area, Life, sentinel};
use kedge_fuse::{Bound, TransportKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;
use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Servers that may end in sequence, each before it serves, for a reason that does not pass.
const FAILED_STARTS_MAX: u32 = 5;
/// The pause before another server is started in place of one that has reported an error.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for a new program, from its start until it waits for its turn.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for the old server to leave. It first makes everything durable.
const LEAVE_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for the new server to serve. After a handover there is little to recover.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the system may lack a process or memory for the first server, and for a later one until
/// the attempts become rare.
const SHORTAGE_PATIENCE: Duration = Duration::from_secs(10);
const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);
const DIED: &str = "the server died, or the mount ended, before the handover";
/// The first version of Linux that can resend requests to a new server (FUSE_NOTIFY_RESEND).
const LINUX: (u32, u32) = (6, 9);

/// Refuses a mount that cannot have a keeper.
pub fn check(image: &Path, words: &MountWords) -> Result<()> {
    let refused = |why: &str| Err(Usage(format!("mount option keeper: {why}")).into());
    let location = image::locate(image)?;
    if location.is_uri() {
        return refused("the image must be a file or a block device as a whole");
    }
    for (set, word) in [
        (words.tree.is_some(), "tree"),
        (words.read_only, "ro"),
        (words.volatile, "volatile"),
        (words.writeback_cache == Some(true), "writeback_cache"),
        (words.transport == Some(TransportKind::IoUring), "transport=io_uring"),
    ] {
        if set {
            return refused(&format!("it cannot be combined with {word}"));
        }
    }
    let immutable = |sb: kedge_format::superblock::Superblock| sb.geometry.has_immutable();
    if image.exists() && key::image(image)?.superblock().is_ok_and(immutable) {
        return refused(
            "the image may hold immutable files, for which the server has to know each open file",
        );
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if is_too_old(&release) {
        return refused(&format!("it needs Linux {}.{}, and this is {release}", LINUX.0, LINUX.1));
    }
    Ok(())
}

fn is_too_old(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < LINUX
}

/// The state that outlives a server.
struct Keeper {
    connection: OwnedFd,
    area: Area,
    handovers: Arc<Handovers>,
    /// The socket for handovers; dropping it removes its name. `None` if it could not be made.
    _socket: Option<Bound>,
    /// Holds the lock on the image.
    image: Arc<dyn Device>,
    /// The locked image file. Servers open it through /proc, because its path may name another file
    /// later. `None` when the image is released.
    file: RefCell<Option<File>>,
}

/// Mounts the image, and keeps a server for it until the mount has ended. `words` precede the image
/// in the server's command line. `live` is called when the first server serves. With `keep_stderr`
/// servers inherit the standard error of this process.
pub fn run(
    mount: &Mount<'_>,
    words: &[OsString],
    keep_stderr: bool,
    live: impl FnOnce() -> Result<()>,
) -> Result<ExitCode> {
    let signals = TerminationSignals::block().context("block signals")?;
    let (image, file) = open_image(mount.image)?;
    let key = ImageKey::of(mount.image, &*image)?;
    key::forget();
    let area = Area::make().context("get memory for what outlives a server")?;
    let options = engine::fuse_options(mount.words);
    let handovers = Arc::new(Handovers::new(key).context("get a descriptor")?);
    let inherit =
        |fd: BorrowedFd<'_>| fcntl_setfd(fd, FdFlags::empty()).context("let servers inherit a descriptor");
    inherit(area.fd())?;
    inherit(file.as_fd())?;
    let (connection, point) = kedge_fuse::make_for_keeper(mount.image, mount.dir, &options)?;
    if let Err(e) = inherit(connection.as_fd()) {
        drop(connection);
        point.detach()?;
        return Err(e);
    }
    if let Some(weaker) = engine::plain_mount_notice(&point) {
        stderr::warn(weaker);
    }
    let socket = handovers.listen(point.device.as_deref(), &os::path_of(&file), &area);
    let socket = socket.inspect_err(|e| tracing::warn!("the server cannot be replaced: {e:#}")).ok();
    area.note_image(file.as_raw_fd());
    area.note_releases();
    area.note_mount(point.device.as_deref(), point.privileged);
    let file = RefCell::new(Some(file));
    let keeper = Keeper { connection, area, handovers, _socket: socket, image, file };
    let launch = Launch {
        image: mount.image.to_owned(),
        dir: mount.dir.to_owned(),
        words: words.to_vec(),
        keep_stderr,
        kept: (keeper.connection.as_raw_fd(), keeper.area.fd().as_raw_fd()),
    };
    let ended = keeper.keep(&launch, live, || {
        let point = point.clone();
        // The thread is detached: it waits forever and ends with the process.
        kedge_base::spawn_named("signals", move || unmount_on_signal(&signals, &point)).map(drop)
    });
    // When the image is released and the connection has ended, a mount with this device number is a
    // later one.
    let has_ended = keeper.is_released() && is_cut(&keeper.connection);
    if ended.is_err() && !has_ended {
        // Without a server no request on the mount returns. Dropping the keeper closes the
        // connection, so that the requests fail and the unmount does not wait.
        drop(keeper);
        if let Err(e) = point.detach() {
            tracing::error!("{e}");
        }
    }
    ended
}

/// Takes the lock on an image. The returned file is open with O_PATH, which gives no access:
/// servers open it again with their own rights.
fn open_image(image: &Path) -> Result<(Arc<dyn Device>, File)> {
    let named = || format!("open {}", image.display());
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(image).with_context(named)?;
    let locked = engine::open_locked(image)?;
    let [opened, now] = [file.metadata(), fs::metadata(image)].map(|meta| meta.with_context(named));
    let (opened, now) = (opened?, now?);
    ensure!(
        (opened.dev(), opened.ino()) == (now.dev(), now.ino()),
        "{} was replaced while it was opened",
        image.display()
    );
    Ok((locked, file))
}

/// A server of a new program, which waits for its turn.
struct Successor {
    program: Program,
    server: KeptServer,
    /// The successor is ready, and the old server was asked to leave.
    has_turn: bool,
    /// The time at which the successor was started, or later became ready.
    since: Duration,
}

impl Successor {
    fn start(program: Program, launch: &Launch) -> Result<Successor> {
        let server = KeptServer::start(&program, launch)?;
        Ok(Successor { program, server, has_turn: false, since: SystemClock::default().monotonic() })
    }

    /// The time left until the limit of the present step.
    fn left(&self) -> Duration {
        let patience = if self.has_turn { LEAVE_PATIENCE } else { START_PATIENCE };
        patience.saturating_sub(SystemClock::default().since(self.since))
    }
}

/// An event while a server serves.
enum Event {
    /// The server begins to end.
    Ends,
    /// The server has sent a line, or its socket has ended.
    Says,
    /// A request to replace the server is pending.
    Wanted,
    /// The successor waits for its turn, or has ended.
    Starts,
    /// The successor, or the old server that was asked to leave, exceeds its time limit.
    Late,
}

/// Why the watch over a serving server has ended. The successor has not served yet.
enum Watched {
    /// The server begins to end.
    Ends(Option<Successor>),
    /// The server has left.
    Left(Option<Successor>),
    /// The server has closed the image at the end of the mount.
    Closed,
}

/// The end of a server, and the state in which it leaves the keeper.
struct Ended {
    end: End,
    served: bool,
    successor: Option<Successor>,
}

impl Keeper {
    fn keep(
        &self,
        launch: &Launch,
        live: impl FnOnce() -> Result<()>,
        serves: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<ExitCode> {
        let mut first = Some((live, serves));
        let mut failed_starts = 0;
        let mut program = Program::own();
        // The program that served before a handover, until the new one serves.
        let mut before: Option<Program> = None;
        let mut waiting: Option<KeptServer> = None;
        loop {
            let (is_new, is_first) = (before.is_some(), first.is_some());
            let mut begun = |program: &Program| -> Result<()> {
                if let Some((live, serves)) = first.take() {
                    serves().context("start a thread")?;
                    live()?;
                }
                self.handovers.serves(program.version(), is_new);
                Ok(())
            };
            let server =
                waiting.take().map_or_else(|| self.start_patiently(&program, launch, is_first), Ok)?;
            let patience = is_new.then_some(PATIENCE);
            let Ended { end, served, successor } =
                self.one_server(server, &program, patience, launch, &mut begun)?;
            if let Some(old) = before.take().filter(|_| !served) {
                let why = end.of_start();
                tracing::error!("the new program does not serve: {why}");
                if let End::Died { signal } = end {
                    self.area.note_death(signal);
                }
                program = old;
                self.handovers.fail(format!("{why}; the old program serves again"));
                continue;
            }
            match (end, successor) {
                (End::Left, Some(next)) if !self.is_released() => {
                    before = Some(std::mem::replace(&mut program, next.program));
                    waiting = Some(next.server);
                }
                (End::Left, None) if !self.is_released() => {}
                (end, successor) => {
                    if successor.is_some() {
                        self.handovers.fail(DIED.to_owned());
                    }
                    failed_starts = match end {
                        _ if served => 0,
                        End::Refused { may_pass: true, .. } => failed_starts,
                        _ => failed_starts + 1,
                    };
                    let is_first = first.is_some();
                    if let Some(code) = self.is_over(end, (served, failed_starts), is_first, launch)? {
                        return Ok(code);
                    }
                }
            }
        }
    }

    /// Starts a server. If the system lacks a process or memory for it, tries again: for the first
    /// server for a while, for a later one as long as the mount lasts.
    fn start_patiently(&self, program: &Program, launch: &Launch, is_first: bool) -> Result<KeptServer> {
        let clock = SystemClock::default();
        let begun = clock.monotonic();
        loop {
            let pause = match clock.since(begun) < SHORTAGE_PATIENCE {
                true => SHORTAGE_PAUSE,
                false if is_first => return KeptServer::start(program, launch),
                false => RETRY_PAUSE,
            };
            match KeptServer::start(program, launch) {
                Err(e) if os::is_shortage(&e) && !self.is_cut_within(pause)? => {
                    tracing::warn!("{e:#}; trying again");
                }
                started => return started,
            }
        }
    }

    /// Decides whether the mount ends with its server. Returns its exit code then, or an error.
    /// Otherwise returns when the next server may be started. `starts`: the number of servers up to
    /// this one that have ended before they served, for reasons that do not pass.
    fn is_over(
        &self,
        end: End,
        (served, starts): (bool, u32),
        is_first: bool,
        launch: &Launch,
    ) -> Result<Option<ExitCode>> {
        let why = match &end {
            End::Exited(status) if status.success() => return Ok(Some(ExitCode::SUCCESS)),
            End::Left if self.is_released() => return Ok(Some(ExitCode::SUCCESS)),
            End::Left => return Ok(None),
            End::Exited(status) => format!("the server of {} ended: {status}", launch.dir.display()),
            End::Refused { why, .. } => why.clone(),
            End::Died { signal } if self.is_released() => {
                bail!(
                    "the server of {} died of signal {signal} after it had closed the image",
                    launch.dir.display()
                );
            }
            End::Died { signal } => {
                let deaths = self.area.note_death(*signal);
                let name = Signal::from_named_raw(*signal).map(|s| format!("{s:?}")).unwrap_or_default();
                tracing::warn!(deaths = deaths.deaths, "the server died of signal {signal} {name}");
                if is_first {
                    bail!("the server died of signal {signal} before the mount was live");
                }
                format!("it died of signal {signal}")
            }
        };
        // A released image cannot be opened again.
        if is_first || self.is_released() {
            bail!("{why}");
        }
        if starts >= FAILED_STARTS_MAX {
            bail!("{starts} servers ended one after another before they served; the last one: {why}");
        }
        if !matches!(end, End::Died { .. }) {
            // After one that has served, the next server closes the image.
            if self.is_cut_within(RETRY_PAUSE)? && !served {
                bail!("{why}");
            }
            match served {
                true => drop(self.area.note_death(0)),
                false => self.area.note_failed_start(),
            }
            tracing::warn!("programs wait, and another server is started: {why}");
        }
        Ok(None)
    }

    /// Waits until the kernel has ended the connection, as it does when the mount has ended, or
    /// until `patience` is over. Returns whether the connection has ended.
    fn is_cut_within(&self, patience: Duration) -> Result<bool> {
        let patience = Timespec::try_from(patience)?;
        let mut fds = [PollFd::new(&self.connection, PollFlags::empty())];
        match poll(&mut fds, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(fds[0].revents().contains(PollFlags::ERR)),
            Err(e) => Err(e).context("wait for the end of the mount"),
        }
    }

    /// Makes a waiting server the mount's server, and watches it until its end.
    fn one_server(
        &self,
        mut server: KeptServer,
        program: &Program,
        patience: Option<Duration>,
        launch: &Launch,
        begun: &mut dyn FnMut(&Program) -> Result<()>,
    ) -> Result<Ended> {
        sentinel::expect(&self.area);
        server.say_serve(self.handovers.key());
        if !server.serves(patience)? {
            return Ok(Ended { end: server.end()?, served: false, successor: None });
        }
        begun(program)?;
        let (end, successor) = match self.watch(&mut server, launch)? {
            Watched::Ends(next) => (server.end()?, next),
            // A server that has left takes a while to free its memory, and programs wait for its
            // successor.
            Watched::Left(next) => (server.end_later()?, next),
            Watched::Closed => {
                match self.release() {
                    Ok(()) => server.say(RELEASED),
                    Err(e) => tracing::warn!("the keeper holds the image until it ends: {e}"),
                }
                (server.end()?, None)
            }
        };
        Ok(Ended { end, served: true, successor })
    }

    /// Gives up the image and its lock.
    fn release(&self) -> kedge_base::Result<()> {
        drop(self.file.take());
        self.image.release()
    }

    fn is_released(&self) -> bool {
        self.file.borrow().is_none()
    }

    /// Watches a serving server until it has left, has closed the image, or begins to end.
    fn watch(&self, server: &mut KeptServer, launch: &Launch) -> Result<Watched> {
        server.expect_end(&self.area);
        let mut successor = None;
        loop {
            let event = self.next_event(server, successor.as_ref())?;
            let failed = match (event, successor.take()) {
                (Event::Ends, next) => return Ok(Watched::Ends(next)),
                (Event::Says, next) => match &*server.line()? {
                    LEFT => return Ok(Watched::Left(next)),
                    CLOSED => {
                        // The successor has the image's file open until it ends.
                        if next.is_some() {
                            drop(next);
                            self.handovers.fail(DIED.to_owned());
                        }
                        return Ok(Watched::Closed);
                    }
                    "" => return Ok(Watched::Ends(next)),
                    line => line.strip_prefix(REFUSED).unwrap_or("the server refuses to leave").to_owned(),
                },
                (Event::Wanted, _) => {
                    match self.handovers.wanted().map(|program| Successor::start(program, launch)).transpose()
                    {
                        Ok(next) => {
                            successor = next;
                            continue;
                        }
                        Err(e) => format!("{e:#}"),
                    }
                }
                (Event::Starts, Some(mut next)) => match &*next.server.start_line()? {
                    WAITS => {
                        server.say(LEAVE);
                        (next.has_turn, next.since) = (true, SystemClock::default().monotonic());
                        successor = Some(next);
                        continue;
                    }
                    _ => next.server.end()?.of_start(),
                },
                // The server may still leave later. Then the old program is started again.
                (Event::Late, Some(next)) if next.has_turn => {
                    format!("the server does not leave within {} seconds", LEAVE_PATIENCE.as_secs())
                }
                (Event::Late, Some(_)) => {
                    format!("it does not start within {} seconds", START_PATIENCE.as_secs())
                }
                (Event::Starts | Event::Late, None) => continue,
            };
            self.handovers.fail(failed);
        }
    }

    /// Waits for the next event while a server serves.
    fn next_event(&self, server: &KeptServer, successor: Option<&Successor>) -> Result<Event> {
        // One request at a time. A successor that is ready sends nothing until the old server has
        // left.
        let third = match successor {
            None => Some((self.handovers.bell(), Event::Wanted)),
            Some(next) if !next.has_turn => Some((next.server.starts(), Event::Starts)),
            Some(_) => None,
        };
        if server.has_line() {
            return Ok(Event::Says);
        }
        loop {
            let limit = successor.map(Successor::left).map(Timespec::try_from).transpose()?;
            // The server's line is checked before its end, because it may leave a line and end at
            // once.
            let mut fds = vec![PollFd::from_borrowed_fd(server.says(), PollFlags::IN)];
            fds.push(PollFd::from_borrowed_fd(server.ends(), PollFlags::IN));
            fds.extend(third.iter().map(|(fd, _)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
            match poll(&mut fds, limit.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e).context("wait for a server"),
                Ok(0) => return Ok(Event::Late),
                Ok(_) => {}
            }
            let ready = fds.iter().position(|fd| !fd.revents().is_empty());
            return Ok(match (ready, third) {
                (Some(0), _) => Event::Says,
                (Some(2), Some((_, event))) => event,
                _ => Event::Ends,
            });
        }
    }
}

/// Whether the kernel has ended a connection, as it does when the mount has ended.
fn is_cut(connection: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// The descriptors in `--kept`: the connection to the kernel and the keeper's memory.
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

/// Serves a mount in a process that the keeper has started.
pub fn serve(mount: &Mount<'_>, fds: KeptFds, keep_stderr: bool) -> Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).context("die with the keeper")?;
    let [connection, area] = [fds.connection, fds.area].map(os::inherited);
    let (connection, area) = (connection.context("the connection")?, area.context("the memory")?);
    die_of_panics();
    let may_pass = Cell::new(false);
    let served = background::run(keep_stderr, |live| {
        let area = Area::inherited(area).context("go on with the keeper's memory")?;
        handover::await_turn()?;
        let life = Life::begin(area);
        let mut words = mount.words.clone();
        words.switches.add(&life.options().context("go on with the options")?);
        let file = life.image().map(os::inherited).transpose().context("the image's file")?;
        let mount = Mount { words: &words, extra: mount.extra.clone(), ..*mount };
        in_foreground_kept(&mount, connection, life, file, live)
            .map(|()| ExitCode::SUCCESS)
            .inspect_err(|e| may_pass.set(engine::may_pass(e, mount.image)))
    });
    if may_pass.get() { served.map(|_| ExitCode::from(MAY_PASS)) } else { served }
}

/// Makes a panic of any thread abort the process before its stack unwinds. Unwinding would send
/// replies with EIO and shut the file system down, but the next server can continue instead.
fn die_of_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        syslog::error(&panic.to_string());
        std::process::abort();
    }));
}

/// The part of a server's command line that repeats options of its keeper.
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

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
