//! The client: finds the socket of a mounted directory, and sends an archive to it.

use super::{Answer, CHUNK, HELLO};
use crate::import::sink::{At, Data, Entries, Meta, is_roots};
use crate::pax::{Entry, Pax};
use anyhow::{Context, Result, bail, ensure};
use kedge_base::printable;
use kedgefs::FileKind;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::rc::Rc;
use tar::EntryType;

const XATTR: &str = "system.kedgefs.beside";
const SHOW_EVERY: u64 = 256;

/// A directory of a mounted image.
#[derive(Debug)]
pub struct Mounted {
    /// Keeps the mount from being ended.
    dir: OwnedFd,
    ino: u64,
    socket: String,
}

impl Mounted {
    /// `None`: the directory is not on a KedgeFS mount, or on one of an older version.
    pub fn open(path: &Path) -> Result<Option<Mounted>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())
            .with_context(|| format!("open {}", path.display()))?;
        let mut name = [0; 64];
        let len = match rustix::fs::fgetxattr(&dir, XATTR, &mut name[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP | Errno::NODATA) => return Ok(None),
            Err(Errno::PERM) => {
                bail!("{}: only root and the user who serves the mount copy this way", path.display())
            }
            Err(e) => return Err(e).with_context(|| format!("ask the mount of {}", path.display())),
        };
        let stat = rustix::fs::fstat(&dir).with_context(|| format!("look at {}", path.display()))?;
        let vfs = rustix::fs::fstatvfs(&dir).with_context(|| format!("look at {}", path.display()))?;
        ensure!(!vfs.f_flag.contains(StatVfsMountFlags::RDONLY), "{}: mounted read-only", path.display());
        let mount = kedge_fuse::mount_of(&dir).with_context(|| format!("look at {}", path.display()))?;
        // The serving process stores the ids that it is sent: it knows of no mount.
        ensure!(
            mount.is_some_and(|mount| !mount.is_idmapped()),
            "{}: the mount maps user and group ids, or is not known here; use cp(1) or tar(1)",
            path.display()
        );
        let socket = String::from_utf8_lossy(&name[..len]).into_owned();
        Ok(Some(Mounted { dir, ino: stat.st_ino, socket }))
    }

    /// What a name of it stands for. A link is not followed.
    pub fn stat(&self, name: &[u8]) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("look at {}", String::from_utf8_lossy(name))),
        }
    }

    fn connect(&self) -> Result<UnixStream> {
        let address = SocketAddr::from_abstract_name(&self.socket)?;
        let stream = UnixStream::connect_addr(&address)
            .context("reach the serving process (it must be in the same network namespace)")?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).context("ask who serves the mount")?;
        // A mount by somebody else can name any socket.
        ensure!(
            peer.uid.is_root() || peer.uid == rustix::process::geteuid(),
            "uid {} serves the mount: nothing is sent to it",
            peer.uid.as_raw()
        );
        Ok(stream)
    }

    /// Has `write` write an archive, and waits until all of it is there, and durable unless
    /// the mount is a `volatile` one.
    pub fn send(&self, write: impl FnOnce(&mut BufWriter<&UnixStream>) -> Result<()>) -> Result<()> {
        let stream = self.connect()?;
        let mut out = BufWriter::with_capacity(CHUNK, &stream);
        let sent = writeln!(out, "{HELLO} {}", self.ino)
            .map_err(anyhow::Error::from)
            .and_then(|()| write(&mut out))
            .and_then(|()| Ok(out.flush()?));
        // What is left in the buffer after an error must not be sent: it may look whole.
        drop(out.into_parts());
        if let Err(e) = &sent
            && !is_broken_pipe(e)
        {
            return sent;
        }
        // The server may have stopped reading, and says why.
        let ended = stream.shutdown(Shutdown::Write);
        let mut line = String::new();
        let read = BufReader::new(&stream).read_line(&mut line);
        match (read, serde_json::from_str::<Answer>(&line)) {
            (Ok(_), Ok(Answer { error: Some(error) })) => bail!("{error}"),
            (Ok(_), Ok(Answer { error: None })) => {
                ended.context("end the archive")?;
                sent
            }
            _ => bail!("the process that serves the mount ended in the middle"),
        }
    }

    /// Sends an archive that is there already.
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

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    let io = e.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|e| matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset))
}

/// Writes the entries of a source into an archive.
pub struct Archive<W> {
    out: Pax<W>,
    /// Stands before each path; ends with a slash.
    prefix: Vec<u8>,
    /// Attributes that only root sets are left out.
    is_root: bool,
    /// Sockets, which tar does not know.
    left_out: HashSet<Rc<[u8]>>,
    entries: u64,
    shows: bool,
}

impl<W: Write> Archive<W> {
    /// `name`: what the directory that is copied is called there; none: what it holds goes into
    /// the target itself.
    pub fn new(out: W, name: Option<&[u8]>) -> Archive<W> {
        let prefix = name.map_or(b"./".to_vec(), |name| [b"./", name, b"/"].concat());
        let (is_root, shows) = (rustix::process::geteuid().is_root(), std::io::stderr().is_terminal());
        Archive { out: Pax::new(out), prefix, is_root, left_out: HashSet::new(), entries: 0, shows }
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
    /// Its path in the archive.
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
        let (major, minor) = crate::inside::device(rdev);
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
