//! `kedge umount`: unmounts, and returns when everything is on the device.
//!
//! umount(8) on a plain fuse mount returns as soon as the kernel has detached it, while the serving
//! process still writes its last checkpoint. So this command finds that process first, unmounts,
//! waits until the process ends, and reads the superblock that it has written.
//!
//! Before that it writes the kernel's page cache with syncfs(2): unmounting writes it too, but does
//! not report a failure. The superblock records data that the server could not write.
//!
//! # A host without space
//! If the file system that holds the image file is full, a mount keeps accepted bytes in memory,
//! and its end would lose them. So this command then refuses to unmount and reports how much space
//! is missing; `--force` drops the bytes. A serving process ends in any case: it waits some seconds
//! for space, first for the data, then for the last checkpoint, and ends.

use anyhow::{Context, Result, anyhow, bail};
use kedge_fuse::{MountEntry, MountError};
use kedge_host::image;
use kedge_host::text::show_size;
use kedge_host::{engine, key, mounts, users};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Unmount even if the host of the image has no space for data that was written; that data is
    /// lost
    #[arg(short, long)]
    force: bool,
    /// The mount point
    dir: PathBuf,
}

/// The interval of the checks whether a process that still runs has released the image.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// After this number of checks a message says why the command waits.
const TELL_AFTER: u64 = 100;
/// The number of checks until a plain mount, which receives no sync(2), has noticed that its host
/// is full.
const FULL_CHECKS: u32 = 30;
const FULL_PAUSE: Duration = Duration::from_millis(100);

pub fn run(args: Args) -> Result<ExitCode> {
    let dir = mounts::resolve(&args.dir)?;
    let Some(mount) = mounts::at(&dir)? else { bail!("{} is not a mount point", args.dir.display()) };
    if !mount.is_kedgefs() {
        bail!("{} is a mount of {}, not of KedgeFS", args.dir.display(), mount.kind);
    }
    if mount.is_foreign() {
        // The image and pid that a foreign mount reports are not trusted, so neither is read or
        // waited for.
        tracing::info!(
            "{}: a mount of user {:?}, whose process closes the image",
            dir.display(),
            mount.owner
        );
        engine::unmount(&dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    let image = mount.image();
    if mounts::is_dead(&dir)? {
        engine::detach(&dir)?;
        bail!(
            "{}: the serving process had died; {} was not closed, its next mount replays the log",
            args.dir.display(),
            image.display()
        );
    }
    let server = server(&dir)?;
    let read_only = statvfs(&dir).is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::RDONLY));
    let before = before(&dir)?;
    let synced = sync(&dir);
    let others = kedge_fuse::other_mounts(&mount);
    let stuck = if read_only || !others.is_empty() { None } else { stuck(&dir, &image)? };
    if let Some(stuck) = stuck.as_ref().filter(|_| !args.force) {
        bail!("{} is not unmounted: {}", args.dir.display(), stuck.refusal(&args.dir, &image));
    }
    unmount(&dir)?;
    match others.first() {
        Some(other) => tracing::info!("{} stays mounted on {}", image.display(), other.dir.display()),
        None => {
            let end = wait_for_end(&server, &mount);
            end.with_context(|| unseen(&args.dir))?;
            check_closed(&args.dir, &image, read_only, &before, stuck.as_ref())?;
        }
    }
    // Report this even if the image is clean: another host may have taken the image over and closed
    // it.
    if let Some(why) = before.shut_down {
        bail!("{}: unmounted, but the file system had shut down: {why}", args.dir.display());
    }
    synced.with_context(|| {
        format!("{}: unmounted, but data that was written to it could not be kept", args.dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The message if the image cannot be read, for example because it was deleted or renamed while
/// mounted.
fn unseen(dir: &Path) -> String {
    format!("{}: unmounted, but how its image was closed cannot be seen", dir.display())
}

/// Ends the mount. If it is in use, the error names the users.
fn unmount(dir: &Path) -> Result<()> {
    engine::unmount(dir).map_err(|e| match e.downcast_ref::<MountError>() {
        Some(MountError::Busy(_)) => match &users::of(dir)[..] {
            [] => e.context("no process that this user may inspect has anything open there"),
            found => anyhow!("{e} by {}", found.join("; by ")),
        },
        _ => e,
    })
}

/// Checks in the image how it was closed.
fn check_closed(
    dir: &Path,
    image: &Path,
    read_only: bool,
    before: &Before,
    stuck: Option<&Stuck>,
) -> Result<()> {
    let shown = image.display();
    let mut wrong = Vec::new();
    if !read_only && !is_clean(image).with_context(|| unseen(dir))? {
        let why = match (&before.shut_down, stuck) {
            (Some(why), _) => format!("; the file system had shut down: {why}"),
            (None, Some(_)) => "; there is no space for the last checkpoint".into(),
            (None, None) => String::new(),
        };
        wrong.push(format!("{shown} was not closed cleanly{why}; its next mount replays the log"));
    }
    let lost = key::losses(image).map_or(0, |losses| losses.files).saturating_sub(before.lost_files);
    if lost > 0 {
        let most = stuck.map_or(String::new(), |stuck| format!(" ({} at most)", show_size(stuck.bytes)));
        wrong.push(format!("the data of {lost} files could not be written to {shown} and is lost{most}"));
    }
    if !wrong.is_empty() {
        bail!("{}: unmounted, but {}", dir.display(), wrong.join("; "));
    }
    Ok(())
}

/// Data that a mount has accepted and for which the image's host has no space.
struct Stuck {
    bytes: u64,
    files: u64,
    /// Bytes that must still be written, including the last checkpoint.
    needed: u64,
    free: u64,
}

impl Stuck {
    fn refusal(&self, dir: &Path, image: &Path) -> String {
        format!(
            "{} of {} files do not fit on the file system that holds {}: {} are free, {} more are needed. Make room there, \
             or delete files in {}; kedge umount --force gives that data up",
            show_size(self.bytes),
            self.files,
            image.display(),
            show_size(self.free),
            show_size(self.needed.saturating_sub(self.free)),
            dir.display()
        )
    }
}

/// The data for which the image's host has no space. The kernel has just written its cache, and on
/// a mount through a block device the serving process has written its dirty data too. So data that
/// is still dirty found the host full. A plain mount may need up to [`FULL_CHECKS`] checks to
/// notice that.
fn stuck(dir: &Path, image: &Path) -> Result<Option<Stuck>> {
    for _ in 0..FULL_CHECKS {
        let Some(free) = engine::host_free(image) else { return Ok(None) };
        let stats = mount_json(dir, mounts::XATTR_STATS)?;
        let cache = |name: &str| stats["cache"][name].as_u64().unwrap_or(0);
        let dirty = cache("dirty_pages").saturating_mul(kedge_base::BLOCK_SIZE as u64);
        let info = mount_json(dir, mounts::XATTR_INFO)?;
        let full = &info["host_full"];
        let of_host = |name: &str| full[name].as_u64().unwrap_or(0);
        let needed = dirty.saturating_add(cache("tree_dirty_bytes")).saturating_add(of_host("spare_bytes"));
        if dirty == 0 || free >= needed || info["shut_down"].is_string() {
            return Ok(None);
        }
        if !full.is_null() {
            let (bytes, files) = (of_host("unwritten_bytes"), of_host("unwritten_files"));
            return Ok((bytes > 0).then_some(Stuck { bytes, files, needed, free }));
        }
        kedge_base::pause(FULL_PAUSE);
    }
    Ok(None)
}

/// The state that the mount reports. It is not read from the image, because an NBD server may
/// accept only one client, and another host may own an RBD image already.
struct Before {
    /// Files whose data earlier unmounts have lost.
    lost_files: u64,
    /// The reason of a shutdown of the file system, if there was one.
    shut_down: Option<String>,
}

fn mount_json(dir: &Path, name: &str) -> Result<serde_json::Value> {
    let text = mounts::attribute(dir, name)?;
    serde_json::from_str(&text).with_context(|| format!("read the state of {}", dir.display()))
}

fn before(dir: &Path) -> Result<Before> {
    let info = mount_json(dir, mounts::XATTR_INFO)?;
    let shut_down = info["shut_down"].as_str().map(str::to_owned);
    Ok(Before { lost_files: info["lost_files"].as_u64().unwrap_or(0), shut_down })
}

/// Makes the kernel write its cache. The call also returns the error of an earlier writeback, even
/// if an fsync has reported it to a program. This process cannot see whether it was reported, and
/// an unreported error must not get lost. The descriptor must be closed before the unmount.
fn sync(dir: &Path) -> Result<()> {
    let root = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    Ok(rustix::fs::syncfs(root)?)
}

/// Returns a pidfd of the process that serves a mount. It is opened while that process still
/// serves, so the pid cannot have been reused.
fn server(dir: &Path) -> Result<OwnedFd> {
    let text = mounts::attribute(dir, mounts::XATTR_PID)?;
    let pid =
        text.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("'{text}' is no process"))?;
    pidfd_open(pid, PidfdFlags::empty())
        .with_context(|| format!("find process {pid:?} that serves {}", dir.display()))
}

/// Waits until the process has ended or has released the image. One process may serve several
/// mounts and then goes on.
fn wait_for_end(server: &OwnedFd, mount: &MountEntry) -> Result<()> {
    let image = &mount.image();
    let mut waited = 0u64;
    loop {
        if waited == TELL_AFTER {
            let why = match users::elsewhere(mount) {
                Some(process) => format!("it is still mounted in the mount namespace of {process}"),
                None => "it writes the remaining data".into(),
            };
            eprintln!("kedge: waiting for the process that serves {} to close it: {why}", image.display());
        }
        waited += 1;
        let mut fds = [PollFd::new(server, PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK_AGAIN)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(e).context("wait for the serving process"),
        }
        // The caller then checks whether the image was closed cleanly.
        if is_unlocked(image)? {
            return Ok(());
        }
    }
}

fn is_clean(image: &Path) -> Result<bool> {
    if key::header_of(image)?.is_some() && !key::is_given() {
        let shown = image.display();
        eprintln!(
            "kedge: {shown} is encrypted: without its key it is not known here whether it was closed \
             cleanly (kedge info --key-file FILE {shown} says it)"
        );
        return Ok(true);
    }
    Ok(key::image(image)?.superblock()?.checkpoint.clean)
}

fn is_unlocked(image: &Path) -> Result<bool> {
    Ok(kedge_device::is_unlocked(&image::locate(image)?)?)
}
