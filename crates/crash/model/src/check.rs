//! A program as the judge: each state is materialised as a directory, a command runs in it, and its
//! exit code is the verdict.
//!
//! Each state is made in a new directory. To reuse a directory, this program would have to know
//! what the last checker changed there, and time stamps do not show it: a write through a shared
//! mapping on tmpfs changes none. The directory is on tmpfs if there is one, so that making it
//! costs a copy in memory.
//!
//! The command runs in its own process group, with limits of memory and time. When the command ends
//! or its time is over, the whole group is killed, and every process that has left it
//! ([`crate::leftovers`]). If memory runs out, the kernel kills a checker
//! before any other process. Only the last part of its standard output and error is kept.
//!
//! If the disk is full, the failure of a checker says nothing about the program and counts as no
//! verdict.

use crate::beneath::{self, Beneath};
use crate::edit::Edit;
use crate::leftovers::{self, DIR_VARIABLE};
use crate::loops::{self, DEVICE_FILE, DEVICE_VARIABLE, Loop};
use crate::observed::{IsWanted, Observed, read_tree, without};
use crate::run::{Case, Checker, Verdict};
use crate::state::{Body, FileBody, Node, State};
use crate::workdir::{WorkDir, clear};
use kedge_base::{Clock, SystemClock};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::{Gid, Pid, Signal, Uid, kill_process_group};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The number of bytes kept of a checker's output.
const OUTPUT_KEPT: u64 = 4096;
/// The longest environment variable with promises in bytes; the kernel refuses longer ones.
const TOLD_BYTES_MAX: usize = 64 << 10;
const POLL_MAX: Duration = Duration::from_millis(5);
/// The most bytes that a checker may print before it is killed, since its output is kept in memory.
const OUTPUT_MAX: u64 = 64 << 20;
/// Free bytes below which a checker may have failed for lack of space.
const ROOM_MIN: u64 = 256 << 10;

/// A shell command that judges states.
pub struct CommandChecker {
    pub command: String,
    pub timeout: Duration,
    /// The limit of the address space in bytes; `None` for no limit.
    pub memory: Option<u64>,
    /// When set, running checkers are killed and give no verdict.
    pub stop: Arc<AtomicBool>,
    /// How the checker gets the block device, if one was recorded.
    pub device: Option<DeviceAs>,
    work: WorkDir,
    /// The number of states made so far.
    made: AtomicU64,
}

/// The form in which a checker gets a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAs {
    File,
    /// A loop device over that file.
    Loop,
}

/// The directory of a state. It is removed with this value.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // What stays is removed with the directory of the run.
        if let Err(e) = clear(&self.0) {
            tracing::warn!("{} cannot be removed yet: {e}", self.0.display());
        }
    }
}

/// What the names of the directories of a job's states begin with.
fn job(case: &Case<'_>) -> String {
    format!("{}.", case.job)
}

/// How a checker ended.
enum End {
    Exit(ExitStatus),
    TimeOver,
    TooMuchOutput,
}

impl CommandChecker {
    /// Makes a checker whose states are made below `dir`, or on tmpfs if `dir` is `None`.
    pub fn new(
        command: &str,
        timeout: Duration,
        memory: Option<u64>,
        dir: Option<&Path>,
    ) -> io::Result<CommandChecker> {
        let shm = Path::new("/dev/shm");
        let place = match dir {
            Some(dir) => dir.to_owned(),
            None if rustix::fs::access(shm, rustix::fs::Access::WRITE_OK).is_ok() => shm.to_owned(),
            None => std::env::temp_dir(),
        };
        let release = |dir: &Path| {
            loops::detach_below(dir);
            Ok(())
        };
        let work = WorkDir::new(&place, "kedge-crash-", release)?;
        leftovers::adopt()?;
        let (stop, made) = (Arc::default(), AtomicU64::new(0));
        Ok(CommandChecker { command: command.to_owned(), timeout, memory, stop, device: None, work, made })
    }

    /// Judges a state by the command with these arguments (`$1` and so on).
    pub fn check_with(&self, case: &Case<'_>, args: &[OsString]) -> Verdict {
        match self.judge(case, args) {
            Ok(verdict) => verdict,
            Err(e) => Verdict::Broken(format!("state {} cannot be made or checked: {e}", case.recipe)),
        }
    }

    fn judge(&self, case: &Case<'_>, args: &[OsString]) -> io::Result<Verdict> {
        let made = self.make(case)?;
        let root = &made.0;
        let output = scratch(&root.join("output"))?;
        let end = self.execute(case, root, args, &output, &output)?;
        self.with_room(self.verdict(&end, &tail(&output)?))
    }

    /// Runs the command on a state. Returns what the command shows, with those files for which
    /// `is_wanted` returns true, or the verdict if the command did not end by itself.
    pub(crate) fn observe(
        &self,
        case: &Case<'_>,
        is_wanted: Option<IsWanted<'_>>,
    ) -> io::Result<Result<Observed, Verdict>> {
        let made = self.make(case)?;
        let root = &made.0;
        let (out, err) = (scratch(&root.join("output"))?, scratch(&root.join("errors"))?);
        let end = self.execute(case, root, &[], &out, &err)?;
        let (printed, complaint) = (tail(&out)?, tail(&err)?);
        let said = if complaint.is_empty() { &printed } else { &complaint };
        let status = match (self.with_room(self.verdict(&end, said))?, &end) {
            (Verdict::Broken(why), _) => return Ok(Err(Verdict::Broken(why))),
            (_, End::Exit(status)) => status,
            (verdict, _) => return Ok(Err(verdict)),
        };
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
        let dir = root.join("state");
        let tree = is_wanted.map(|is_wanted| read_tree(&dir, is_wanted)).transpose()?.unwrap_or_default();
        // Replace the name of the directory: each of the parallel checkers has its own.
        let out = without(&fs::read(root.join("output"))?, dir.as_os_str().as_bytes());
        let last_line = said.lines().last().unwrap_or_default().to_owned();
        Ok(Ok(Observed { code, out, last_line, tree }))
    }

    /// Makes the state in a new directory. Returns that directory; the tree is in `state` below it.
    /// No later state gets the same name: a process that an earlier checker has left running may
    /// write to the path that it knows.
    fn make(&self, case: &Case<'_>) -> io::Result<Made> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let made = Made(self.work.path().join(format!("{}{number}", job(case))));
        let dir = made.0.join("state");
        fs::create_dir_all(&dir)?;
        materialise(case.state, &dir)?;
        Ok(made)
    }

    fn execute(
        &self,
        case: &Case<'_>,
        root: &Path,
        args: &[OsString],
        out: &File,
        err: &File,
    ) -> io::Result<End> {
        let dir = root.join("state");
        let mut command = self.command_in(case, &dir, root, args)?;
        command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        let attached = match self.device {
            Some(DeviceAs::Loop) => Some(Loop::attach(&dir.join(DEVICE_FILE))?),
            _ => None,
        };
        if let Some(attached) = &attached {
            command.env(DEVICE_VARIABLE, attached.path());
        }
        let end = self.wait(&mut command, &[out, err]);
        // Earlier checkers of this job may have left processes too, which were orphans too late.
        leftovers::end(&self.work.path().join(job(case)));
        let end = end?;
        drop(attached);
        Ok(end)
    }

    /// Changes a failure to "no verdict" if there is too little space: the checker may have failed
    /// for that.
    fn with_room(&self, verdict: Verdict) -> io::Result<Verdict> {
        match verdict {
            Verdict::Bad(_) if !has_room(self.work.path())? => Ok(Verdict::Broken(format!(
                "no room is left in {}, and the checker failed",
                self.work.path().parent().unwrap_or(Path::new("/")).display()
            ))),
            verdict => Ok(verdict),
        }
    }

    /// The command for a state whose tree is in `dir`, without its output. A file with the promises
    /// is written to `root`, which outlives the command.
    pub fn command_in(
        &self,
        case: &Case<'_>,
        dir: &Path,
        root: &Path,
        args: &[OsString],
    ) -> io::Result<Command> {
        let told = case.told.join("\n");
        let told_file = root.join("acked");
        fs::write(&told_file, format!("{told}\n"))?;
        // A mount namespace of its own ends the checker's mounts with it, even if it is killed.
        let start = if self.device.is_some() { loops::with_own_mounts() } else { &[] };
        let mut words = start.iter().copied().chain(["/bin/sh", "-c"]);
        let mut command = Command::new(words.next().expect("the shell at least"));
        if self.device.is_some() {
            command.env(DEVICE_VARIABLE, dir.join(DEVICE_FILE));
        }
        command
            .args(words)
            .arg(format!("{}eval \"$KEDGE_CHECK\"", self.limits()))
            .arg("sh")
            .args(args)
            .current_dir(dir)
            .env("KEDGE_CHECK", &self.command)
            .env("KEDGE_STATE", format!("{}{}", case.within, case.recipe))
            .env(DIR_VARIABLE, dir)
            .env("KEDGE_ACKED_FILE", &told_file)
            .env("KEDGE_ACKED_COUNT", case.told.len().to_string())
            .stdin(Stdio::null())
            .process_group(0);
        match told.len() <= TOLD_BYTES_MAX && !told.contains('\0') {
            true => command.env("KEDGE_ACKED", &told),
            false => command.env_remove("KEDGE_ACKED"),
        };
        Ok(command)
    }

    fn limits(&self) -> String {
        // Makes the kernel's OOM killer choose the checker before this process.
        let first = "{ echo 1000 > /proc/self/oom_score_adj; } 2> /dev/null; ulimit -c 0; ";
        match self.memory {
            Some(bytes) => format!("{first}ulimit -v {} || exit 125; ", bytes / 1024),
            None => first.to_owned(),
        }
    }

    fn wait(&self, command: &mut Command, output: &[&File]) -> io::Result<End> {
        let clock = SystemClock::default();
        let mut child = command.spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut pause = Duration::from_micros(200);
        let end = loop {
            if let Some(status) = child.try_wait()? {
                break Ok(End::Exit(status));
            }
            if self.stop.load(Ordering::Relaxed) {
                break Err(io::Error::new(io::ErrorKind::Interrupted, "the search was stopped"));
            }
            if clock.monotonic() >= self.timeout {
                break Ok(End::TimeOver);
            }
            let lens = output.iter().map(|file| file.metadata().map(|meta| meta.len()));
            if lens.sum::<io::Result<u64>>()? > OUTPUT_MAX {
                break Ok(End::TooMuchOutput);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_MAX);
        };
        // Processes that the checker left running must not write into the next state.
        kill(group);
        if !matches!(end, Ok(End::Exit(_))) {
            child.wait()?;
        }
        end
    }

    fn verdict(&self, end: &End, output: &str) -> Verdict {
        let status = match end {
            End::Exit(status) => status,
            End::TimeOver => {
                let what = format!("the checker did not end within {:?}", self.timeout);
                return Verdict::Bad(with_output(&what, output));
            }
            End::TooMuchOutput => {
                return Verdict::Bad(format!("the checker printed more than {} MiB", OUTPUT_MAX >> 20));
            }
        };
        match (status.code(), status.signal()) {
            (Some(0), _) => Verdict::Good,
            // The shell's exit codes for a command that does not exist or may not be run.
            (Some(code @ (126 | 127)), _) => {
                Verdict::Broken(format!("the checker cannot be run (exit code {code}): {output}"))
            }
            (Some(125), _) if self.memory.is_some() && output.contains("ulimit") => {
                Verdict::Broken(format!("the memory limit cannot be set: {output}"))
            }
            (Some(code), _) => Verdict::Bad(with_output(&format!("exit code {code}"), output)),
            (None, signal) => Verdict::Bad(with_output(
                &format!("the checker died of signal {}", signal.unwrap_or(0)),
                output,
            )),
        }
    }
}

fn with_output(what: &str, output: &str) -> String {
    if output.is_empty() { what.to_owned() } else { format!("{what}: {output}") }
}

fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        // ESRCH: the group is already empty, as wanted.
        if let Err(e) = kill_process_group(group, Signal::KILL)
            && e != rustix::io::Errno::SRCH
        {
            tracing::warn!("processes of a checker cannot be killed: {e}");
        }
    }
}

impl Checker for CommandChecker {
    fn check(&self, case: &Case<'_>) -> Verdict {
        self.check_with(case, &[])
    }
}

fn has_room(dir: &Path) -> io::Result<bool> {
    let stat = rustix::fs::statvfs(dir)?;
    let is_counted = stat.f_files > 0;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize) >= ROOM_MIN && (!is_counted || stat.f_favail > 0))
}

/// Makes a new file for the output of a command.
fn scratch(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(true).read(true).write(true).open(path)
}

fn tail(mut output: &File) -> io::Result<String> {
    let len = output.metadata()?.len();
    output.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_KEPT)))?;
    let mut bytes = Vec::new();
    output.take(OUTPUT_KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Makes the tree in an empty directory. Only root sets owners. Pipes, sockets, devices and set-id
/// bits are left out: a checker may run files of the state as root, and the recording may come from
/// another person.
///
/// Nothing is made outside of the directory and nothing is written through a symlink (`Beneath`):
/// each name is created in a directory that is held open.
pub fn materialise(state: &State, dir: &Path) -> io::Result<()> {
    let mut maker = Maker {
        top: Beneath::open(dir)?,
        is_root: rustix::process::geteuid().is_root(),
        made: HashMap::new(),
        dirs: Vec::new(),
        above: None,
    };
    let mut result = Ok(());
    state.walk(&mut |path, ino, node| {
        if result.is_ok() {
            let made = maker.make(path, ino, node);
            result = made.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", show(path))));
        }
    });
    result?;
    maker.finish()
}

fn show(path: &[u8]) -> String {
    kedge_base::printable(&String::from_utf8_lossy(path))
}

/// A tree while it is made.
struct Maker {
    top: Beneath,
    is_root: bool,
    /// The first path of each inode.
    made: HashMap<u64, Vec<u8>>,
    /// The directories, whose permissions are set at the end.
    dirs: Vec<(Vec<u8>, u32)>,
    /// The directory that was opened last: most names are in the directory of the name before.
    above: Option<(Vec<u8>, OwnedFd)>,
}

impl Maker {
    fn make(&mut self, path: &[u8], ino: u64, node: &Node) -> io::Result<()> {
        if path.is_empty() {
            let Body::Dir(_) = node.body else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the root is no directory"));
            };
            self.dirs.push((Vec::new(), node.meta.mode));
            return set_xattrs(&self.top.dir(b"")?, node);
        }
        let (above, name) = beneath::last(path)?;
        self.open(above)?;
        let (_, dir) = self.above.as_ref().expect("just opened");
        if let Some(first) = self.made.get(&ino) {
            let (first_above, first_name) = beneath::last(first)?;
            let first_dir = self.top.dir(first_above)?;
            return Ok(rustix::fs::linkat(first_dir, first_name, dir, name, AtFlags::empty())?);
        }
        match &node.body {
            Body::Special => return Ok(()),
            Body::Symlink(target) => {
                rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?;
            }
            Body::Dir(_) => {
                rustix::fs::mkdirat(dir, name, Mode::RWXU)?;
                self.dirs.push((path.to_vec(), node.meta.mode));
                if has_xattrs(node) {
                    set_xattrs(&self.top.dir(path)?, node)?;
                }
            }
            Body::File(file) => write_file(dir, name, file, node)?,
        }
        let (uid, gid) = (node.meta.uid, node.meta.gid);
        if self.is_root && (uid, gid) != (0, 0) {
            // chown(2) takes the largest number for "leave unchanged", so no user has this number.
            let uid = (uid != u32::MAX).then(|| Uid::from_raw(uid));
            let gid = (gid != u32::MAX).then(|| Gid::from_raw(gid));
            rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.made.insert(ino, path.to_vec());
        Ok(())
    }

    fn open(&mut self, path: &[u8]) -> io::Result<()> {
        if self.above.as_ref().is_none_or(|(last, _)| last != path) {
            self.above = Some((path.to_vec(), self.top.dir(path)?));
        }
        Ok(())
    }

    /// Sets the permissions of directories, the inner ones first: the mode of an outer directory
    /// may forbid access to them.
    fn finish(self) -> io::Result<()> {
        for (path, mode) in self.dirs.into_iter().rev() {
            rustix::fs::fchmod(self.top.dir(&path)?, allowed(mode) | Mode::RWXU)?;
        }
        Ok(())
    }
}

/// The state as [`materialise`] would make it, for a file system in memory: without the parts of a
/// recording that a checker must not get, and with the owner that a user without privilege would
/// give it.
pub fn tame(state: &State) -> State {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let owner = (!uid.is_root()).then(|| (uid.as_raw(), gid.as_raw()));
    let mut tamed = state.clone();
    for (ino, node) in state.nodes() {
        let mode = node.meta.mode & 0o7777;
        let kept = allowed(mode).as_raw_mode();
        if mode != kept || owner.is_some_and(|owner| owner != (node.meta.uid, node.meta.gid)) {
            let (uid, gid) = (owner.map(|owner| owner.0), owner.map(|owner| owner.1));
            tamed.apply(&Edit::Attr { ino, mode: Some(kept), uid, gid });
        }
        for name in node.xattrs.keys().filter(|name| !name.starts_with(b"user.")) {
            tamed.apply(&Edit::Xattr { ino, name: name.clone(), value: None });
        }
    }
    tamed
}

/// Permissions without set-id bits.
fn allowed(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o1777)
}

fn write_file(dir: &OwnedFd, name: &OsStr, file: &FileBody, node: &Node) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let out = File::from(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?);
    for (at, bytes) in file.pieces() {
        out.write_all_at(bytes, at)?;
    }
    out.set_len(file.size)?;
    if node.meta.mode & 0o7777 != 0o644 {
        rustix::fs::fchmod(&out, allowed(node.meta.mode))?;
    }
    set_xattrs(&out, node)
}

/// Whether the inode has attributes that are set: only those of `user.`, since others carry
/// privileges.
fn has_xattrs(node: &Node) -> bool {
    node.xattrs.keys().any(|name| name.starts_with(b"user."))
}

fn set_xattrs(fd: impl AsFd, node: &Node) -> io::Result<()> {
    for (name, value) in node.xattrs.iter().filter(|(name, _)| name.starts_with(b"user.")) {
        match rustix::fs::fsetxattr(&fd, OsStr::from_bytes(name), value, rustix::fs::XattrFlags::empty()) {
            // Not every tmpfs has extended attributes.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
