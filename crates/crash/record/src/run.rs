//! One recording: mount, fill, run the command, unmount.

use crate::device::{Attached, Device};
use crate::error::{RecordError, io_error};
use crate::family::{DIR_VARIABLE, Family};
use crate::log::{Counts, Log};
use crate::mapped::{Except, Mapped, Unseen};
use crate::output::Output;
use crate::outside::Outside;
use crate::recording::{MARK_FILE, Recording};
use crate::stack::{IS_SUPPORTED, Stacks};
use kedge_base::{Clock, SystemClock, spawn_named};
use kedge_crash::Call;
use kedge_crash::loops::{self, DEVICE_VARIABLE};
use kedge_crash::workdir::WorkDir;
use kedge_device::MemDevice;
use kedge_fuse::{FuseOptions, MountError, MountPoint};
use kedgefs::{FileSystem, FormatOptions, MountOptions, Owner};
use parking_lot::Mutex;
use regex::Regex;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const POLL: Duration = Duration::from_millis(5);
/// How long to wait for processes that the command has left and that still use the mount.
pub(crate) const LEFTOVERS_WAIT: Duration = Duration::from_secs(3);
/// The name of the mounted directory below the recorder's directory.
pub(crate) const MOUNT_DIR: &str = "dir";
/// The interval at which the open files outside the mount are sampled.
const OUTSIDE_EVERY: Duration = Duration::from_millis(100);
const MOUNT_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Options {
    /// The size of the image in bytes. The image is kept in memory.
    pub size: u64,
    /// The directory with the initial contents, if any.
    pub from: Option<PathBuf>,
    /// The block device that the command gets, if any.
    pub device: Option<Device>,
    /// Whether the command starts in the mounted directory.
    pub cd: bool,
    /// Lines of the command's standard output that match this pattern are marks.
    pub ack: Option<Regex>,
    pub timeout: Option<Duration>,
    pub out: PathBuf,
    /// Whether the callers of each call are recorded.
    pub backtrace: bool,
    /// Whether stores through shared mappings are recorded before the next call.
    pub mappings: bool,
    pub command: Vec<OsString>,
}

/// The result of a recording.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The number of events since the command started, including marks.
    pub events: u64,
    pub marks: u64,
    /// The command's exit code, or 128 plus the number of the signal that killed it.
    pub code: i32,
    pub timed_out: bool,
    /// The processes that still used the mount after the command had ended.
    pub leftovers: Vec<String>,
    /// The files elsewhere that the command had open for writing, each with its process. Files that
    /// were open only briefly can be missed.
    pub outside: Vec<String>,
    /// The number of calls whose callers were searched for and not found.
    pub without_stack: u64,
    /// The number of events of stores through shared mappings.
    pub stores: u64,
    /// With [`Options::mappings`], the stores that were nevertheless recorded late.
    pub unseen: Unseen,
    /// The number of calls of sync and syncfs by processes that do not belong to the command. They
    /// are not recorded.
    pub foreign_syncs: u64,
}

/// How the command ended.
struct Ended {
    code: i32,
    timed_out: bool,
    outside: Vec<String>,
    /// Whether the device is still in use.
    keeps_device: bool,
}

/// Runs the command on a mount of its own and records it. Calls `started` with the command's
/// process number, so that signals can be passed on.
pub fn record(options: &Options, started: &dyn Fn(u32)) -> Result<Recorded, RecordError> {
    if options.backtrace && !IS_SUPPORTED {
        return Err(RecordError::NoBacktrace);
    }
    if options.mappings {
        Mapped::check()?;
    }
    options.device.iter().try_for_each(Device::check)?;
    let recording = |error| RecordError::Recording { path: options.out.clone(), error };
    let (file, draft) = Draft::new(&options.out).map_err(|e| recording(e.into()))?;
    let log = Arc::new(Log::new(file).map_err(recording)?);
    let started = |pid: u32| {
        started(pid);
        draft.keep()
    };
    let temp = WorkDir::new(&std::env::temp_dir(), "kedge-record-", detach_dead)
        .map_err(io_error("a temporary directory"))?;
    let mount = Mount::new(temp.path(), file_system(options.size)?, log.clone(), options.mappings)?;
    let run = run_on(&mount, options, &log, &started);
    let unseen = mount.mapped.as_ref().map(|mapped| mapped.unseen()).unwrap_or_default();
    let foreign_syncs = mount.family.strangers();
    let leftovers = mount.end();
    let (ended, before) = run?;
    let mut leftovers = leftovers?;
    let Counts { events, marks, stores } = log.finish().map_err(recording)?;
    let Ended { code, timed_out, outside, keeps_device } = ended;
    leftovers.extend(keeps_device.then(|| "the users of the device".to_owned()));
    let (events, without_stack) = (events - before, log.without_stack());
    Ok(Recorded {
        events,
        marks,
        code,
        timed_out,
        leftovers,
        outside,
        without_stack,
        stores,
        unseen,
        foreign_syncs,
    })
}

/// A recording that gets its name only when the command has started, so that an earlier failure
/// leaves an older recording of that name unchanged. From then on the file grows under its name, so
/// that a killed recorder leaves what it has recorded.
pub(crate) struct Draft {
    name: PathBuf,
    /// The temporary name. `None` if the file has its final name, or if that name is not of a
    /// regular file.
    temp: Mutex<Option<tempfile::TempPath>>,
}

impl Draft {
    pub fn new(out: &Path) -> io::Result<(File, Draft)> {
        // Replace the target of a symlink, not the link itself.
        let name = match out.canonicalize() {
            Ok(name) => name,
            Err(e) if e.kind() == io::ErrorKind::NotFound => out.to_owned(),
            Err(e) => return Err(e),
        };
        let mode = match std::fs::metadata(&name) {
            Ok(meta) if meta.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(meta) if !meta.is_file() => {
                let file = File::options().write(true).open(&name)?;
                return Ok((file, Draft { name, temp: Mutex::new(None) }));
            }
            Ok(meta) => Some(meta.permissions()),
            Err(_) => None,
        };
        let dir = name.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Open the file here, since errors of tempfile would name the temporary file.
        let open = |path: &Path| File::options().write(true).create_new(true).mode(0o666).open(path);
        let temp = tempfile::Builder::new().prefix(".kedge-record-").make_in(dir, open)?;
        let (file, temp) = temp.into_parts();
        if let Some(mode) = mode {
            file.set_permissions(mode)?;
        }
        Ok((file, Draft { name, temp: Mutex::new(Some(temp)) }))
    }

    pub fn keep(&self) -> io::Result<()> {
        match self.temp.lock().take() {
            Some(temp) => temp.persist(&self.name).map_err(|e| e.error),
            None => Ok(()),
        }
    }
}

/// Detaches the mount that a killed recorder left below its directory.
pub(crate) fn detach_dead(temp: &Path) -> io::Result<()> {
    let dir = temp.join(MOUNT_DIR);
    loops::detach_below(&dir);
    if kedge_fuse::mount_at(&dir).is_some() {
        return kedge_fuse::unmount(&dir, true).map_err(io::Error::other);
    }
    // The mounts of a cluster are one level below.
    for node in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
        if kedge_fuse::mount_at(&node.path()).is_some() {
            kedge_fuse::unmount(&node.path(), true).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn run_on(
    mount: &Mount,
    options: &Options,
    log: &Arc<Log>,
    started: &dyn Fn(u32) -> io::Result<()>,
) -> Result<(Ended, u64), RecordError> {
    if let Some(from) = &options.from {
        fill(from, &mount.point.dir)?;
    }
    let device = options.device.as_ref().map(|device| device.make(&mount.point.dir, log)).transpose()?;
    let before = {
        let mut state = log.lock();
        log.append(&mut state, 0, 0, Call::Baseline);
        state.count
    };
    if options.backtrace {
        log.look_at_stacks(Stacks::start(&mount.point.dir).map_err(io_error("a thread"))?);
    }
    let device = device.map(|file| Attached::new(&file)).transpose()?;
    let path = device.as_ref().map(Attached::path);
    let mut ended = run_command(&mount.point.dir, path, options, log, mount.mapped.as_ref(), started)?;
    if let Some(device) = device {
        ended.keeps_device = !device.end(LEFTOVERS_WAIT)?;
    }
    let mut state = log.lock();
    log.append(&mut state, 0, 0, Call::End { code: ended.code });
    Ok((ended, before))
}

pub(crate) fn owner() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// An empty file system in memory.
pub(crate) fn file_system(size: u64) -> Result<FileSystem, RecordError> {
    let device = Arc::new(MemDevice::new(size));
    let clock = Arc::new(SystemClock::default());
    let options = FormatOptions { owner: owner(), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock.clone(), &options)?;
    Ok(FileSystem::open(device, clock, MountOptions::default())?)
}

/// The image, which is mounted and served.
pub(crate) struct Mount {
    pub point: MountPoint,
    /// The collector of stores through mappings, if they are collected.
    mapped: Option<Arc<Mapped>>,
    family: Arc<Family>,
    served: std::thread::JoinHandle<io::Result<kedgefs::Result<()>>>,
}

impl Mount {
    /// Mounts the file system below `temp`. Changes are recorded; with `mappings`, stores through
    /// mappings are recorded before the next call.
    pub fn new(temp: &Path, fs: FileSystem, log: Arc<Log>, mappings: bool) -> Result<Mount, RecordError> {
        Mount::at(&temp.join("image"), &temp.join(MOUNT_DIR), fs, log, mappings)
    }

    /// Does the same on the new directory `dir`. `image` is a new file outside of it.
    pub fn at(
        image: &Path,
        dir: &Path,
        fs: FileSystem,
        log: Arc<Log>,
        mappings: bool,
    ) -> Result<Mount, RecordError> {
        // Make a file for the loop device, which gives the mount its name and no contents.
        File::create(image).and_then(|f| f.set_len(1 << 20)).map_err(io_error("a temporary file"))?;
        std::fs::create_dir(dir).map_err(io_error("a temporary directory"))?;
        let fuse = FuseOptions { writeback_cache: false, no_open: !mappings, ..FuseOptions::default() };
        let family = Arc::new(Family::new(dir));
        let recording = Recording::with_marks(fs.clone(), log, owner())?.of_family(family.clone());
        let (recording, mapped) = match mappings {
            true => recording.collecting(owner()).map(|(recording, mapped)| (recording, Some(mapped)))?,
            false => (recording, None),
        };
        let session = kedge_fuse::mount(image, dir, &fuse)?;
        let point = session.mount_point().clone();
        let served =
            spawn_named("kedge-record", move || session.run_and_close(recording, move || fs.close()))
                .map_err(io_error("a thread"))?;
        let mount = Mount { point, mapped, family, served };
        mount.wait_until_served()?;
        if let Some(mapped) = &mount.mapped {
            mapped.begin(&mount.point.dir).map_err(io_error("the directory for mapped files"))?;
        }
        Ok(mount)
    }

    fn wait_until_served(&self) -> Result<(), RecordError> {
        let clock = SystemClock::default();
        while let Err(e) = std::fs::metadata(self.point.dir.join(MARK_FILE)) {
            if clock.monotonic() > MOUNT_WAIT {
                return Err(io_error("the mount does not answer")(e));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Unmounts. Waits some time for processes that still use the mount; after that they are
    /// returned and left behind.
    pub fn end(self) -> Result<Vec<String>, RecordError> {
        let clock = SystemClock::default();
        let mut leftovers = Vec::new();
        if let Some(mapped) = &self.mapped {
            mapped.end();
        }
        loop {
            match self.point.request_unmount() {
                Ok(()) => break,
                Err(MountError::Busy(_)) if clock.monotonic() < LEFTOVERS_WAIT => std::thread::sleep(POLL),
                Err(MountError::Busy(_)) => {
                    leftovers = users_of(&self.point.dir);
                    kedge_fuse::unmount(&self.point.dir, true)?;
                    // The mount lives as long as these processes, and the recorder does not wait
                    // for them.
                    return Ok(leftovers);
                }
                Err(e) => return Err(e.into()),
            }
        }
        match self.served.join() {
            Ok(Ok(Ok(()))) => Ok(leftovers),
            Ok(Ok(Err(e))) => Err(e.into()),
            Ok(Err(e)) => Err(io_error("serving the mount")(e)),
            Err(_) => Err(io_error("serving the mount")(io::Error::other("a thread panicked"))),
        }
    }
}

/// Processes with an open file or their working directory on the mount.
fn users_of(dir: &Path) -> Vec<String> {
    let mut users = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let is_below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|to| to.starts_with(dir));
        let fds = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        if is_below(entry.path().join("cwd")) || fds.map(|fd| fd.path()).any(is_below) {
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            users.push(format!("{pid} {}", name.trim()));
        }
    }
    users
}

pub(crate) fn fill(from: &Path, dir: &Path) -> Result<(), RecordError> {
    let output = Command::new("cp")
        .arg("-a")
        .arg("--")
        .arg(from.join("."))
        .arg(dir)
        .output()
        .map_err(io_error("cp"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(RecordError::Fill { from: from.to_owned(), output })
        }
    }
}

fn run_command(
    dir: &Path,
    device: Option<&Path>,
    options: &Options,
    log: &Arc<Log>,
    mapped: Option<&Arc<Mapped>>,
    started: &dyn Fn(u32) -> io::Result<()>,
) -> Result<Ended, RecordError> {
    let (program, args) = options.command.split_first().expect("the command line asks for one word at least");
    // A mount namespace of its own ends the command's mounts with it, and with them the last use of
    // the device.
    let start = if device.is_some() { loops::with_own_mounts() } else { &[] };
    let mut words = start.iter().map(OsStr::new).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().expect("the program at least"));
    command.args(words).args(args).env(DIR_VARIABLE, dir).env("KEDGE_MARK", dir.join(MARK_FILE));
    if let Some(device) = device {
        command.env(DEVICE_VARIABLE, device);
    }
    if options.cd {
        command.current_dir(dir);
    }
    // Read the output before each call, so that lines which the command prints before its first
    // call are recorded before it.
    let output = match options.ack.clone() {
        Some(ack) => {
            let (pipe, stdout) = io::pipe().map_err(io_error("the command's output"))?;
            command.stdout(stdout);
            let output = Arc::new(Output::new(pipe.into(), ack).map_err(io_error("the command's output"))?);
            log.listen(output.clone());
            Some(output)
        }
        None => None,
    };
    // At a terminal the command must stay in the foreground. Elsewhere its own process group lets
    // the recorder kill it with all its descendants.
    let own_group = !io::stdin().is_terminal();
    if own_group {
        command.process_group(0);
    }
    let mut child = command.spawn().map_err(|error| RecordError::Start { command: program.into(), error })?;
    // Drop the writing end of the pipe that `command` holds: the reader sees the end of the pipe
    // only after all copies are closed.
    drop(command);
    if let Err(error) = started(child.id()) {
        // Kill the command, because its calls could not be recorded.
        child.kill().and_then(|()| child.wait()).map_err(io_error("the command"))?;
        return Err(RecordError::Recording { path: options.out.clone(), error: error.into() });
    }
    let pass_on = |output: Arc<Output>| {
        let (log, mapped) = (log.clone(), mapped.cloned());
        let read_pipe = move || {
            // Normally this records stores that were made before a promise was printed before the
            // promise.
            if let Some(mapped) = &mapped {
                mapped.collect(&Except::None);
            }
            drop(log.lock());
        };
        spawn_named("kedge-ack", move || output.pass_on(read_pipe)).map_err(io_error("a thread"))
    };
    let reader = output.map(pass_on).transpose()?;
    let mut outside = Outside::new(dir, &options.out);
    let (status, timed_out) =
        wait(&mut child, options.timeout, own_group, &mut outside).map_err(io_error("the command"))?;
    if let Some(reader) = reader {
        // A process that was left behind may hold the pipe open, so the wait is limited.
        let clock = SystemClock::default();
        while !reader.is_finished() && clock.monotonic() < LEFTOVERS_WAIT {
            std::thread::sleep(POLL);
        }
    }
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(-1);
    // Files on a file system of the device are recorded, but look like files outside the mount.
    let outside = if device.is_some() { Vec::new() } else { outside.told() };
    Ok(Ended { code, timed_out, outside, keeps_device: false })
}

fn wait(
    child: &mut Child,
    timeout: Option<Duration>,
    own_group: bool,
    outside: &mut Outside,
) -> io::Result<(ExitStatus, bool)> {
    let clock = SystemClock::default();
    let mut look_at = Duration::ZERO;
    loop {
        if clock.monotonic() >= look_at {
            outside.look(child.id());
            look_at = clock.monotonic() + OUTSIDE_EVERY;
        }
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if timeout.is_some_and(|t| clock.monotonic() >= t) {
            let group =
                i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).filter(|_| own_group);
            match group {
                Some(group) => rustix::process::kill_process_group(group, rustix::process::Signal::KILL)?,
                None => child.kill()?,
            }
            return Ok((child.wait()?, true));
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
