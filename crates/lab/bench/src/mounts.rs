//! The file systems to compare, newly made and mounted.

use crate::shell::Shell;
use anyhow::{Context, Result, bail, ensure};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Number of polls, and the pause between them, until a server has finished mounting.
const LOOKS: u32 = 500;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bytes of the log of the null file system: the smallest default log of an image.
const NULL_LOG: u64 = 32 << 20;

/// A mount. Drop unmounts it and removes its image.
pub struct Mounted<'a> {
    shell: &'a Shell,
    /// The name of the directory. The image is `NAME.img`.
    name: &'static str,
    unmount: &'static str,
    /// The command that mounts the file system; empty if this process serves it.
    mount: String,
    /// The server if it runs in the foreground. It ends with the mount.
    server: Option<Child>,
}

/// The commands that make and mount an image, exactly as they run.
pub fn kedge_lines(size: u64, written: bool) -> Vec<String> {
    let mut lines = vec![make_file("kedge", size, written)];
    lines.extend(["kedge mkfs kedge.img", "mkdir kedge", "kedge mount kedge.img kedge"].map(String::from));
    lines
}

/// [`kedge_lines`] with requests through rings.
pub fn rings_lines(size: u64) -> Vec<String> {
    let mut lines = vec![make_file("rings", size, true)];
    let commands =
        ["kedge mkfs rings.img", "mkdir rings", "kedge mount -o transport=io_uring rings.img rings"];
    lines.extend(commands.map(String::from));
    lines
}

/// [`kedge_lines`] with an earlier version's program.
pub fn before_lines(size: u64) -> Vec<String> {
    let mut lines = vec![make_file("before", size, true)];
    let commands = ["kedge-before mkfs before.img", "mkdir before", "kedge-before mount before.img before"];
    lines.extend(commands.map(String::from));
    lines
}

/// The two `lazy` options move work of the first minutes into mkfs, where it does not disturb the
/// measurement. `nodiscard` keeps written blocks allocated.
pub fn ext4_lines(size: u64, written: bool) -> Vec<String> {
    let extended = if written {
        "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
    } else {
        "lazy_itable_init=0,lazy_journal_init=0"
    };
    vec![
        make_file("ext4", size, written),
        format!("mkfs.ext4 -q -F -E {extended} ext4.img"),
        "mkdir ext4".into(),
        "mount -o loop ext4.img ext4".into(),
    ]
}

/// ext4 with fast commits: it may write a small commit to its journal as a few blocks instead of a
/// whole transaction.
pub fn ext4_fast_lines(size: u64) -> Vec<String> {
    vec![
        make_file("ext4-fast", size, true),
        "mkfs.ext4 -q -F -O fast_commit -E lazy_itable_init=0,lazy_journal_init=0,nodiscard ext4-fast.img"
            .into(),
        "mkdir ext4-fast".into(),
        "mount -o loop ext4-fast.img ext4-fast".into(),
    ]
}

/// All other options have their defaults, including the size of the log.
pub fn xfs_lines(size: u64, written: bool) -> Vec<String> {
    let discard = if written { " -K" } else { "" };
    vec![
        make_file("xfs", size, written),
        format!("mkfs.xfs -q -f{discard} xfs.img"),
        "mkdir xfs".into(),
        "mount -o loop xfs.img xfs".into(),
    ]
}

pub fn btrfs_lines(size: u64, written: bool) -> Vec<String> {
    let discard = if written { " -K" } else { "" };
    vec![
        make_file("btrfs", size, written),
        format!("mkfs.btrfs -q -f{discard} btrfs.img"),
        "mkdir btrfs".into(),
        "mount -o loop btrfs.img btrfs".into(),
    ]
}

pub fn tmpfs_lines() -> Vec<String> {
    vec!["mkdir tmpfs".into(), "mount -t tmpfs tmpfs tmpfs".into()]
}

/// fuse2fs, which serves ext4 in user space. Its image is also written full.
pub fn fuse2fs_lines(size: u64) -> Vec<String> {
    vec![
        make_file("fuse2fs", size, true),
        "mkfs.ext4 -q -F -E nodiscard fuse2fs.img".into(),
        "mkdir fuse2fs".into(),
        "fuse2fs -o rw,allow_other fuse2fs.img fuse2fs".into(),
    ]
}

/// redoxfs, the file system of Redox OS, in user space.
pub fn redoxfs_lines(size: u64) -> Vec<String> {
    vec![
        make_file("redoxfs", size, true),
        "redoxfs-mkfs redoxfs.img".into(),
        "mkdir redoxfs".into(),
        "redoxfs redoxfs.img redoxfs".into(),
    ]
}

/// Returns the path of the file system that keeps no data, which `cargo build` puts next to
/// `kedge`. The error says how to build it.
pub fn null_program(kedge: &Path) -> std::result::Result<PathBuf, String> {
    let program = kedge.with_file_name("examples").join("null");
    if program.is_file() {
        return Ok(program);
    }
    let build = "build it with `cargo build --release -p kedge-fuse --example null`";
    Err(format!("{} does not exist: {build}", program.display()))
}

/// Commands of the null file system. The last one runs in the background.
pub fn null_lines() -> Vec<String> {
    vec!["mkdir null".into(), "null null".into()]
}

/// [`null_lines`] with a durable write to a log for each fsync.
pub fn null_log_lines() -> Vec<String> {
    vec![make_file("null-log", NULL_LOG, true), "mkdir null-log".into(), "null null-log null-log.img".into()]
}

pub fn make_file(name: &str, size: u64, written: bool) -> String {
    match written {
        false => format!("truncate -s {size} {name}.img"),
        true => format!("dd if=/dev/zero of={name}.img bs=1M count={} conv=fsync status=none", size >> 20),
    }
}

impl<'a> Mounted<'a> {
    pub fn kedge(shell: &'a Shell, size: u64, written: bool) -> Result<Mounted<'a>> {
        Mounted::make(shell, "kedge", "kedge umount kedge", &kedge_lines(size, written))
    }

    pub fn rings(shell: &'a Shell, size: u64) -> Result<Mounted<'a>> {
        Mounted::make(shell, "rings", "kedge umount rings", &rings_lines(size))
    }

    pub fn before(shell: &'a Shell, size: u64) -> Result<Mounted<'a>> {
        Mounted::make(shell, "before", "kedge-before umount before", &before_lines(size))
    }

    pub fn ext4(shell: &'a Shell, size: u64, written: bool) -> Result<Mounted<'a>> {
        Mounted::make(shell, "ext4", "umount ext4", &ext4_lines(size, written))
    }

    pub fn ext4_fast(shell: &'a Shell, size: u64) -> Result<Mounted<'a>> {
        Mounted::make(shell, "ext4-fast", "umount ext4-fast", &ext4_fast_lines(size))
    }

    pub fn xfs(shell: &'a Shell, size: u64, written: bool) -> Result<Mounted<'a>> {
        Mounted::make(shell, "xfs", "umount xfs", &xfs_lines(size, written))
    }

    pub fn btrfs(shell: &'a Shell, size: u64, written: bool) -> Result<Mounted<'a>> {
        Mounted::make(shell, "btrfs", "umount btrfs", &btrfs_lines(size, written))
    }

    pub fn tmpfs(shell: &'a Shell) -> Result<Mounted<'a>> {
        Mounted::make(shell, "tmpfs", "umount tmpfs", &tmpfs_lines())
    }

    pub fn fuse2fs(shell: &'a Shell, size: u64) -> Result<Mounted<'a>> {
        Mounted::make(shell, "fuse2fs", "umount fuse2fs", &fuse2fs_lines(size))
    }

    pub fn redoxfs(shell: &'a Shell, size: u64) -> Result<Mounted<'a>> {
        Mounted::make(shell, "redoxfs", "umount redoxfs", &redoxfs_lines(size))
    }

    /// Mounts the file system that keeps no data, served by `program` in the foreground.
    pub fn null(shell: &'a Shell, program: &Path) -> Result<Mounted<'a>> {
        Mounted::served(shell, "null", "umount null", &null_lines(), program)
    }

    pub fn null_log(shell: &'a Shell, program: &Path) -> Result<Mounted<'a>> {
        Mounted::served(shell, "null-log", "umount null-log", &null_log_lines(), program)
    }

    /// Mounts a file system that `program` serves. The last line contains its arguments.
    fn served(
        shell: &'a Shell,
        name: &'static str,
        unmount: &'static str,
        lines: &[String],
        program: &Path,
    ) -> Result<Mounted<'a>> {
        let (last, first) = lines.split_last().context("no line starts the server")?;
        let mut mounted = Mounted::make(shell, name, unmount, first)?;
        let words: Vec<&str> = last.split(' ').skip(1).collect();
        let server = mounted.server.insert(shell.start(program, &words)?);
        for _ in 0..LOOKS {
            if let Some(status) = server.try_wait()? {
                bail!("{}: {status} before it mounted", program.display());
            }
            let parent = std::fs::metadata(&shell.dir)?.dev();
            if std::fs::metadata(shell.dir.join(name))?.dev() != parent {
                return Ok(mounted);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        bail!("{} has not mounted within {} s", program.display(), (LOOK_AGAIN * LOOKS).as_secs());
    }

    /// Makes and mounts KedgeFS with these commands, on the directory `kedge`.
    pub fn kedge_by(shell: &'a Shell, lines: &[String]) -> Result<Mounted<'a>> {
        Mounted::make(shell, "kedge", "kedge umount kedge", lines)
    }

    /// Makes and mounts a file system of the kernel with these commands, on the directory `name`.
    pub fn kernel_by(
        shell: &'a Shell,
        name: &'static str,
        unmount: &'static str,
        lines: &[String],
    ) -> Result<Mounted<'a>> {
        Mounted::make(shell, name, unmount, lines)
    }

    fn make(
        shell: &'a Shell,
        name: &'static str,
        unmount: &'static str,
        lines: &[String],
    ) -> Result<Mounted<'a>> {
        // The value exists before the first command runs, so that drop removes a half-made mount,
        // too.
        let mount = lines.last().cloned().unwrap_or_default();
        let mounted = Mounted { shell, name, unmount, mount, server: None };
        lines.iter().try_for_each(|line| shell.run(line).map(drop))?;
        Ok(mounted)
    }

    /// The name of the directory in commands.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn path(&self) -> PathBuf {
        self.shell.dir.join(self.name)
    }

    /// The process number of the server of a mount of KedgeFS.
    pub fn server(&self) -> Result<String> {
        let dir = self.path();
        for entry in std::fs::read_dir("/proc").context("read /proc")? {
            let entry = entry?;
            // A process may end meanwhile, and entries that are no processes have no such file.
            let Ok(words) = std::fs::read(entry.path().join("cmdline")) else { continue };
            if serves(&words, &dir) {
                return Ok(entry.file_name().to_string_lossy().into_owned());
            }
        }
        bail!("no process serves {}", dir.display())
    }

    /// The process that serves the mount; `None` if the kernel does.
    pub fn server_process(&self) -> Result<Option<u32>> {
        if let Some(child) = &self.server {
            return Ok(Some(child.id()));
        }
        match self.name {
            "kedge" | "rings" | "before" => {
                Ok(Some(self.server()?.parse().context("the number of a process")?))
            }
            "fuse2fs" | "redoxfs" => process_of(self.name).map(Some),
            _ => Ok(None),
        }
    }

    /// Makes an empty directory `NAME/work` and finishes earlier writeback.
    pub fn fresh(&self) -> Result<()> {
        let work = self.path().join("work");
        if work.try_exists().with_context(|| format!("look for {}", work.display()))? {
            std::fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
        }
        std::fs::create_dir(&work).with_context(|| format!("create {}", work.display()))?;
        self.settle()
    }

    /// Finishes writeback.
    pub fn settle(&self) -> Result<()> {
        self.shell.run(&format!("sync -f {}", self.name)).map(drop)
    }

    /// Unmounts, drops all caches of the kernel, and mounts again, so that nothing of the file
    /// system or its image is cached.
    pub fn remount_cold(&self) -> Result<()> {
        self.shell.run(self.unmount)?;
        // The server may still write to the image after its mount is gone.
        let image = self.shell.dir.join(format!("{}.img", self.name));
        let mut looks = 0..LOOKS;
        while is_open(&image)? {
            ensure!(looks.next().is_some(), "{} is still in use after its unmount", image.display());
            std::thread::sleep(LOOK_AGAIN);
        }
        drop_caches(self.shell)?;
        self.shell.run(&self.mount).map(drop)
    }

    /// Unmounts. The error of a failed unmount is a failure of the contestant.
    pub fn end(self) -> Result<()> {
        self.unmount()
    }

    /// Looks the mount up, since a mount command that was interrupted may have succeeded. A mount
    /// whose server is dead counts, too.
    fn is_mounted(&self) -> bool {
        let dir = self.path();
        let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev());
        match (device(&dir), device(&self.shell.dir)) {
            (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => false,
            (Ok(dir), Ok(parent)) => dir != parent,
            _ => true,
        }
    }

    fn unmount(&self) -> Result<()> {
        if !self.is_mounted() {
            return Ok(());
        }
        let first = self.shell.undo(self.unmount);
        if first.is_err() {
            // A command that cannot be killed keeps the mount busy. It is at least removed from the
            // tree.
            self.shell.undo(&format!("umount -l {}", self.name))?;
        }
        first.map(drop)
    }
}

/// The process that runs the program with this name.
fn process_of(program: &str) -> Result<u32> {
    for entry in std::fs::read_dir("/proc").context("read /proc")? {
        let entry = entry?;
        let Ok(name) = std::fs::read_to_string(entry.path().join("comm")) else { continue };
        if name.trim_end() == program
            && let Some(process) = entry.file_name().to_str().and_then(|number| number.parse().ok())
        {
            return Ok(process);
        }
    }
    bail!("no process called {program}")
}

/// Drops the kernel's caches, so that data is read from the device again. Needs root.
pub fn drop_caches(shell: &Shell) -> Result<()> {
    // Dirty pages cannot be dropped, so they are written first.
    shell.run("sync -f .")?;
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches")
}

/// Whether a process has the file open.
fn is_open(file: &Path) -> Result<bool> {
    for entry in std::fs::read_dir("/proc").context("read /proc")? {
        // A process may end meanwhile, and entries that are no processes have no such directory.
        let Ok(open) = std::fs::read_dir(entry?.path().join("fd")) else { continue };
        let links = open.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
        if links.into_iter().any(|link| link == file) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether these arguments, each followed by a zero byte, are those of the server that `kedge
/// mount` starts for the directory.
fn serves(words: &[u8], dir: &Path) -> bool {
    let words: Vec<&[u8]> = words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    words.contains(&b"--as-daemon".as_slice()) && words.last() == Some(&dir.as_os_str().as_bytes())
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(e) = self.unmount() {
            eprintln!("kedge-lab: {e:#}");
        }
        if let Some(server) = &mut self.server {
            self.shell.end_server(server);
        }
        let (dir, image) = (self.path(), self.shell.dir.join(format!("{}.img", self.name)));
        // The directory may not exist. In any case it is removed with the experiment's directory.
        let _ = std::fs::remove_dir(dir);
        let _ = std::fs::remove_file(image);
    }
}

#[cfg(test)]
#[path = "mounts_tests.rs"]
mod tests;
