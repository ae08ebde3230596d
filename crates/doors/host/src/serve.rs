//! Serves one mount: opens the image, attaches it, and returns when the mount has ended and the
//! image is closed.

use crate::engine::{self, Extra, Opened};
use crate::options::MountWords;
use crate::os::{self, TerminationSignals};
use crate::{memory, stderr, syslog};
use anyhow::{Context, Result};
use kedge_fuse::keep::Life;
use kedge_fuse::{MountPoint, MountedSession, OneTree};
use kedgefs::{FileSystem, Ino};
use rustix::fd::OwnedFd;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Ends a service that [`Offer`] has begun. Afterwards the service does not use the file system.
pub type Stop = Box<dyn FnOnce() + Send>;
/// Begins an additional service of a mount, besides the kernel's requests.
pub type Offer = fn(&FileSystem, &mut MountedSession) -> Stop;

/// Begins a service that changes the file system beside the kernel. An error fails the mount,
/// before it is reported.
pub type Beside<'a> = &'a dyn Fn(&FileSystem, &MountedSession) -> Result<Stop>;

/// A mount to be served. `beside` needs [`Extra::shared`].
pub struct Mount<'a> {
    pub image: &'a Path,
    pub dir: &'a Path,
    pub words: &'a MountWords,
    pub extra: Extra,
    pub offer: Offer,
    pub beside: Option<Beside<'a>>,
}

/// Opens and mounts an image, calls `live`, and serves until the mount has ended. Closes the image
/// even after an error.
pub fn in_foreground(mount: &Mount<'_>, live: impl FnOnce() -> Result<()>) -> Result<()> {
    serve_with(mount, mount.extra.clone(), engine::mount, live)
}

/// Like [`in_foreground`], for a mount that a keeper has made. `file` is the image's file; it is
/// closed when the image is open.
pub(crate) fn in_foreground_kept(
    mount: &Mount<'_>,
    connection: OwnedFd,
    life: Life,
    file: Option<OwnedFd>,
    live: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let extra = Extra { life: Some(life.clone()), file: file.map(Arc::new), ..mount.extra.clone() };
    let take_over = |opened: &Opened, image: &Path, dir: &Path, words: &MountWords| {
        engine::take_over(opened, (image, dir), words, connection, life)
    };
    serve_with(mount, extra, take_over, live)
}

fn serve_with(
    mount: &Mount<'_>,
    extra: Extra,
    make: impl FnOnce(&Opened, &Path, &Path, &MountWords) -> Result<MountedSession>,
    live: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Mount { image, dir, words, offer, beside, .. } = mount;
    let signals = TerminationSignals::block().context("block signals")?;
    // Set before the engine starts its threads, which inherit it.
    kedge_fuse::become_io_flusher();
    let mut words = (*words).clone();
    let is_kept = extra.life.is_some();
    let opened = engine::open(image, &mut words, extra)?;
    // Set only after the open: replaying a log allocates and frees the same memory repeatedly.
    os::give_large_buffers_back();
    if let Some(notice) = &opened.notice {
        stderr::warn(notice);
    }
    let fs = opened.fs.clone();
    let mut live = Some(live);
    let mut report = || live.take().map_or(Ok(()), |live| live());
    let session = make(&opened, image, dir, &words)
        .and_then(|session| attach(session, signals))
        .and_then(|session| Ok((Beginning::start(*beside, &fs, &session)?, session)));
    // A server with a keeper first makes changes again. The keeper counts a death in this work as
    // one before the server serves.
    let session = session.and_then(|begun| if is_kept { Ok(begun) } else { report().map(|()| begun) });
    drop(opened);
    let (beside, session) = match session {
        Ok((beside, session)) => (beside.begun(), session),
        Err(e) => {
            // The session has been dropped, which has ended the mount.
            if let Err(second) = fs.close() {
                tracing::error!("close {}: {second}", image.display());
            }
            return Err(e);
        }
    };
    // With a keeper there is no such service: its changes bypass the kernel, so they are not noted
    // in the keeper's memory.
    let offer: Offer = if is_kept { |_, _| Box::new(|| ()) } else { *offer };
    let report = || report().map_err(|e| io::Error::other(format!("{e:#}")));
    let closed = until_unmounted_with(session, fs, offer, beside, report)
        .with_context(|| format!("serve {}", dir.display()))?;
    // Standard error is /dev/null by now, unless it is a log file. So the error also goes to the
    // system's log.
    closed
        .with_context(|| format!("close {}", image.display()))
        .inspect_err(|e| syslog::error(&format!("{e:#}")))
}

/// A service beside the kernel, which ends if the mount fails.
struct Beginning(Option<Stop>);

impl Beginning {
    fn start(begin: Option<Beside<'_>>, fs: &FileSystem, session: &MountedSession) -> Result<Beginning> {
        Ok(Beginning(begin.map(|begin| begin(fs, session)).transpose()?))
    }

    fn begun(mut self) -> Option<Stop> {
        self.0.take()
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        if let Some(stop) = self.0.take() {
            stop();
        }
    }
}

/// Calls `live`, serves until the mount has ended, and closes the file system. The inner result is
/// that of the close.
pub fn until_unmounted(
    session: MountedSession,
    fs: FileSystem,
    offer: Offer,
    live: impl FnOnce() -> io::Result<()>,
) -> io::Result<kedgefs::Result<()>> {
    until_unmounted_with(session, fs, offer, None, live)
}

fn until_unmounted_with(
    mut session: MountedSession,
    fs: FileSystem,
    offer: Offer,
    beside: Option<Stop>,
    live: impl FnOnce() -> io::Result<()>,
) -> io::Result<kedgefs::Result<()>> {
    let (to_close, stop) = (fs.clone(), offer(&fs, &mut session));
    let memory = memory::Watch::start(&fs);
    let close = move || {
        drop(memory);
        // The offered service may wait for a thaw, so freezes end first.
        let ended = to_close.end_freezes();
        if let Some(stop) = beside {
            stop();
        }
        stop();
        ended.and(to_close.close())
    };
    match session.root() {
        Ino::ROOT => session.resume_and_close(fs, live, close),
        root => session.resume_and_close(OneTree::new(fs, root), live, close),
    }
}

/// Makes termination signals unmount the session.
fn attach(session: MountedSession, signals: TerminationSignals) -> Result<MountedSession> {
    let mount = session.mount_point().clone();
    if let Some(weaker) = engine::plain_mount_notice(&mount) {
        stderr::warn(weaker);
    }
    // The thread is detached: it waits forever and ends with the process.
    kedge_base::spawn_named("signals", move || unmount_on_signal(&signals, &mount))
        .context("start a thread")?;
    Ok(session)
}

/// Unmounts at each termination signal, for as long as the process lives.
pub fn unmount_on_signal(signals: &TerminationSignals, mount: &MountPoint) {
    loop {
        match signals.wait() {
            Ok(signal) => tracing::info!("signal {signal}: unmounting"),
            Err(e) => return tracing::error!("cannot wait for signals: {e}"),
        }
        // A mount in use stays until the next signal.
        if let Err(e) = engine::patiently(|| mount.request_unmount()) {
            tracing::error!("cannot unmount: {e}");
        }
    }
}
