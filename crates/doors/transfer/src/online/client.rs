//! The client: finds the socket that belongs to a mounted directory and sends an archive to it.

use super::{ANSWER_PATIENCE, Answer, CHUNK, DIRS_MAX, Hello, PATIENCE};
use crate::import::sink::{At, Data, Entries, Meta, is_roots};
use crate::offline::device;
use crate::pax::{Entry, Pax};
use anyhow::{Context, Result, anyhow, bail, ensure};
use kedge_base::printable;
use kedge_fuse::{MountEntry, Peer};
use kedge_host::mounts;
use kedgefs::FileKind;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, BufWriter, IoSlice, IsTerminal, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use tar::EntryType;

/// Limit for the bytes of a reply.
const ANSWER_MAX: u64 = 64 << 10;
const SHOW_EVERY: u64 = 256;

/// A directory of a mounted image.
#[derive(Debug)]
pub struct Mounted {
    /// Held open so that the mount cannot end.
    dir: OwnedFd,
    mount: MountEntry,
    /// The pid of the serving process in its own pid namespace.
    pid: u32,
}

impl Mounted {
    /// Opens a directory to copy into it. `None` if it is not on a KedgeFS mount made by root or
    /// this user, or if the mount is of an older version.
    pub fn open(path: &Path) -> Result<Option<Mounted>> {
        Mounted::open_for(path, "copy this way", "; use cp(1) or tar(1)", true)
    }

    /// [`Mounted::open`] for work that only root and the user serving the mount may do. The error
    /// says `what` this is, and what others can do `instead`.
    pub(super) fn open_for(path: &Path, what: &str, instead: &str, changes: bool) -> Result<Option<Mounted>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())
            .with_context(|| format!("open {}", path.display()))?;
        // Only the mount table comes from the kernel. Any user can run a server that returns
        // arbitrary attributes.
        let Some(mount) =
            kedge_fuse::mount_of(&dir).with_context(|| format!("find the mount of {}", path.display()))?
        else {
            return Ok(None);
        };
        if !mount.is_kedgefs() {
            return Ok(None);
        }
        let uid = rustix::process::geteuid().as_raw();
        ensure!(
            mount.owner == Some(uid),
            "{}: only root and the user who serves the mount {what}{instead}",
            path.display()
        );
        ensure!(!changes || !mount.is_read_only(), "{}: mounted read-only", path.display());
        // The serving process stores the ids as sent, because it does not see the mount's id
        // mapping.
        ensure!(!mount.is_idmapped(), "{}: the mount maps user and group ids{instead}", path.display());
        let mut pid = [0; 16];
        let len = match rustix::fs::fgetxattr(&dir, mounts::XATTR_PID, &mut pid[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP | Errno::NODATA) => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("ask the mount of {}", path.display())),
        };
        let pid = String::from_utf8_lossy(&pid[..len]).parse();
        let pid = pid.with_context(|| format!("the number of the process that serves {}", path.display()))?;
        Ok(Some(Mounted { dir, mount, pid }))
    }

    /// The attributes of a name in the directory. A symbolic link is not followed.
    pub fn stat(&self, name: &[u8]) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("find {}", String::from_utf8_lossy(name))),
        }
    }

    /// The open directory.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Whether both directories are in one file system.
    pub(super) fn is_beside(&self, other: &Mounted) -> bool {
        self.mount.device == other.mount.device
    }

    /// Connects to the process that serves the mount and refuses any other process.
    fn connect(&self, hello: Hello) -> Result<UnixStream> {
        let stream = kedge_fuse::visit(&self.mount, PATIENCE).with_context(|| {
            let dir = self.mount.dir.display();
            format!(
                "reach the process that serves {dir} at its socket (it must see the same /run as this \
                 one){}",
                if hello == Hello::Copy { "; cp(1) and tar(1) do without" } else { "" }
            )
        })?;
        let peer = Peer::of(&stream).context("identify the process that serves the mount")?;
        ensure!(
            Some(peer.ids().0) == self.mount.owner && peer.own_number() == Some(self.pid),
            "a process of uid {} listens in place of the process that serves the mount: nothing is sent to it",
            peer.ids().0
        );
        Ok(stream)
    }

    /// Connects, sends the first line and the directories, and waits until the server is ready.
    pub(super) fn begin(&self, hello: Hello, second: Option<&Mounted>) -> Result<UnixStream> {
        let stream = self.connect(hello)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DIRS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = [Some(self), second].into_iter().flatten().map(Mounted::dir).collect();
        ensure!(control.push(SendAncillaryMessage::ScmRights(&fds)), "two descriptors have room");
        let line = hello.line();
        let sent = sendmsg(&stream, &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL);
        let sent = sent.context("send the directory")?;
        ensure!(sent == line.len(), "the first line was sent only in part");
        stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
        read_answer(&stream).context("wait for the serving process")?.accept()?;
        // The peer is identified now, so the archive has no time limit: the device may be slow.
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(stream)
    }

    /// Sends the archive that `write` writes, and waits until all files are made, and durable
    /// unless the mount is `volatile`.
    pub fn send(&self, write: impl FnOnce(&mut BufWriter<&UnixStream>) -> Result<()>) -> Result<()> {
        let stream = self.begin(Hello::Copy, None)?;
        deliver(&stream, "copy", write)?.accept()
    }

    /// Sends an existing archive.
    pub fn send_archive(&self, mut archive: impl Read) -> Result<()> {
        self.send(|out| {
            let mut buf = vec![0; CHUNK];
            loop {
                match archive.read(&mut buf).context("read the archive")? {
                    0 => return Ok(()),
                    n => out.write_all(&buf[..n])?,
                }
            }
        })
    }
}

/// Sends what `write` writes and returns the reply, an error of the server included.
pub(super) fn deliver<'a>(
    stream: &'a UnixStream,
    what: &str,
    write: impl FnOnce(&mut BufWriter<&'a UnixStream>) -> Result<()>,
) -> Result<Answer> {
    let mut out = BufWriter::with_capacity(CHUNK, stream);
    let sent = write(&mut out).and_then(|()| Ok(out.flush()?));
    // After an error the rest of the buffer must not be sent: what was sent could look complete.
    drop(out.into_parts());
    if let Err(e) = &sent
        && !is_broken_pipe(e)
    {
        return sent.map(|()| Answer::default());
    }
    // The server may have stopped reading; its reply has the reason.
    let ended = stream.shutdown(Shutdown::Write);
    match read_answer(stream) {
        Ok(answer) if answer.error.is_some() => Ok(answer),
        Ok(answer) => {
            ended.context("end what is sent")?;
            sent.map(|()| answer)
        }
        Err(_) => Err(ended_during(what)),
    }
}

/// The error for a connection that ended without a reply.
pub(super) fn ended_during(what: &str) -> anyhow::Error {
    anyhow!("the process that serves the mount ended during the {what}")
}

/// Reads the reply. The server sends nothing more until the client sends.
fn read_answer(stream: &UnixStream) -> Result<Answer> {
    read_answer_of(&mut BufReader::new(stream))
}

/// Reads a reply from the rest of a connection.
pub(super) fn read_answer_of(stream: &mut impl BufRead) -> Result<Answer> {
    let mut line = String::new();
    stream.take(ANSWER_MAX).read_line(&mut line)?;
    serde_json::from_str(&line).context("read the reply")
}

impl Answer {
    /// Converts the server's error into an error of the client.
    pub(super) fn accept(self) -> Result<()> {
        self.error.map_or(Ok(()), |error| bail!("{error}"))
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    let io = e.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|e| matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset))
}

/// Writes the entries of a source into an archive.
pub struct Archive<W> {
    out: Pax<W>,
    /// Prepended to each path; ends with a slash.
    prefix: Vec<u8>,
    /// If not set, attributes that only root sets are left out.
    is_root: bool,
    /// Sockets, which tar cannot store.
    left_out: BTreeSet<Rc<[u8]>>,
    entries: u64,
    shows: bool,
}

impl<W: Write> Archive<W> {
    /// `name` is the name of the copied directory in the target; without it the contents go into
    /// the target itself.
    pub fn new(out: W, name: Option<&[u8]>) -> Archive<W> {
        let prefix = name.map_or(b"./".to_vec(), |name| [b"./", name, b"/"].concat());
        let (is_root, shows) = (rustix::process::geteuid().is_root(), std::io::stderr().is_terminal());
        Archive { out: Pax::new(out), prefix, is_root, left_out: BTreeSet::new(), entries: 0, shows }
    }

    pub fn end(self) -> Result<()> {
        if self.shows && self.entries >= SHOW_EVERY {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        self.out.end().map(drop)
    }

    fn path(&self, path: &[u8]) -> Rc<[u8]> {
        [&self.prefix[..], path].concat().into()
    }

    fn meta(&self, path: &[u8], meta: &Meta) -> Meta {
        let mut meta = meta.clone();
        let before = meta.xattrs.len();
        meta.xattrs.retain(|(name, _)| self.is_root || !is_roots(name));
        if meta.xattrs.len() < before {
            let path = printable(&String::from_utf8_lossy(path));
            eprintln!("kedge: warning: {path}: attributes that only root can set are left out");
        }
        meta
    }

    fn add(&mut self, kind: EntryType, path: Rc<[u8]>, meta: &Meta, target: &[u8]) -> Result<Rc<[u8]>> {
        let meta = self.meta(&path, meta);
        self.out.entry(&Entry { kind, path: &path, meta: &meta, target, device: None })?;
        self.note();
        Ok(path)
    }

    fn note(&mut self) {
        self.entries += 1;
        if self.shows && self.entries.is_multiple_of(SHOW_EVERY) {
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(std::io::stderr(), "\r{} entries\x1b[K", self.entries);
        }
    }
}

impl<W: Write> Entries for Archive<W> {
    /// The file's path in the archive.
    type Id = Rc<[u8]>;

    fn top(&self) -> Rc<[u8]> {
        self.prefix.clone().into()
    }

    fn root(&mut self, meta: &Meta) -> Result<()> {
        let path = self.prefix[..self.prefix.len() - 1].into();
        self.add(EntryType::Directory, path, meta, b"").map(drop)
    }

    fn directory(&mut self, at: At<'_, Rc<[u8]>>, meta: &Meta) -> Result<Rc<[u8]>> {
        self.add(EntryType::Directory, self.path(at.path), meta, b"")
    }

    fn file(&mut self, at: At<'_, Rc<[u8]>>, meta: &Meta, data: Data<'_>) -> Result<Rc<[u8]>> {
        let path = self.path(at.path);
        let meta = self.meta(&path, meta);
        self.out.file(&path, &meta, data).with_context(|| String::from_utf8_lossy(at.path).into_owned())?;
        self.note();
        Ok(path)
    }

    fn symlink(&mut self, at: At<'_, Rc<[u8]>>, target: &[u8], meta: &Meta) -> Result<Rc<[u8]>> {
        self.add(EntryType::Symlink, self.path(at.path), meta, target)
    }

    fn node(&mut self, at: At<'_, Rc<[u8]>>, kind: FileKind, rdev: u64, meta: &Meta) -> Result<Rc<[u8]>> {
        let path = self.path(at.path);
        let kind = match kind {
            FileKind::CharDevice => EntryType::Char,
            FileKind::BlockDevice => EntryType::Block,
            FileKind::Fifo => EntryType::Fifo,
            _ => {
                eprintln!(
                    "kedge: warning: {}: a socket, left out",
                    printable(&String::from_utf8_lossy(at.path))
                );
                self.left_out.insert(path.clone());
                return Ok(path);
            }
        };
        let (major, minor) = device(rdev);
        let device = (kind != EntryType::Fifo).then_some((major as u32, minor as u32));
        let meta = self.meta(&path, meta);
        self.out.entry(&Entry { kind, path: &path, meta: &meta, target: b"", device })?;
        self.note();
        Ok(path)
    }

    fn link(&mut self, file: Rc<[u8]>, at: At<'_, Rc<[u8]>>) -> Result<()> {
        if self.left_out.contains(&file) {
            eprintln!("kedge: warning: {}: a socket, left out", printable(&String::from_utf8_lossy(at.path)));
            return Ok(());
        }
        self.add(EntryType::Link, self.path(at.path), &Meta::default(), &file).map(drop)
    }
}
