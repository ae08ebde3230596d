//! One process that serves several images: `kedge daemon FILE.toml`, and `kedge mount --daemon
//! NAME`, which joins the process of that name or starts it.
//!
//! The mounts share the process, a budget for dirty pages and the flusher threads. Each mount has
//! its own engine with its own threads for the log and checkpoints. A device that hangs does not
//! delay the other mounts, neither through the budget nor through the flusher threads. The process
//! ends with its last mount.
//!
//! # Joining
//! A named process listens on a socket in a directory that only its user can enter
//! (`kedge_fuse::PrivateDir`). A connection carries one request and one reply, each a line of JSON.

use crate::options::{MountWords, parse_size};
use crate::serve::{self, Offer};
use crate::text::one_line;
use crate::usage::Usage;
use crate::{background, engine, image, key, mounts, notify, os, stderr};
use anyhow::{Context, Result, anyhow, bail};
use kedge_base::lock::{Condvar, Mutex, Rank};
use kedge_fuse::{Bound, MountError, MountPoint, PrivateDir};
use kedgefs::{FileSystem, MountOptions, SharedBudget};
use os::TerminationSignals;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The default limits on the dirty bytes of all mounts of this process together.
const DIRTY_BACKGROUND: u64 = 64 << 20;
const DIRTY_HARD: u64 = 256 << 20;
/// Limit for the bytes of a request.
const REQUEST_MAX: u64 = 64 << 10;
/// The time limit for reading a request, because a client that connects and sends nothing delays
/// the others.
const REQUEST_WAIT: Duration = Duration::from_secs(5);
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time limit for the reply to a request: recovery of an image may take long, and the requests
/// of other clients may come first.
const REPLY_WAIT: Duration = Duration::from_secs(600);
/// Attempts to join: the process of this name may be ending or starting.
const JOIN_TRIES: u32 = 50;
const JOIN_PAUSE: Duration = Duration::from_millis(100);

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
struct Config {
    name: Option<String>,
    dirty_background: Option<String>,
    dirty_hard: Option<String>,
    #[serde(default)]
    mount: Vec<Request>,
}

/// One image to mount.
#[derive(Serialize, Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub image: PathBuf,
    pub dir: PathBuf,
    #[serde(default)]
    pub options: String,
    #[serde(default)]
    pub cache_size: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Reply {
    error: Option<String>,
    /// Warnings about the mount, for the user of the requesting command.
    #[serde(default)]
    notices: Vec<String>,
}

impl Config {
    fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let mut config: Config = toml::from_str(&text).map_err(|e| {
            // The parser's message has several lines with an excerpt.
            Usage(format!("{}: {}", path.display(), e.to_string().trim()))
        })?;
        if config.mount.is_empty() {
            return Err(Usage(format!("{}: no [[mount]]", path.display())).into());
        }
        // Paths in the file are relative to the file.
        let base = std::path::absolute(path)?.parent().map(Path::to_path_buf).unwrap_or_default();
        for request in &mut config.mount {
            if !image::is_uri(&request.image)? {
                request.image = base.join(&request.image);
            }
            request.dir = base.join(&request.dir);
        }
        Ok(config)
    }

    fn budget(&self) -> Result<Arc<SharedBudget>> {
        let size = |name: &str, text: &Option<String>, default| match text {
            None => Ok(default),
            Some(text) => parse_size(text).map_err(|e| Usage(format!("{name}: {e}"))),
        };
        let background = size("dirty_background", &self.dirty_background, DIRTY_BACKGROUND)?;
        Ok(SharedBudget::new(background, size("dirty_hard", &self.dirty_hard, DIRTY_HARD)?))
    }
}

/// Mounts the images in the file, and serves until the last mount has ended.
pub fn run_file(file: &Path, offer: Offer) -> Result<ExitCode> {
    let config = Config::read(file)?;
    let signals = TerminationSignals::block().context("block signals")?;
    let host = Host::new(config.budget()?, signals, offer)?;
    if let Some(name) = &config.name {
        host.listen(name)?;
    }
    for request in &config.mount {
        if let Err(e) = host.mount(request) {
            if e.is::<Ending>() {
                // A signal has asked the process to end.
                host.wait();
                return host.verdict();
            }
            host.unmount_all();
            host.wait();
            return Err(e.context(format!("mount {} on {}", request.image.display(), request.dir.display())));
        }
    }
    notify::ready();
    host.wait();
    host.verdict()
}

/// Listens under this name and serves the mounts that [`join`] requests, until the last mount has
/// ended. If the start fails, the parent gets the error.
pub fn run_named(name: &str, offer: Offer) -> Result<ExitCode> {
    let child = background::Child::start(false)?;
    let started = TerminationSignals::block()
        .context("block signals")
        .and_then(|signals| Host::new(Config::default().budget()?, signals, offer))
        .and_then(|host| host.listen(name).map(|()| host));
    let host = match started {
        Ok(host) => host,
        Err(e) => {
            child.failed(&e);
            return Ok(ExitCode::FAILURE);
        }
    };
    child.ready()?;
    host.wait_for_first();
    host.wait();
    host.verdict()
}

/// Mounts in the process called `name`. Starts the process if it does not run.
pub fn join(name: &str, request: &Request) -> Result<()> {
    let (dir, socket) = private(name)?;
    let mut ends = false;
    for _ in 0..JOIN_TRIES {
        match dir.connect(&socket, REQUEST_WAIT) {
            Ok(stream) => match ask(stream, request, REPLY_WAIT)? {
                Some(reply) => {
                    reply.notices.iter().for_each(stderr::warn);
                    return reply.error.map_or(Ok(()), |e| bail!("{e}"));
                }
                // The process is ending.
                None => {
                    ends = true;
                    kedge_base::pause(JOIN_PAUSE);
                }
            },
            Err(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                bail!("the process called {name} accepts no connections")
            }
            Err(_) => {
                // No process listens, so one is started. If two callers do so at once, the second
                // process finds the socket in use and ends, and its caller joins the first process.
                ends = false;
                let words: [&OsStr; 3] = ["daemon".as_ref(), "--name".as_ref(), name.as_ref()];
                if let Err(e) = background::spawn(&words, None, None) {
                    tracing::debug!("start of {name}: {e}");
                    kedge_base::pause(JOIN_PAUSE);
                }
            }
        }
    }
    if ends {
        bail!("the process called {name} was asked to end, and waits until its mounts are not in use");
    }
    bail!("no process called {name} responds at {}", dir.path().join(&socket).display())
}

/// Sends a request, and waits for the reply for at most `patience`. `None` if the process ended
/// without a reply.
fn ask(mut stream: UnixStream, request: &Request, patience: Duration) -> Result<Option<Reply>> {
    let mut line = serde_json::to_string(request).context("write the request")?;
    line.push('\n');
    stream.set_read_timeout(Some(patience)).context("wait for the reply")?;
    let mut answer = String::new();
    let said =
        stream.write_all(line.as_bytes()).and_then(|()| BufReader::new(&stream).read_line(&mut answer));
    match said {
        Ok(n) if n > 0 => Ok(Some(serde_json::from_str(&answer).context("read the reply")?)),
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            Err(NoReply { patience, image: request.image.clone() }.into())
        }
        _ => Ok(None),
    }
}

/// The socket of the process called `name`, as directory and file name.
fn private(name: &str) -> Result<(PrivateDir, String)> {
    if name.is_empty()
        || name.len() > 64
        || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    {
        return Err(Usage(format!(
            "'{name}' is no name for a daemon: up to 64 letters, digits, '-' and '_' are"
        ))
        .into());
    }
    let dir = PrivateDir::make().context("find a directory for sockets")?;
    Ok((dir, format!("{name}.sock")))
}

/// The path of the socket of the process called `name`.
pub fn socket(name: &str) -> Result<PathBuf> {
    let (dir, socket) = private(name)?;
    Ok(dir.path().join(socket))
}

/// The mounts of this process.
struct Host {
    budget: Arc<SharedBudget>,
    offer: Offer,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    live: Vec<MountPoint>,
    /// The number of mounts in preparation.
    starting: usize,
    /// Whether a mount has been made so far.
    used: bool,
    /// No more mounts are accepted, because the last mount has ended.
    ending: bool,
    /// A signal has asked the process to end. No more mounts are accepted, and a mount in
    /// preparation ends.
    stopping: bool,
    failed: Vec<String>,
    bound: Option<Bound>,
}

impl Host {
    fn new(budget: Arc<SharedBudget>, signals: TerminationSignals, offer: Offer) -> Result<Arc<Host>> {
        os::give_large_buffers_back();
        kedge_fuse::become_io_flusher();
        let state = Mutex::new(Rank::Leaf, State::default());
        let host = Arc::new(Host { budget, offer, state, changed: Condvar::default() });
        let mine = host.clone();
        kedge_base::spawn_named("signals", move || {
            loop {
                match signals.wait() {
                    Ok(signal) => tracing::info!("signal {signal}: unmounting"),
                    Err(e) => return tracing::error!("cannot wait for signals: {e}"),
                }
                notify::stopping();
                mine.unmount_all();
            }
        })
        .context("start a thread")?;
        Ok(host)
    }

    /// Unmounts all mounts, and accepts no more. A mount in use stays until the next signal.
    fn unmount_all(&self) {
        let live = {
            let mut state = self.state.lock();
            state.stopping = true;
            state.live.clone()
        };
        self.changed.notify_all();
        for mount in live {
            if let Err(e) = engine::patiently(|| mount.request_unmount()) {
                tracing::error!("cannot unmount: {e}");
            }
        }
    }

    fn listen(self: &Arc<Host>, name: &str) -> Result<()> {
        let (dir, socket) = private(name)?;
        let path = dir.path().join(&socket);
        let bound = dir.listen_alone(&socket).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => anyhow!("a daemon called {name} is running already"),
            _ => anyhow::Error::from(e).context(format!("listen at {}", path.display())),
        })?;
        let listener = bound.listener().try_clone().context("listen")?;
        self.state.lock().bound = Some(bound);
        let host = self.clone();
        kedge_base::spawn_named("join", move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => host.answer(stream),
                    // For example, the process has no descriptor left.
                    Err(e) => {
                        tracing::warn!("no connection accepted: {e}");
                        kedge_base::pause(ACCEPT_PAUSE);
                    }
                }
            }
        })
        .context("start a thread")?;
        Ok(())
    }

    fn answer(self: &Arc<Host>, mut stream: UnixStream) {
        let request = (|| -> Result<Request> {
            stream.set_read_timeout(Some(REQUEST_WAIT))?;
            let mut line = String::new();
            BufReader::new((&stream).take(REQUEST_MAX)).read_line(&mut line)?;
            Ok(serde_json::from_str(&line)?)
        })();
        let reply = match request.and_then(|request| self.mount(&request)) {
            Ok(notices) => Reply { error: None, notices },
            Err(e) if e.is::<Ending>() => return, // no reply: the client starts another process
            Err(e) => Reply { error: Some(one_line(&format!("{e:#}"))), notices: Vec::new() },
        };
        let answer = serde_json::to_string(&reply).unwrap_or_default() + "\n";
        if let Err(e) = stream.write_all(answer.as_bytes()) {
            tracing::warn!("the client that asked for a mount has disconnected: {e}");
        }
    }

    /// Mounts an image. Returns the warnings when the mount is live.
    fn mount(self: &Arc<Host>, request: &Request) -> Result<Vec<String>> {
        self.while_counted(|| self.start(request))
    }

    /// Runs `start` while the process waits for one more mount. A panic becomes an error, so that
    /// the thread that accepts requests continues, and the process still ends after its last mount.
    fn while_counted(&self, start: impl FnOnce() -> Result<Vec<String>>) -> Result<Vec<String>> {
        {
            let mut state = self.state.lock();
            if state.ending || state.stopping {
                return Err(Ending.into());
            }
            state.starting += 1;
        }
        let started = kedge_base::without_panic("the start of a mount", || Ok(start()))
            .unwrap_or_else(|panic| Err(panic.into()));
        let mut state = self.state.lock();
        state.starting -= 1;
        state.used |= started.is_ok();
        self.changed.notify_all();
        started
    }

    /// Mounts an image and starts the thread that serves it. Returns the warnings, which are also
    /// logged.
    fn start(self: &Arc<Host>, request: &Request) -> Result<Vec<String>> {
        let mut words = MountWords::parse([request.options.as_str()])?;
        if words.keeper {
            let why = "mount option keeper: a daemon serves all its images in one process";
            return Err(Usage(why.into()).into());
        }
        let cache_size = request.cache_size.as_deref().map(parse_size).transpose().map_err(Usage)?;
        let image = image::resolve(&image::with_words(&request.image, &words)?)?;
        let dir = mounts::resolve(&request.dir)?;
        mounts::refuse_busy(&dir)?;
        let losses = key::losses(&image);
        let mut notices = Vec::new();
        notices.extend(losses.map(|losses| format!("{}: {}", image.display(), image::losses_text(&losses))));
        let shared_budget = Some(self.budget.clone());
        // Several mounts share this process, so the default is the library's: the command's default
        // assumes a single mount.
        let cache_size = cache_size.or(words.cache_size).unwrap_or(MountOptions::default().cache_size);
        let extra = engine::Extra { cache_size: Some(cache_size), shared_budget, ..engine::Extra::default() };
        let opened = engine::open(&image, &mut words, extra)?;
        notices.extend(opened.notice.clone());
        let fs = opened.fs.clone();
        if self.state.lock().stopping {
            fs.close().with_context(|| format!("close {}", image.display()))?;
            return Err(Ending.into());
        }
        let session = match engine::mount(&opened, &image, &dir, &words) {
            Ok(session) => session,
            Err(e) => {
                fs.close().with_context(|| format!("close {}", image.display()))?;
                return Err(e);
            }
        };
        let mount = session.mount_point().clone();
        notices
            .extend(engine::plain_mount_notice(&mount).map(|weaker| format!("{}: {weaker}", dir.display())));
        notices.iter().for_each(|notice| tracing::warn!("{notice}"));
        let (host, noted, unserved) = (self.clone(), mount.clone(), fs.clone());
        let until_unmounted = move || {
            let served = serve::until_unmounted(session, fs, host.offer, || Ok(()));
            let error = match served {
                Ok(Ok(())) => None,
                Ok(Err(e)) => Some(format!("close {}: {e}", image.display())),
                Err(e) => Some(format!("serve {}: {e}", dir.display())),
            };
            if let Some(error) = &error {
                // Logged now, because the process returns its exit code only after its last mount
                // has ended.
                tracing::error!("{error}");
            }
            host.state.lock().failed.extend(error);
            host.forget(&mount);
        };
        self.begin(&noted, &unserved, || kedge_base::spawn_named("serve", until_unmounted).map(drop))?;
        Ok(notices)
    }

    /// Notes a live mount, and starts the thread that serves it and ends with [`Host::forget`]. If
    /// `spawn` fails, closes the file system: `spawn` has dropped the session, which ends the
    /// mount. If a signal came before the mount was noted, unmounts it, and fails with [`Ending`]
    /// unless it is in use.
    fn begin(
        &self,
        mount: &MountPoint,
        fs: &FileSystem,
        spawn: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<()> {
        let is_late = {
            let mut state = self.state.lock();
            state.live.push(mount.clone());
            state.stopping
        };
        let Err(e) = spawn() else {
            return match is_late.then(|| engine::patiently(|| mount.request_unmount())) {
                None => Ok(()),
                Some(Ok(()) | Err(MountError::NotMounted(_))) => Err(Ending.into()),
                Some(Err(e)) => {
                    tracing::error!("cannot unmount: {e}");
                    Ok(())
                }
            };
        };
        self.forget(mount);
        if let Err(e) = fs.close() {
            tracing::error!("close {}: {e}", mount.image.display());
        }
        Err(e).with_context(|| format!("start a thread for {}", mount.dir.display()))
    }

    /// Removes a mount that has ended.
    fn forget(&self, mount: &MountPoint) {
        self.state.lock().live.retain(|live| live.dir != mount.dir || live.image != mount.image);
        self.changed.notify_all();
    }

    fn wait_for_first(&self) {
        let mut state = self.state.lock();
        while !state.used && !state.stopping {
            // The caller that started this process requests its mount at once. If that fails, the
            // process ends.
            if self.changed.wait_for(&mut state, REQUEST_WAIT) && state.starting == 0 {
                return;
            }
        }
    }

    /// Waits until no mount is left.
    fn wait(&self) {
        let mut state = self.state.lock();
        while !state.live.is_empty() || state.starting > 0 {
            self.changed.wait(&mut state);
        }
        state.ending = true;
        drop(state.bound.take());
    }

    fn verdict(&self) -> Result<ExitCode> {
        let failed = self.state.lock().failed.join("; ");
        if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { bail!("{failed}") }
    }
}

/// The error of a process that is ending. The client then starts a new process.
#[derive(Debug)]
struct Ending;

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the daemon is ending")
    }
}

impl std::error::Error for Ending {}

/// The error of a process that has not replied in time. The image may be mounted later, so it must
/// stay.
#[derive(Debug)]
pub struct NoReply {
    patience: Duration,
    image: PathBuf,
}

impl std::fmt::Display for NoReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, image) = (self.patience.as_secs(), self.image.display());
        write!(f, "the daemon has not replied within {seconds} seconds; it may still mount {image}")
    }
}

impl std::error::Error for NoReply {}

#[cfg(test)]
#[path = "daemon_tests.rs"]
mod tests;
