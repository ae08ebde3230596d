//! `kedge crash mount`, `now` and `fault`: a mount that loses power on request.
//!
//! The serving process listens on a socket that only its user can use. Each line received is a
//! request in JSON; the reply is one line, sent when the request is complete:
//!
//! ```text
//! {"do":"crash"}                  lose everything not persistent; also "model", "seed", "torn", "kill"
//! {"do":"fault","rule":"…"}       one more rule
//! {"do":"faults"}                 the rules, and how often each was met
//! {"do":"clear"}                  no rules any more
//! {"do":"wait","crashes":2}       until this number of crashes have happened; also "seconds"
//! ```

use anyhow::{Context, Result, bail};
use kedge_crash::Model;
use kedge_crash_record::{Crash, Crashed, Live, Lose, Rule};
use kedge_fuse::FuseOptions;
use kedge_host::options::{MountWords, parse_size};
use kedge_host::os::TerminationSignals;
use kedge_host::serve::unmount_on_signal;
use kedge_host::{background, create, daemon, engine, image, mounts};
use kedgefs::FormatOptions;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The longest request in bytes.
const REQUEST_MAX: u64 = 64 << 10;
/// The most connections served at once.
const CLIENTS_MAX: usize = 64;
/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time limit for connecting.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time limit in seconds of a `wait` request that names none.
const WAIT_DEFAULT: f64 = 60.0;

#[derive(clap::Args, Debug)]
pub struct MountArgs {
    /// Make the image with this size, and the directory, if they do not exist
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    create: Option<u64>,
    /// What happens at which call, for example on=fsync,path=*.db,nth=3,do=crash (see
    /// docs/CRASH_TESTING.md)
    #[arg(long = "fault", value_name = "RULE")]
    faults: Vec<Rule>,
    /// Bytes of calls that are remembered for the next crash; beyond this limit, all earlier calls
    /// count as durable
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    history: u64,
    /// A socket for requests, in addition to the one found by the directory
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve in this process instead of a background process
    #[arg(long)]
    foreground: bool,
    /// The file to which the serving process writes its messages (otherwise they are dropped)
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Started by `kedge crash mount` itself: reports to the waiting parent on standard output
    #[arg(long, hide = true, requires = "foreground")]
    as_daemon: bool,
    /// The image, which holds the state after each crash
    image: PathBuf,
    /// The mount point
    dir: PathBuf,
}

#[derive(clap::Args, Debug)]
pub struct NowArgs {
    /// The mount point
    dir: PathBuf,
    /// What the file system may lose
    #[arg(long, value_parser = super::model_parser(&kedge_crash::MODELS), default_value = "posix")]
    model: Model,
    /// Lose a random choice of the changes that may be lost, instead of all
    #[arg(long, value_name = "SEED", conflicts_with = "torn")]
    random: Option<u64>,
    /// Lose nothing but a part of the last write
    #[arg(long)]
    torn: bool,
    /// Kill this process at the same moment
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(2..))]
    kill: Vec<i32>,
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the reply as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub struct FaultArgs {
    /// The mount point
    dir: PathBuf,
    /// Rules to add; without rules: list the present rules, with how often each was met and applied
    rules: Vec<Rule>,
    /// Drop the present rules first
    #[arg(long)]
    clear: bool,
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Serialize, Deserialize, Debug)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Crash {
        #[serde(default)]
        model: Option<String>,
        #[serde(default)]
        seed: Option<u64>,
        #[serde(default)]
        torn: bool,
        #[serde(default)]
        kill: Vec<i32>,
    },
    Fault {
        rule: String,
    },
    Faults {},
    Clear {},
    Wait {
        crashes: u64,
        #[serde(default)]
        seconds: Option<f64>,
    },
}

#[derive(Serialize, Deserialize, Debug, Default)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crash: Option<Crashed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<Vec<Met>>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Met {
    rule: String,
    seen: u64,
    applied: u64,
}

pub fn mount(args: MountArgs) -> Result<ExitCode> {
    if args.as_daemon {
        let keep_stderr = args.log_file.is_some();
        return background::run(keep_stderr, |live| serve(&args, live).map(|()| ExitCode::SUCCESS));
    }
    mounts::detach_dead(&args.dir, &args.image)?;
    mounts::refuse_busy(&args.dir)?;
    if !create::exists(&args.image)? {
        let Some(size) = args.create.map(create::whole_blocks) else {
            bail!("{} does not exist (--create SIZE makes it)", args.image.display());
        };
        create::create(&args.image, size, &FormatOptions { size: Some(size), ..FormatOptions::default() })?;
    }
    if args.create.is_some() && !args.dir.exists() {
        std::fs::create_dir(&args.dir).with_context(|| format!("create {}", args.dir.display()))?;
    }
    let args = absolute(args)?;
    match args.foreground {
        true => serve(&args, || Ok(()))?,
        false => spawn(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes all paths absolute, because the serving process has another working directory.
fn absolute(args: MountArgs) -> Result<MountArgs> {
    let resolve = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    Ok(MountArgs {
        image: image::resolve(&args.image)?,
        dir: args.dir.canonicalize().with_context(|| format!("find {}", args.dir.display()))?,
        socket: resolve(&args.socket).context("find the socket")?,
        log_file: resolve(&args.log_file).context("find the log file")?,
        ..args
    })
}

fn spawn(args: &MountArgs) -> Result<()> {
    let history = args.history.to_string();
    let rules: Vec<String> = args.faults.iter().map(Rule::to_string).collect();
    let mut words: Vec<&OsStr> =
        ["crash", "mount", "--foreground", "--as-daemon", "--history", &history].map(OsStr::new).into();
    for rule in &rules {
        words.extend::<[&OsStr; 2]>(["--fault".as_ref(), rule.as_ref()]);
    }
    for (name, path) in [("--socket", &args.socket), ("--log-file", &args.log_file)] {
        if let Some(path) = path {
            words.extend::<[&OsStr; 2]>([name.as_ref(), path.as_ref()]);
        }
    }
    words.extend::<[&OsStr; 3]>(["--".as_ref(), args.image.as_ref(), args.dir.as_ref()]);
    background::spawn(&words, args.log_file.as_deref(), None)
}

/// Opens, mounts, listens, calls `ready`, and serves until the mount has ended.
fn serve(args: &MountArgs, ready: impl FnOnce() -> Result<()>) -> Result<()> {
    let signals = TerminationSignals::block().context("block signals")?;
    let mut words = MountWords::parse([] as [&str; 0])?;
    let opened = engine::open(&args.image, &mut words, engine::Extra::default())?;
    if let Some(notice) = opened.notice {
        bail!("{notice}");
    }
    let fs = opened.fs;
    let started = (|| {
        let live = Live::new(fs.clone(), args.history).context("read what the image holds")?;
        args.faults.iter().cloned().for_each(|rule| live.add_rule(rule));
        // The kernel must cache nothing, because a crash changes files without a request.
        let fuse =
            FuseOptions { cache_timeout: Duration::ZERO, auto_invalidate: true, ..FuseOptions::default() };
        let session = engine::attach(&args.image, &args.dir, &fuse)?;
        let mount = session.mount_point().clone();
        kedge_base::spawn_named("signals", move || unmount_on_signal(&signals, &mount))
            .context("start a thread")?;
        // `now` and `fault` find the first socket by the directory; the second is the user's
        // choice.
        let sockets = (
            Socket::listen(None, &live)?,
            args.socket.as_deref().map(|path| Socket::listen(Some(path), &live)).transpose()?,
        );
        ready()?;
        anyhow::Ok((live, session, sockets))
    })();
    let (live, session, _sockets) = match started {
        Ok(started) => started,
        Err(e) => {
            // A session, if it was made, has been dropped and has ended the mount.
            if let Err(second) = fs.close() {
                tracing::error!("close {}: {second}", args.image.display());
            }
            return Err(e);
        }
    };
    let closed = session
        .run_and_close(live, move || fs.close())
        .with_context(|| format!("serve {}", args.dir.display()))?;
    closed.with_context(|| format!("close {}", args.image.display()))
}

/// A socket whose file is removed when this is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            tracing::warn!("{} cannot be removed: {e}", self.0.display());
        }
    }
}

impl Socket {
    fn listen(path: Option<&Path>, live: &Live) -> Result<Socket> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => daemon::socket(&default_name(std::process::id()))?,
        };
        // A socket on which no process listens was left by a killed process. Any other file stays.
        if std::fs::symlink_metadata(&path).is_ok_and(|m| is_socket(&m))
            && kedge_fuse::connect_within(&path, PATIENCE).is_err_and(|e| e.kind() != ErrorKind::TimedOut)
        {
            std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        let listener = UnixListener::bind(&path).with_context(|| format!("listen at {}", path.display()))?;
        let socket = Socket(path);
        // The mode is only informative: the user of each connection is checked anyway.
        std::fs::set_permissions(&socket.0, std::fs::Permissions::from_mode(0o600))
            .with_context(|| format!("protect {}", socket.0.display()))?;
        let live = live.clone();
        kedge_base::spawn_named("control", move || accept(&listener, &live)).context("start a thread")?;
        Ok(socket)
    }
}

fn is_socket(meta: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type())
}

fn default_name(pid: u32) -> String {
    format!("crash-{pid}")
}

fn accept(listener: &UnixListener, live: &Live) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            // For example, the process has no descriptor left.
            Err(e) => {
                tracing::warn!("no connection accepted: {e}");
                kedge_base::pause(ACCEPT_PAUSE);
                continue;
            }
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX || !is_own(&stream) {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (live, counted) = (live.clone(), clients.clone());
        let served = kedge_base::spawn_named("client", move || {
            if let Err(e) = talk(&stream, &live) {
                tracing::info!("the client has disconnected: {e}");
            }
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(e) = served {
            clients.fetch_sub(1, Ordering::Relaxed);
            tracing::error!("a thread cannot be started: {e}");
        }
    }
}

/// Whether the client is the user that serves the mount, or root with its capabilities.
fn is_own(stream: &UnixStream) -> bool {
    kedge_fuse::Peer::may_command(stream)
}

fn talk(stream: &UnixStream, live: &Live) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut out = stream;
    loop {
        let mut line = String::new();
        if (&mut lines).take(REQUEST_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match serde_json::from_str(&line) {
            Ok(request) => answer(request, live).unwrap_or_else(|e| refusal(format!("{e:#}"))),
            Err(e) => refusal(format!("not a request: {e}")),
        };
        let text = serde_json::to_string(&answer).map_err(std::io::Error::other)?;
        out.write_all(format!("{text}\n").as_bytes())?;
        if line.len() as u64 >= REQUEST_MAX {
            return Ok(());
        }
    }
}

fn refusal(error: String) -> Answer {
    Answer { error: Some(error), ..Answer::default() }
}

fn answer(request: Request, live: &Live) -> Result<Answer> {
    Ok(match request {
        Request::Crash { model, seed, torn, kill } => {
            let name = model.as_deref().unwrap_or("posix");
            let model = super::parse_model(name).map_err(anyhow::Error::msg)?;
            if kill.iter().any(|pid| *pid < 2) {
                bail!("kill takes numbers of processes, which are larger than 1");
            }
            let lose = match (seed, torn) {
                (None, false) => Lose::All,
                (Some(seed), false) => Lose::Random(seed),
                (None, true) if model.torn_pages => Lose::Torn,
                (None, true) => bail!("{name} tears no pages"),
                (Some(_), true) => bail!("seed and torn contradict each other"),
            };
            let crash = live.crash(&Crash { model, lose }, &kill);
            Answer { error: crash.error.clone(), crash: Some(crash), ..Answer::default() }
        }
        Request::Fault { rule } => {
            live.add_rule(rule.parse()?);
            Answer::default()
        }
        Request::Faults {} => {
            let met = |(rule, seen, applied)| Met { rule, seen, applied };
            Answer { faults: Some(live.rules().into_iter().map(met).collect()), ..Answer::default() }
        }
        Request::Clear {} => {
            live.clear_rules();
            Answer::default()
        }
        Request::Wait { crashes, seconds } => {
            let time = Duration::try_from_secs_f64(seconds.unwrap_or(WAIT_DEFAULT)).context("seconds")?;
            match live.wait(crashes, time.min(Duration::from_secs(86_400))) {
                Some(crash) => Answer { error: crash.error.clone(), crash: Some(crash), ..Answer::default() },
                None => bail!("fewer than {crashes} crashes in {time:?}"),
            }
        }
    })
}

/// Sends requests to the process that serves a directory. Returns the last reply.
fn ask(dir: &Path, socket: Option<&Path>, requests: &[Request]) -> Result<Answer> {
    let path = match socket {
        Some(path) => path.to_owned(),
        None => {
            let pid = mounts::attribute(dir, mounts::XATTR_PID)?;
            daemon::socket(&default_name(pid.trim().parse().context("the process that serves the mount")?))?
        }
    };
    let stream = kedge_fuse::connect_within(&path, PATIENCE).with_context(|| {
        format!("{} was not mounted by kedge crash mount: connect to {}", dir.display(), path.display())
    })?;
    // No time limit: a crash waits for calls in progress, and `wait` for the next crash.
    stream.set_read_timeout(None).context("wait for the reply")?;
    let mut lines = BufReader::new(&stream);
    let mut last = Answer::default();
    for request in requests {
        let text = serde_json::to_string(request).context("write the request")?;
        (&stream).write_all(format!("{text}\n").as_bytes()).context("ask")?;
        let mut line = String::new();
        if lines.read_line(&mut line).context("wait for the reply")? == 0 {
            bail!("{}: the process that serves it ended without a reply", dir.display());
        }
        last = serde_json::from_str(&line).context("read the reply")?;
        if let Some(error) = &last.error {
            bail!("{error}");
        }
    }
    Ok(last)
}

pub fn now(args: NowArgs) -> Result<ExitCode> {
    let model = Some(args.model.name.to_owned());
    let request = Request::Crash { model, seed: args.random, torn: args.torn, kill: args.kill };
    let answer = ask(&args.dir, args.socket.as_deref(), &[request])?;
    let crash = answer.crash.context("the reply reports no crash")?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&crash).context("write the reply")?);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "crash {} under {}; calls lost in whole or in part: {}",
        crash.crashes, crash.model, crash.lost_count
    );
    for call in &crash.lost {
        println!("  {call}");
    }
    if crash.lost_count > crash.lost.len() as u64 {
        println!("  and {} more", crash.lost_count - crash.lost.len() as u64);
    }
    if let Some(torn) = &crash.torn {
        println!("  {torn}");
    }
    if crash.forgotten > 0 {
        println!(
            "{} earlier calls exceeded the limit on remembered calls and count as durable (--history)",
            crash.forgotten
        );
    }
    Ok(ExitCode::SUCCESS)
}

pub fn fault(args: FaultArgs) -> Result<ExitCode> {
    let clear = args.clear.then_some(Request::Clear {});
    let rules = args.rules.iter().map(|rule| Request::Fault { rule: rule.to_string() });
    let requests: Vec<Request> = clear.into_iter().chain(rules).chain([Request::Faults {}]).collect();
    let answer = ask(&args.dir, args.socket.as_deref(), &requests)?;
    for met in answer.faults.unwrap_or_default() {
        println!("{}: {} calls, applied {} times", met.rule, met.seen, met.applied);
    }
    Ok(ExitCode::SUCCESS)
}
