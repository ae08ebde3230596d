//! Mounts the running kernel's file systems on a device whose writes are recorded.
//!
//! The device is a loop device, whose backing file lies in a directory that [`kedge_crash_record`]
//! records. So a write to the device is a write of that file, and a flush is an fsync. The kernel's
//! loop driver has no forced unit access, so the block layer turns such a write into a write and a
//! flush. One kernel thread serves the device in order, so a flush also covers writes that were in
//! flight when it was submitted. A real disk guarantees that only for completed writes.

use crate::workload::Workload;
use anyhow::{Context, Result, bail, ensure};
use kedge_crash::kcr;
use kedge_crash::{Call, Trace};
use kedge_crash_record::{Options, record};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The name of the device's backing file.
pub const DISK: &str = "disk";
/// The mark at which the crash test begins.
const BEGUN: &str = "0";
const RECORD_TIMEOUT: Duration = Duration::from_secs(600);
/// The size of the sparse backing file in bytes.
const RECORDING_SIZE: u64 = 1 << 30;

/// A file system, with the options to make it and to mount it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    /// The file-system type for mount(8).
    fs: &'static str,
    pub model: &'static str,
    mkfs: &'static [&'static str],
    size: u64,
    options: &'static str,
    /// Additional options for mounting the state after a crash.
    again: &'static str,
}

const EXT4: &[&str] =
    &["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];

/// The file systems with default options except for sizes, since most systems use the defaults; and
/// ext4 also with the options that its documentation describes.
pub const KINDS: [Kind; 5] = [
    Kind {
        name: "ext4, dioread_lock",
        fs: "ext4",
        model: "ext4-ordered",
        mkfs: EXT4,
        size: 64 << 20,
        options: "data=ordered,dioread_lock",
        again: "",
    },
    Kind {
        name: "ext4",
        fs: "ext4",
        model: "ext4",
        mkfs: EXT4,
        size: 64 << 20,
        options: "data=ordered",
        again: "",
    },
    Kind {
        name: "ext4, data=writeback",
        fs: "ext4",
        model: "ext4-writeback",
        mkfs: EXT4,
        size: 64 << 20,
        options: "data=writeback",
        again: "",
    },
    Kind {
        name: "xfs",
        fs: "xfs",
        model: "xfs",
        mkfs: &["mkfs.xfs", "-q", "-f"],
        size: 320 << 20,
        options: "rw",
        again: ",nouuid",
    },
    Kind {
        name: "btrfs",
        fs: "btrfs",
        model: "btrfs",
        mkfs: &["mkfs.btrfs", "-q", "-f"],
        size: 128 << 20,
        options: "rw",
        again: "",
    },
];

/// Runs a program; an error contains its output.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}: {}", args.join(" "), output.status, text.trim());
    }
    Ok(())
}

/// The directory for devices. It is on tmpfs if that has enough space.
pub fn place() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary path that is not UTF-8")
}

impl Kind {
    pub fn by_name(name: &str) -> Result<Kind> {
        KINDS.into_iter().find(|k| k.name == name).with_context(|| format!("no file system: {name:?}"))
    }

    /// Why this file system cannot be tested on this machine.
    pub fn missing(&self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("mounting needs root".to_owned());
        }
        let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !kernel.lines().any(|l| l.split_whitespace().last() == Some(self.fs)) {
            return Some(format!("the kernel has no {}", self.fs));
        }
        for path in ["/dev/fuse", "/dev/loop-control"] {
            if !Path::new(path).exists() {
                return Some(format!("there is no {path}"));
            }
        }
        match Command::new(self.mkfs[0]).arg("-V").output() {
            Ok(_) => None,
            Err(e) => Some(format!("{}: {e}", self.mkfs[0])),
        }
    }

    /// Creates a file with an empty file system.
    fn format(&self, disk: &Path) -> Result<()> {
        File::create(disk)?.set_len(self.size)?;
        let args: Vec<&str> = self.mkfs[1..].iter().copied().chain([path_str(disk)?]).collect();
        run(self.mkfs[0], &args)
    }

    fn mount(&self, disk: &Path, dir: &Path, more: &str) -> Result<()> {
        let options = format!("loop,noatime,{}{more}", self.options);
        run("mount", &["-t", self.fs, "-o", &options, path_str(disk)?, path_str(dir)?])
    }

    /// Mounts the state after a crash. The mount is writable: with a read-only mount the loop
    /// device would be read-only too, and the log could not be replayed.
    pub fn mount_again(&self, disk: &Path, dir: &Path) -> Result<()> {
        self.mount(disk, dir, self.again)
    }

    /// Runs a workload in the recorded directory. The recorder starts the process that calls this.
    pub fn play(&self, workload: &Workload, mount: &Path) -> Result<()> {
        let dir = std::env::var_os("KEDGE_DIR").context("KEDGE_DIR")?;
        let mark = std::env::var_os("KEDGE_MARK").context("KEDGE_MARK")?;
        // Set the umask, since the compared states contain permissions.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        self.mount(&Path::new(&dir).join(DISK), mount, "")?;
        let played = workload.play(mount, &mut |done| {
            let mut file = File::options().write(true).open(&mark)?;
            Ok(std::io::Write::write_all(&mut file, done.to_string().as_bytes())?)
        });
        // Unmounting writes all dirty data, so that the last crash points show the kernel's own
        // order.
        let unmounted = run("umount", &[path_str(mount)?]);
        played.and(unmounted)
    }

    /// Records the device's writes during a workload. The trace begins after the preparation.
    pub fn record(&self, workload: &Workload, temp: &Path) -> Result<Trace> {
        let (from, mount, out) = (temp.join("from"), temp.join("mount"), temp.join("device.kcr"));
        for dir in [&from, &mount] {
            fs::create_dir_all(dir)?;
        }
        self.format(&from.join(DISK))?;
        let exe = std::env::current_exe()?;
        let command = vec![
            exe.into(),
            "play".into(),
            self.name.into(),
            workload.to_string().into(),
            mount.as_os_str().to_owned(),
        ];
        let options = Options {
            size: RECORDING_SIZE,
            from: Some(from.clone()),
            device: None,
            cd: false,
            ack: None,
            timeout: Some(RECORD_TIMEOUT),
            out: out.clone(),
            backtrace: false,
            mappings: false,
            command,
        };
        let recorded = record(&options, &|_| {})?;
        ensure!(recorded.code == 0, "the workload ended with {} on {}: {workload}", recorded.code, self.name);
        ensure!(recorded.leftovers.is_empty(), "still in use by {:?}", recorded.leftovers);
        fs::remove_file(from.join(DISK))?;
        let loaded = kcr::read(File::open(&out)?)?;
        ensure!(loaded.cut.is_none(), "the recording is cut off: {:?}", loaded.cut);
        begin_at_mark(loaded.trace)
    }
}

fn begin_at_mark(mut trace: Trace) -> Result<Trace> {
    let begun = |call: &Call| matches!(call, Call::Mark { text } if text == BEGUN);
    let at = trace.events.iter().position(|e| begun(&e.call)).context("the workload never began")?;
    trace.events[at].call = Call::Baseline;
    Ok(trace)
}
