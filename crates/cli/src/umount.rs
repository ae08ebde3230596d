//! `kedge umount`: unmounts, and returns when everything is on the device.
//!
//! umount(8) on a plain fuse mount returns as soon as the kernel has detached it, while the serving
//! process still writes its last checkpoint. So this command finds that process first, unmounts,
//! waits for its end, and reads the superblock that it has written.
//!
//! Before that it writes the kernel's page cache with syncfs(2): unmounting writes it too, but does
//! not report a failure. The superblock records what the server could not write.

use crate::image::{self, Image};
use crate::{engine, mounts};
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// The mount point
    dir: PathBuf,
}

/// How often to check whether a process that lives on has released the image.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// After so many checks the user is told what is waited for.
const TELL_AFTER: u64 = 100;

pub fn run(args: Args) -> Result<ExitCode> {
    let dir = mounts::resolve(&args.dir)?;
    let Some(mount) = mounts::at(&dir)? else { bail!("{} is not a mount point", args.dir.display()) };
    if !mount.is_kedgefs() {
        bail!("{} is a mount of {}, not of KedgeFS", args.dir.display(), mount.kind);
    }
    if mount.is_foreign() {
        // What a foreign mount says about its image and its process is not trusted: nothing is read
        // and nothing is waited for.
        tracing::info!("{}: a mount of user {:?}, who closes the image", dir.display(), mount.owner);
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
    let others = kedge_fuse::mounts_beside(&mount);
    engine::unmount(&dir)?;
    match others.first() {
        Some(other) => tracing::info!("{} stays mounted on {}", image.display(), other.dir.display()),
        None => {
            let end = wait_for_end(&server, &image);
            end.with_context(|| unseen(&args.dir))?;
            check_closed(&args.dir, &image, read_only, &before)?;
        }
    }
    // The image may be clean all the same: another host has taken it over and closed it.
    if let Some(why) = before.shut_down {
        bail!("{}: unmounted, but the file system had shut down: {why}", args.dir.display());
    }
    synced.with_context(|| {
        format!("{}: unmounted, but data that was written to it could not be kept", args.dir.display())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The image was deleted or renamed while it was mounted, for example.
fn unseen(dir: &Path) -> String {
    format!("{}: unmounted, but how its image was closed cannot be seen", dir.display())
}

/// What the image says of its end.
fn check_closed(dir: &Path, image: &Path, read_only: bool, before: &Before) -> Result<()> {
    let shown = image.display();
    if !read_only && !is_clean(image).with_context(|| unseen(dir))? {
        let why = before.shut_down.as_ref();
        let why = why.map_or(String::new(), |why| format!("; the file system had shut down: {why}"));
        bail!(
            "{}: unmounted, but {shown} was not closed cleanly{why}; its next mount replays the log",
            dir.display()
        );
    }
    let lost = image::losses(image).map_or(0, |losses| losses.files).saturating_sub(before.lost_files);
    if lost > 0 {
        bail!(
            "{}: unmounted, but the data of {lost} files could not be written to {shown} and is lost",
            dir.display()
        );
    }
    Ok(())
}

/// What the mount says of itself. It is not read from the image: an NBD server may accept one
/// client only, and an RBD image may belong to another host by now.
struct Before {
    /// Files whose data earlier unmounts have lost.
    lost_files: u64,
    /// Why the file system has shut down.
    shut_down: Option<String>,
}

fn before(dir: &Path) -> Result<Before> {
    let text = mounts::attribute(dir, mounts::XATTR_INFO)?;
    let info: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("read what {} says of itself", dir.display()))?;
    let shut_down = info["shut_down"].as_str().map(str::to_owned);
    Ok(Before { lost_files: info["lost_files"].as_u64().unwrap_or(0), shut_down })
}

/// Makes the kernel write its cache. The call also returns the error of an earlier writeback, even
/// if an fsync has reported it to a program. Whether it was reported cannot be seen from here, and
/// an unreported error must not get lost. The descriptor must be closed before the unmount.
fn sync(dir: &Path) -> Result<()> {
    let root = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    Ok(rustix::fs::syncfs(root)?)
}

/// A handle on the process that serves a mount. Taken while it still serves, so its number cannot
/// mean another process.
fn server(dir: &Path) -> Result<OwnedFd> {
    let text = mounts::attribute(dir, mounts::XATTR_PID)?;
    let pid =
        text.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(|| anyhow!("'{text}' is no process"))?;
    pidfd_open(pid, PidfdFlags::empty())
        .with_context(|| format!("find process {pid:?} that serves {}", dir.display()))
}

/// Waits until the process is gone or has released the image: one process may serve several mounts.
fn wait_for_end(server: &OwnedFd, image: &Path) -> Result<()> {
    let mut waited = 0u64;
    loop {
        if waited == TELL_AFTER {
            eprintln!(
                "kedge: waiting for the process that serves {} to close it; another mount namespace (a container, a \
                 service) may still have it mounted",
                image.display()
            );
        }
        waited += 1;
        let mut fds = [PollFd::new(server, PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK_AGAIN)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(e).context("wait for the serving process"),
        }
        // The caller then checks whether it was closed cleanly.
        if is_unlocked(image)? {
            return Ok(());
        }
    }
}

fn is_clean(image: &Path) -> Result<bool> {
    Ok(Image::open(image)?.superblock()?.checkpoint.clean)
}

fn is_unlocked(image: &Path) -> Result<bool> {
    Ok(kedge_device::is_unlocked(&image::locate(image)?)?)
}
