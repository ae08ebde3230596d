//! Opens, mounts and checks images: the interface to the engine for programs.

use crate::clock::{self, DistinctClock};
use crate::image::{check_kind, is_uri, locate};
use crate::options::MountWords;
use crate::text::show_size;
use crate::usage::Usage;
use crate::{courier, handover, key, memory, os, waits};
use anyhow::{Context, Result, bail};
use kedge_base::{Clock, SystemClock};
use kedge_device::crypt::{CRYPT_AREA, CryptHeader};
use kedge_device::sim::{ScriptedDevice, VolatileDevice};
use kedge_device::{Device, FileDevice, Location, OpenOptions, WatchedDevice};
use kedge_fsck::{CheckOptions, Progress, RepairMode, RepairOptions, StoreReplay};
use kedge_fuse::keep::Life;
use kedge_fuse::{FuseOptions, MountError, MountPoint, MountedSession};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, SharedBudget, Switches, TreeInfo};
use rustix::fd::OwnedFd;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The commit interval of a plain mount. The kernel does not pass sync(2) on to such a mount, so a
/// crash after `sync` can lose changes younger than this interval. So it is shorter than on other
/// mounts.
const COMMIT_PLAIN: Duration = Duration::from_secs(1);

/// How long an image may be locked before it counts as in use. After umount(8) of an unprivileged
/// mount the process that served it still holds the lock, until it has written the last checkpoint.
/// An image in the mount table is refused immediately.
const LOCK_WAIT: Duration = Duration::from_secs(15);
/// Limit for the bytes of the log that a server with a keeper uses, even if the image's log is
/// larger: programs wait while the next server reads the log.
const KEPT_LOG_MAX: u64 = 64 << 20;
/// With less free space than this, in bytes, the host of an image counts as full.
const HOST_FREE_MIN: u64 = 4 << 20;
/// Attempts to unmount: a lookup in progress, by udev or by a desktop that opens new mounts, keeps
/// the mount busy for a moment.
const UNMOUNT_ATTEMPTS: u32 = 40;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn device_options(read_only: bool) -> OpenOptions {
    OpenOptions { read_only, lock_wait: LOCK_WAIT, ..OpenOptions::default() }
}

/// The bytes that an image needs in addition to its file system, for encryption.
pub fn overhead(encrypt: bool) -> u64 {
    if encrypt { CRYPT_AREA } else { 0 }
}

/// Formats the file, device or export at `named`, which is open as `device`. With `encrypt` the
/// image is encrypted. Returns the decrypted device.
pub fn format(
    named: &Path,
    device: Arc<dyn Device>,
    options: &FormatOptions,
    encrypt: bool,
) -> Result<Arc<dyn Device>> {
    let formatted = || {
        let device = match encrypt {
            true => key::encrypt(named, device)?,
            false => {
                if key::is_encrypted(&*device)? {
                    CryptHeader::erase(&*device)?;
                }
                device
            }
        };
        format_device(device, options)
    };
    formatted().with_context(|| format!("format {}", named.display()))
}

/// Makes an image with a file system of `size` bytes in an empty file, which the user knows as
/// `named`. With `encrypt` the file also has the encryption header. Returns the decrypted device.
pub fn create(
    named: &Path,
    file: OwnedFd,
    size: u64,
    options: &FormatOptions,
    encrypt: bool,
) -> Result<Arc<dyn Device>> {
    let device = FileDevice::on(file, named, Some(size + overhead(encrypt)), OpenOptions::default())?;
    match encrypt {
        true => format_device(key::encrypt(named, device)?, options),
        false => format_device(device, options),
    }
}

/// Formats a device. The root directory belongs to the user of this process: an unprivileged mount
/// is visible only to its user, and that user could not write to a directory of root.
fn format_device(device: Arc<dyn Device>, options: &FormatOptions) -> Result<Arc<dyn Device>> {
    let owner = Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    let options = FormatOptions { owner, ..options.clone() };
    FileSystem::format(device.clone(), clock::of(clock::source_date()?), &options)?;
    Ok(device)
}

/// Opens an image for reading. Its log is replayed in memory.
pub fn open_to_read(path: &Path) -> Result<FileSystem> {
    let device = open_device(path, true)?;
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    FileSystem::open(device, Arc::new(SystemClock::default()), options)
        .with_context(|| format!("open {}", path.display()))
}

/// Opens an image to change it without a mount.
pub fn open_to_change(path: &Path) -> Result<FileSystem> {
    let device = open_device(path, false)?;
    FileSystem::open(device, Arc::new(SystemClock::default()), MountOptions::default())
        .with_context(|| format!("open {}", path.display()))
}

/// The cache size of an image that is being filled, in bytes.
pub const FILL_CACHE: u64 = 256 << 20;

/// Opens a new image on its decrypted device to fill it. Only the caller's operations write to it:
/// there is no commit timer and no background checkpoint.
pub fn open_to_fill(device: Arc<dyn Device>, clock: Arc<dyn Clock>) -> Result<FileSystem> {
    let name = device.name().to_owned();
    let options = MountOptions {
        commit: Duration::from_secs(365 * 86_400),
        async_checkpoint: None,
        cache_size: FILL_CACHE,
        ..MountOptions::default()
    };
    FileSystem::open(device, clock, options).with_context(|| format!("open {name}"))
}

/// Parameters for opening an image, besides its mount options.
#[derive(Clone, Default)]
pub struct Extra {
    /// Overrides the mount option.
    pub cache_size: Option<u64>,
    /// Emulates a volatile device: writes that are not flushed are lost when this process ends.
    pub volatile: bool,
    /// A file that lists the device requests that shall fail.
    pub faults: Option<PathBuf>,
    /// Fences the holder of the image's lock, and takes the lock.
    pub takeover: bool,
    /// The keeper's state for this server, if there is a keeper. The keeper holds the lock on the
    /// image.
    pub life: Option<Life>,
    /// The image file that the keeper has locked. Its path may name another file by now.
    pub file: Option<Arc<OwnedFd>>,
    /// Whether clients other than the kernel of a mount change the file system. Each change then
    /// gets a time stamp of its own, and the kernel caches no names and attributes.
    pub shared: bool,
    /// A budget for dirty pages, shared with other images.
    pub shared_budget: Option<Arc<SharedBudget>>,
}

/// A file system that is opened but not yet mounted.
pub struct Opened {
    pub fs: FileSystem,
    device: Arc<WatchedDevice>,
    shared: bool,
    /// A warning for the user.
    pub notice: Option<String>,
}

/// Opens the file system of an image with the mount options. If the host lacks the space to replay
/// the log, opens it read-only instead, which writes nothing. Then `words` becomes read-only and
/// the result has a notice. For a server that replaces another one this is an error: it has to make
/// changes again.
pub fn open(path: &Path, words: &mut MountWords, extra: Extra) -> Result<Opened> {
    let replaces = extra.life.as_ref().is_some_and(Life::is_second);
    let refused = match open_as(path, words, extra.clone()) {
        Err(e) if !words.read_only && !replaces && is_host_full(&e) => e,
        opened => {
            key::forget();
            return opened;
        }
    };
    words.read_only = true;
    let opened = open_as(path, words, extra).with_context(|| format!("{refused:#}, and read-only"));
    key::forget();
    let opened = opened?;
    let free = host_free(path).map_or(String::new(), |bytes| format!(", {} are free", show_size(bytes)));
    let notice = format!(
        "{} is mounted read-only, with all that was made durable: the file system that it lies on has no space to \
         replay its log ({refused:#}{free}); make room there, unmount, and mount again",
        path.display()
    );
    Ok(Opened { notice: Some(notice), ..opened })
}

fn is_host_full(e: &anyhow::Error) -> bool {
    match e.downcast_ref::<kedgefs::Error>() {
        Some(kedgefs::Error::Engine(kedge_base::Error::Unplaced { why, .. })) => why.is_host_full(),
        Some(kedgefs::Error::Engine(e)) => e.is_host_full(),
        _ => false,
    }
}

/// Whether the cause of an error may pass by itself: the file system of the image has no space, or
/// the system lacks memory, threads or descriptors.
pub(crate) fn may_pass(e: &anyhow::Error, image: &Path) -> bool {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(e) = cause.downcast_ref::<kedgefs::Error>() {
            return os::may_pass(&io::Error::from_raw_os_error(e.errno()));
        }
        cause.downcast_ref::<io::Error>().is_some_and(os::may_pass)
            || os::io_error(cause).is_some_and(|e| os::may_pass(&e))
    };
    // On a full host the log may have failed, and then other calls fail with EIO.
    e.chain().any(of) || host_free(image).is_some_and(|free| free < HOST_FREE_MIN)
}

/// The free bytes of the file system that holds an image file; `None` if the image is not a file.
pub fn host_free(path: &Path) -> Option<u64> {
    let location = locate(path).ok()?;
    let path = location.host_path().filter(|path| path.is_file())?;
    let host = rustix::fs::statvfs(path).ok()?;
    Some(host.f_bavail.saturating_mul(host.f_frsize))
}

fn open_as(path: &Path, words: &MountWords, extra: Extra) -> Result<Opened> {
    let mut how = OpenOptions { takeover: extra.takeover, ..device_options(words.read_only) };
    if extra.life.is_some() {
        // Requests in an io_uring may outlive their process, and would race with writes of the next
        // server.
        (how.lock, how.io_uring) = (false, false);
    }
    let location = match &extra.file {
        None => check_kind(path).and_then(|()| locate(path))?,
        Some(file) => Location::Path(os::path_of(file)),
    };
    let mut device: Arc<dyn Device> = kedge_device::open(&location, how)?;
    if words.key_file.is_some() && !key::is_encrypted(&*device)? {
        bail!("{} is not encrypted, and mount option key-file names a key", path.display());
    }
    device = key::unlocked(path, device, words.key_file.as_deref())?;
    if extra.volatile {
        device = Arc::new(VolatileDevice::new(device));
    }
    if let Some(path) = extra.faults {
        device = Arc::new(ScriptedDevice::new(device, path));
    }
    let device = Arc::new(WatchedDevice::new(device, Arc::new(SystemClock::default())));
    let clock: Arc<dyn Clock> = match extra.shared {
        true => Arc::new(DistinctClock::new()),
        false => Arc::new(SystemClock::default()),
    };
    let shared_budget = extra.shared_budget;
    let mut options = MountOptions { read_only: words.read_only, shared_budget, ..MountOptions::default() };
    words.switches.apply(&mut options);
    options.dirty_tracking = words.dirty_tracking.unwrap_or_default();
    options.volatile = words.volatile;
    options.log_use_max = extra.life.as_ref().map(|_| KEPT_LOG_MAX);
    options.cache_size = extra.cache_size.or(words.cache_size).unwrap_or_else(memory::default_cache);
    if let Some(lock) = words.tree_lock {
        options.tree_lock = lock;
    }
    let fs = match extra.life.filter(Life::is_second) {
        None => FileSystem::open(device.clone(), clock, options),
        Some(life) => {
            let frozen = life.frozen().map(|frozen| frozen.since);
            FileSystem::open_again(device.clone(), clock, options, frozen, |end| {
                life.recovered(end);
                Ok(())
            })
        }
    };
    let fs = fs.with_context(|| format!("open {}", path.display()))?;
    let notice = (words.volatile && !words.read_only).then(|| volatile_notice(path));
    Ok(Opened { fs, device, shared: extra.shared, notice })
}

fn volatile_notice(path: &Path) -> String {
    format!(
        "{} is mounted volatile: fsync and sync make nothing durable; a crash, or the death of the serving process, \
         costs the work of the last seconds (commit=), also what programs have synced; only unmounting keeps all",
        path.display()
    )
}

/// Opens the device of an image only to hold its lock.
pub fn open_locked(path: &Path) -> Result<Arc<dyn Device>> {
    open_raw(path, false)
}

/// Opens the device of an image, decrypted if the image is encrypted.
pub fn open_device(path: &Path, read_only: bool) -> Result<Arc<dyn Device>> {
    key::unlocked(path, open_raw(path, read_only)?, None)
}

/// Opens the file, device or export that contains an image. An encrypted image is not decrypted.
pub fn open_raw(path: &Path, read_only: bool) -> Result<Arc<dyn Device>> {
    check_kind(path)?;
    Ok(kedge_device::open(&locate(path)?, device_options(read_only))?)
}

/// Attaches an opened image to a directory. Accesses there wait until the session is served.
pub fn mount(opened: &Opened, image: &Path, dir: &Path, words: &MountWords) -> Result<MountedSession> {
    let shown = words.tree.as_deref().map(|path| find_tree(&opened.fs, image, path)).transpose()?;
    let mut options = FuseOptions { shared: opened.shared, ..fuse_options(words) };
    options.read_only |= shown.as_ref().is_some_and(|tree| tree.read_only);
    let mut session = attach(image, dir, &options)?;
    if let Some(tree) = shown {
        session.show_tree(tree.root);
    }
    set_up(opened, session, words, || ())
}

/// Makes the session of a server that has a keeper, on the existing connection of its mount.
pub fn take_over(
    opened: &Opened,
    (image, dir): (&Path, &Path),
    words: &MountWords,
    connection: OwnedFd,
    life: Life,
) -> Result<MountedSession> {
    let (leave, releases) = (handover::leave(Arc::downgrade(&opened.device)), life.keeper_releases());
    let session = MountedSession::kept(connection, image, dir, fuse_options(words), life, leave)?;
    let (released, is_released) = channel();
    let report = move || {
        if releases {
            handover::report_closed(&is_released);
        }
    };
    let session = set_up(opened, session, words, report)?;
    handover::obey(&opened.fs, &session, released)?;
    Ok(session)
}

/// `closed` is called at the end of the mount, when this process has closed the device.
fn set_up(
    opened: &Opened,
    mut session: MountedSession,
    words: &MountWords,
    closed: impl FnOnce() + Send + 'static,
) -> Result<MountedSession> {
    if !session.mount_point().privileged && words.switches.commit.is_none() {
        opened.fs.remount(&Switches { commit: Some(COMMIT_PLAIN), ..Switches::default() })?;
    }
    // A weak reference, so that dropping the file system also drops the device, which releases the
    // lock on the image.
    let device = Arc::downgrade(&opened.device);
    session.report_device(Arc::new(move || {
        let pending = device.upgrade().map(|device| device.pending()).unwrap_or_default();
        waits::to_json(&pending)
    }));
    // After the close threads of the server may still refer to the device.
    let device = Arc::downgrade(&opened.device);
    session.release_with(move || {
        let Some(device) = device.upgrade() else { return closed() };
        match device.release().map(|()| device.pending().outstanding) {
            Ok(0) => closed(),
            Ok(requests) => tracing::warn!("the device stays open until {requests} requests end"),
            Err(e) => tracing::warn!("the device stays open until this process ends: {e}"),
        }
    });
    Ok(session)
}

/// Returns the tree at a path of the image.
pub fn find_tree(fs: &FileSystem, image: &Path, path: &str) -> Result<TreeInfo> {
    let refused = |why: &str| Usage(format!("mount option tree={path}: {why} of {}", image.display()));
    let mut here = Ino::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        here = match fs.lookup(here, name.as_bytes()) {
            Ok(_) if name == ".." => return Err(refused("'..' leads to no tree").into()),
            Ok(attr) => attr.ino,
            Err(kedgefs::Error::NotFound | kedgefs::Error::NotDirectory) => {
                return Err(refused("there is no such path in the trees").into());
            }
            Err(e) => return Err(e).with_context(|| format!("find tree {path} of {}", image.display())),
        };
    }
    let tree = fs.trees().into_iter().find(|tree| tree.root == here);
    Ok(tree.ok_or_else(|| refused("it is neither a fork nor a snapshot"))?)
}

/// Attaches an image to a directory; if a URI names it, as a remote image.
pub fn attach(image: &Path, dir: &Path, options: &FuseOptions) -> Result<MountedSession> {
    Ok(match is_uri(image)? {
        false => kedge_fuse::mount(image, dir, options)?,
        true => kedge_fuse::mount_remote(image, dir, options)?,
    })
}

/// Attaches the file system mounted at `from` to a second directory.
pub fn mount_again(from: &Path, dir: &Path, words: &MountWords) -> Result<()> {
    Ok(kedge_fuse::mount_again(from, dir, &fuse_options(words))?)
}

pub(crate) fn fuse_options(words: &MountWords) -> FuseOptions {
    let defaults = FuseOptions::default();
    FuseOptions {
        privileged: words.privileged,
        allow_other: words.allow_other.then_some(true),
        read_only: words.read_only,
        nosuid: words.nosuid,
        nodev: words.nodev,
        noexec: words.noexec,
        noatime: words.switches.noatime.unwrap_or(false),
        workers: words.workers,
        placement: words.placement.unwrap_or(defaults.placement),
        transport: words.transport.unwrap_or(defaults.transport),
        writeback_cache: words.writeback_cache.unwrap_or(defaults.writeback_cache),
        reflink: words.reflink.unwrap_or(defaults.reflink),
        tree: words.tree.clone(),
        courier: courier::offered(),
        ..defaults
    }
}

/// A warning for root if the mount is plain although the user did not ask for that.
pub fn plain_mount_notice(mount: &MountPoint) -> Option<String> {
    mount.why_plain.as_ref().map(|why| {
        format!(
            "{why}; so this is a plain fuse mount: sync(2) and syncfs(2) do not reach it (fsync does), umount(8) returns \
             before all is written (kedge umount waits), commit=1 holds unless commit= is given; -o fuse says that this is meant"
        )
    })
}

/// Ends a mount. Fails if the mount stays in use for some seconds.
pub fn unmount(dir: &Path) -> Result<()> {
    Ok(patiently(|| kedge_fuse::unmount(dir, false))?)
}

/// Detaches a mount even if it is in use or dead.
pub fn detach(dir: &Path) -> Result<()> {
    Ok(kedge_fuse::unmount(dir, true)?)
}

/// Calls `unmount`, and repeats it for some seconds while the mount is in use.
pub fn patiently(mut unmount: impl FnMut() -> Result<(), MountError>) -> Result<(), MountError> {
    for _ in 1..UNMOUNT_ATTEMPTS {
        match unmount() {
            Err(MountError::Busy(_)) => kedge_base::pause(UNMOUNT_PAUSE),
            outcome => return outcome,
        }
    }
    unmount()
}

/// The result of a check.
pub struct Checked {
    /// The report as text.
    pub text: String,
    pub json: serde_json::Value,
    /// The exit code of fsck(8).
    pub exit_code: u8,
}

/// A callback that reports the progress of a check.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Checks an image without writing to it. With `data` also verifies file data that has checksums.
pub fn check(path: &Path, data: bool, progress: Option<OnProgress>) -> Result<Checked> {
    let replay = Some(Arc::new(StoreReplay) as Arc<dyn kedge_fsck::Replay>);
    let options = CheckOptions { replay, data, progress, ..CheckOptions::default() };
    let report = kedge_fsck::check(open_device(path, true)?, &options);
    Ok(Checked {
        text: report.to_string(),
        json: serde_json::to_value(&report).context("write the report as JSON")?,
        exit_code: report.exit_code() as u8,
    })
}

/// Repairs an image, and holds its lock during the repair.
pub fn repair(path: &Path, mode: RepairMode, force: bool, progress: Option<OnProgress>) -> Result<Checked> {
    let check = CheckOptions { replay: Some(Arc::new(StoreReplay)), progress, ..CheckOptions::default() };
    let options = RepairOptions { check, force, ..RepairOptions::new(mode) };
    let report = kedge_fsck::repair(open_device(path, false)?, &options);
    Ok(Checked {
        text: report.to_string(),
        json: serde_json::to_value(&report).context("write the report as JSON")?,
        exit_code: report.exit_code as u8,
    })
}

/// Reads and verifies everything that has a checksum. With `mounted` the image is not locked,
/// because its mount holds the lock.
pub fn scrub(path: &Path, mounted: bool, progress: Option<OnProgress>) -> Result<Checked> {
    check_kind(path)?;
    let how = OpenOptions { lock: !mounted, ..device_options(true) };
    let device = key::unlocked(path, kedge_device::open(&locate(path)?, how)?, None)?;
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), progress, ..CheckOptions::default() };
    let report = kedge_fsck::scrub(&*device, &options, mounted);
    Ok(Checked {
        text: report.to_string(),
        json: serde_json::to_value(&report).context("write the report as JSON")?,
        exit_code: report.exit_code() as u8,
    })
}
