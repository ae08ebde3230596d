//! Runs the program as a user would.
#![allow(dead_code, unused_imports, unused_macros, clippy::unwrap_used)]

pub mod fsx;
pub mod io;
pub mod keeper;
pub mod mapping;
pub mod pjdfstest;
pub mod postgres;
pub mod rings;
pub mod seeks;
pub mod source;

use kedge_base::HANG;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The output of a command. If it hangs, it and its children are killed.
#[track_caller]
pub fn output_of(mut command: Command) -> std::io::Result<Output> {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let group = Pid::from_raw(child.id() as i32).unwrap();
    let (send, receive) = mpsc::channel();
    kedge_base::spawn_named("output", move || send.send(child.wait_with_output())).unwrap();
    receive.recv_timeout(HANG).unwrap_or_else(|_| {
        let killed = kill_process_group(group, Signal::KILL);
        panic!("{line}: still running after {HANG:?} (killed: {killed:?})")
    })
}

/// Makes a copy of `kedge` that other users may run. Another process writes the copy: if this
/// process wrote it, a child that another test starts meanwhile would inherit the open file, and a
/// file that is open for writing cannot be run.
pub fn copy_program(to: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_kedge")).arg(to).status().unwrap();
    assert!(copied.success(), "cp to {}: {copied}", to.display());
}

/// Runs a program of a Debian package, which must be installed and succeed. Returns its output.
#[track_caller]
pub fn tool(mut command: Command, package: &str) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    // fs_mark and mke2fs may be in directories that only root's PATH has.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin")).env("LC_ALL", "C");
    let Output { status, stdout, stderr } = match output_of(command) {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            panic!("{name} is not installed; on Debian, as root, run: apt-get install -y {package}")
        }
        Err(e) => panic!("{name}: {e}"),
    };
    let out = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{name}: {status}\n{out}\n{}", String::from_utf8_lossy(&stderr));
    out
}

/// Whether the large amounts are requested (`KEDGE_FULL=1`). They take minutes.
pub fn full() -> bool {
    std::env::var_os("KEDGE_FULL").is_some_and(|v| v == "1")
}

/// Whether the long forms of the tests are requested (`KEDGE_LONG=1`).
pub fn long() -> bool {
    std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1")
}

/// The result of a run of `kedge`.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// Fails unless the exit code was 0.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self.out
    }

    /// Fails unless the exit code was `code` and stderr is one line that has all of `words`. Lines
    /// before it may say that an unmount waits: the mount namespace of another program can hold any
    /// mount for a while.
    #[track_caller]
    pub fn refused(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        let is_progress = |line: &&str| line.starts_with("kedge: waiting for the process that serves");
        let errors: Vec<&str> = self.err.lines().skip_while(is_progress).collect();
        let [error] = errors[..] else { panic!("not one line: {}", self.err) };
        assert!(error.starts_with("kedge: "), "{}", self.err);
        for word in words {
            assert!(error.contains(word), "'{word}' in {}", self.err);
        }
    }
}

/// The directory of a test. Its mounts are ended on drop.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    /// A new directory in which this command of `kedge` has succeeded.
    #[track_caller]
    pub fn after(line: &str) -> Place {
        let place = Place::new();
        place.run(line).ok();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `kedge` in the directory.
    pub fn kedge<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
        command.current_dir(self.0.path()).env_remove("KEDGE_LOG").args(args);
        let Output { status, stdout, stderr } = output_of(command).unwrap();
        Run {
            code: status.code().expect("ends by itself"),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        }
    }

    /// Runs `kedge` with the words of one line as arguments.
    pub fn run(&self, line: &str) -> Run {
        self.kedge(line.split(' '))
    }

    /// A command that will run in the directory.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        // cargo sets this variable for the tests; it is not for the programs that they run.
        command.env_remove("RUSTC_BOOTSTRAP");
        command
    }

    /// Unmounts `mnt`, checks the image, and mounts it again.
    #[track_caller]
    pub fn remount(&self, image: &str, options: &str) {
        self.unmount_and_check(image);
        self.run(&format!("mount{options} {image} mnt")).ok();
    }

    /// Unmounts `mnt`, with retries: a test in another thread may start a program, which until its
    /// exec has all files open that were open at the fork.
    #[track_caller]
    pub fn unmount(&self) {
        until("mnt is no longer in use", || {
            let run = self.run("umount mnt");
            assert!(run.code == 0 || run.err.contains("is in use"), "{}", run.err);
            run.code == 0
        });
    }

    /// Like [`Place::unmount_and_check`], for a mount with a writeback cache that has refused some
    /// data. Programs have got the error. The unmount reports it too, unless nothing was left to
    /// report.
    #[track_caller]
    pub fn unmount_refused_and_check(&self, image: &str) {
        let said = "unmounted, but data that was written to it could not be kept";
        until("mnt is no longer in use", || {
            let run = self.run("umount mnt");
            let ended = run.code == 0 || run.code == 1 && run.err.contains(said);
            assert!(ended || run.err.contains("is in use"), "{}: {}", run.code, run.err);
            ended
        });
        let judged = self.run(&format!("fsck {image}"));
        assert_eq!(judged.code, 0, "fsck {image}: {}{}", judged.out, judged.err);
    }

    /// Unmounts `mnt` and checks the image.
    #[track_caller]
    pub fn unmount_and_check(&self, image: &str) {
        self.unmount();
        let judged = self.run(&format!("fsck {image}"));
        assert_eq!(judged.code, 0, "fsck {image}: {}{}", judged.out, judged.err);
    }

    pub fn info(&self, target: &str) -> serde_json::Value {
        serde_json::from_str(&self.kedge(["info", "--json", target]).ok()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failed test may have left a mount, live or dead.
        let here = self.0.path().canonicalize().unwrap();
        for mount in kedge_fuse::mounts().into_iter().rev().filter(|m| m.dir.starts_with(&here)) {
            if let Err(e) = kedge_fuse::unmount(&mount.dir, true) {
                eprintln!("{}: {e}", mount.dir.display());
            }
        }
    }
}

/// Whether tests that mount are switched off. This is never inferred: otherwise a machine that
/// cannot mount would count as tested.
#[track_caller]
pub fn no_fuse() -> bool {
    let no = std::env::var_os("KEDGE_NO_FUSE").is_some_and(|v| v == "1");
    if no {
        kedge_base::skip::note("KEDGE_NO_FUSE=1: the test mounts");
    }
    no
}

/// Whether the test is skipped because it needs root, for the given reason.
#[track_caller]
pub fn not_root(why: &str) -> bool {
    let not = !rustix::process::geteuid().is_root();
    if not {
        kedge_base::skip::note(why);
    }
    not
}

/// Ends the test as skipped where tests that mount are switched off; with `root:`, also for users
/// other than root.
macro_rules! needs_fuse {
    () => {
        if $crate::common::no_fuse() {
            return;
        }
    };
    (root: $why:expr) => {
        if $crate::common::no_fuse() || $crate::common::not_root($why) {
            return;
        }
    };
}
pub(crate) use needs_fuse;

pub fn pid(place: &Place, dir: &str) -> Pid {
    let info = place.info(dir);
    Pid::from_raw(info["mount"]["pid"].as_i64().unwrap() as i32).unwrap()
}

/// Kills the process that serves the mount and waits until the mount is dead.
pub fn kill(place: &Place, dir: &str) {
    kill_process(pid(place, dir), Signal::KILL).unwrap();
    until_dead(place, dir);
}

/// Waits until the kernel knows that the serving process has ended.
pub fn until_dead(place: &Place, dir: &str) {
    // Use statfs(2), because the kernel still serves stat(2) and an open of the directory by
    // itself.
    until("the mount is dead", || {
        rustix::fs::statfs(place.path(dir)).is_err_and(|e| e == rustix::io::Errno::NOTCONN)
    });
}

/// For a script in a new mount namespace: detaches the mounts of other tests, which live as long as
/// any namespace has them.
pub const LET_GO: &str = "for other in $(findmnt -rno TARGET -t fuseblk.kedgefs,fuse.kedgefs || true); do
    umount -l \"$other\" || test -z \"$(findmnt -n \"$other\")\"; done\n";

/// Waits for an action of another process.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..HANG.as_millis() / 10 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within {HANG:?}: {what}");
}

/// Whether a process runs. A zombie that is never reaped, as in some containers, has ended.
pub fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub fn write_and_fsync(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}
