//! A client of NFS version 3, independent of the server's own encoding.
#![allow(dead_code, clippy::unwrap_used)]

use kedge_nfs::{Limits, Rights, Server, Squash};
use kedgefs::device::{Device, MemDevice};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;

pub const UNSTABLE: u32 = 0;
pub const DATA_SYNC: u32 = 1;
pub const FILE_SYNC: u32 = 2;

/// NFS statuses.
pub const OK: u32 = 0;
pub const PERM: u32 = 1;
pub const NOENT: u32 = 2;
pub const IO: u32 = 5;
pub const ACCES: u32 = 13;
pub const EXIST: u32 = 17;
pub const XDEV: u32 = 18;
pub const NOTDIR: u32 = 20;
pub const ISDIR: u32 = 21;
pub const INVAL: u32 = 22;
pub const FBIG: u32 = 27;
pub const NOSPC: u32 = 28;
pub const ROFS: u32 = 30;
pub const NAMETOOLONG: u32 = 63;
pub const NOTEMPTY: u32 = 66;
pub const DQUOT: u32 = 69;
pub const STALE: u32 = 70;
pub const BADHANDLE: u32 = 10001;
pub const NOT_SYNC: u32 = 10002;
pub const BAD_COOKIE: u32 = 10003;
pub const TOOSMALL: u32 = 10005;
pub const BADTYPE: u32 = 10007;

/// Arguments, encoded in XDR.
#[derive(Default, Clone)]
pub struct Args(pub Vec<u8>);

impl Args {
    pub fn u32(mut self, n: u32) -> Args {
        self.0.extend(n.to_be_bytes());
        self
    }

    pub fn u64(mut self, n: u64) -> Args {
        self.0.extend(n.to_be_bytes());
        self
    }

    pub fn bytes(self, bytes: &[u8]) -> Args {
        let mut args = self.u32(bytes.len() as u32);
        args.0.extend(bytes);
        while !args.0.len().is_multiple_of(4) {
            args.0.push(0);
        }
        args
    }

    pub fn raw(mut self, bytes: &[u8]) -> Args {
        self.0.extend(bytes);
        self
    }

    pub fn set(self, set: &Set) -> Args {
        let option = |args: Args, value: Option<u32>| match value {
            Some(n) => args.u32(1).u32(n),
            None => args.u32(0),
        };
        let mut args = option(self, set.mode);
        args = option(args, set.uid);
        args = option(args, set.gid);
        args = match set.size {
            Some(n) => args.u32(1).u64(n),
            None => args.u32(0),
        };
        for time in [set.atime, set.mtime] {
            args = match time {
                Some(Time::Now) => args.u32(1),
                Some(Time::At(sec, nsec)) => args.u32(2).u32(sec).u32(nsec),
                None => args.u32(0),
            };
        }
        args
    }
}

pub fn args() -> Args {
    Args::default()
}

#[derive(Clone, Copy, Debug)]
pub enum Time {
    Now,
    At(u32, u32),
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Set {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
}

pub fn mode(mode: u32) -> Set {
    Set { mode: Some(mode), ..Set::default() }
}

pub fn size(size: u64) -> Set {
    Set { size: Some(size), ..Set::default() }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub kind: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    pub rdev: (u32, u32),
    pub fsid: u64,
    pub ino: u64,
    pub atime: (u32, u32),
    pub mtime: (u32, u32),
    pub ctime: (u32, u32),
}

/// Size, mtime and ctime before a change.
pub type Before = (u64, (u32, u32), (u32, u32));

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Around {
    pub before: Option<Before>,
    pub after: Option<Attr>,
}

/// Results, decoded from XDR.
pub struct Results {
    bytes: Vec<u8>,
    at: usize,
}

impl Results {
    pub fn u32(&mut self) -> u32 {
        self.at += 4;
        u32::from_be_bytes(self.bytes[self.at - 4..self.at].try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub fn bytes(&mut self) -> Vec<u8> {
        let len = self.u32() as usize;
        let bytes = self.bytes[self.at..self.at + len].to_vec();
        self.at += len.next_multiple_of(4);
        bytes
    }

    fn time(&mut self) -> (u32, u32) {
        (self.u32(), self.u32())
    }

    pub fn attr(&mut self) -> Attr {
        Attr {
            kind: self.u32(),
            mode: self.u32(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size: self.u64(),
            used: self.u64(),
            rdev: (self.u32(), self.u32()),
            fsid: self.u64(),
            ino: self.u64(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
        }
    }

    pub fn post_op(&mut self) -> Option<Attr> {
        (self.u32() == 1).then(|| self.attr())
    }

    pub fn around(&mut self) -> Around {
        let before = (self.u32() == 1).then(|| (self.u64(), self.time(), self.time()));
        Around { before, after: self.post_op() }
    }

    pub fn handle(&mut self) -> Option<Vec<u8>> {
        (self.u32() == 1).then(|| self.bytes())
    }

    /// Bytes that are not read yet.
    pub fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[track_caller]
    pub fn end(&self) {
        assert_eq!(self.rest(), 0, "results are left");
    }
}

pub struct Client {
    pub stream: TcpStream,
    pub user: (u32, u32, Vec<u32>),
    /// The server is beside a mount, so it leaves the attributes before a change out.
    pub beside: bool,
    xid: u32,
}

pub struct Written {
    pub count: u32,
    pub committed: u32,
    pub verifier: u64,
}

pub struct Listed {
    pub name: String,
    pub ino: u64,
    pub cookie: u64,
    pub attr: Option<Attr>,
    pub handle: Option<Vec<u8>>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Client::on(stream))
    }

    pub fn on(stream: TcpStream) -> Client {
        Client { stream, user: (0, 0, Vec::new()), beside: false, xid: 0 }
    }

    pub fn of(address: SocketAddr, uid: u32, gid: u32, groups: &[u32]) -> Client {
        let mut client = Client::connect(address).unwrap();
        client.user = (uid, gid, groups.to_vec());
        client
    }

    pub fn send(&mut self, message: &[u8]) -> std::io::Result<()> {
        let mut record = (1 << 31 | message.len() as u32).to_be_bytes().to_vec();
        record.extend(message);
        self.stream.write_all(&record)
    }

    pub fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let len = u32::from_be_bytes(mark) & 0x7fff_ffff;
        let mut reply = vec![0; len as usize];
        self.stream.read_exact(&mut reply)?;
        Ok(reply)
    }

    /// Builds the head of a call, with the user's credential.
    pub fn head(&mut self, program: u32, version: u32, procedure: u32) -> Args {
        self.xid += 1;
        let (uid, gid, groups) = &self.user;
        let mut credential = args().u32(0).bytes(b"test").u32(*uid).u32(*gid).u32(groups.len() as u32);
        for group in groups {
            credential = credential.u32(*group);
        }
        let head = args().u32(self.xid).u32(0).u32(2).u32(program).u32(version).u32(procedure);
        head.u32(1).bytes(&credential.0).u32(0).u32(0)
    }

    /// Sends a call and returns its reply, from the acceptance status on.
    pub fn exchange(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &Args,
    ) -> std::io::Result<Results> {
        let head = self.head(program, version, procedure);
        self.send(&head.raw(&arguments.0).0)?;
        let mut results = Results { bytes: self.receive()?, at: 0 };
        assert_eq!(results.u32(), self.xid);
        assert_eq!((results.u32(), results.u32()), (1, 0), "an accepted reply");
        assert_eq!((results.u32(), results.u32()), (0, 0), "no verifier");
        Ok(results)
    }

    #[track_caller]
    pub fn nfs(&mut self, procedure: u32, arguments: Args) -> Results {
        self.try_nfs(procedure, &arguments).unwrap()
    }

    pub fn try_nfs(&mut self, procedure: u32, arguments: &Args) -> std::io::Result<Results> {
        let mut results = self.exchange(NFS, 3, procedure, arguments)?;
        assert_eq!(results.u32(), 0, "the arguments of procedure {procedure} are accepted");
        Ok(results)
    }

    #[track_caller]
    pub fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let mut r = self.exchange(MOUNT, 3, 1, &args().bytes(path.as_bytes())).unwrap();
        assert_eq!(r.u32(), 0);
        match r.u32() {
            0 => {
                let handle = r.bytes();
                assert_eq!((r.u32(), r.u32()), (1, 1), "AUTH_SYS");
                r.end();
                Ok(handle)
            }
            status => Err(status),
        }
    }

    pub fn root(&mut self) -> Vec<u8> {
        self.mount("/").unwrap()
    }

    pub fn getattr(&mut self, handle: &[u8]) -> Result<Attr, u32> {
        let mut r = self.nfs(1, args().bytes(handle));
        let status = r.u32();
        let attr = (status == OK).then(|| r.attr());
        r.end();
        attr.ok_or(status)
    }

    pub fn setattr_guarded(&mut self, handle: &[u8], set: &Set, guard: Option<(u32, u32)>) -> (u32, Around) {
        let a = args().bytes(handle).set(set);
        let a = match guard {
            Some((sec, nsec)) => a.u32(1).u32(sec).u32(nsec),
            None => a.u32(0),
        };
        let mut r = self.nfs(2, a);
        let outcome = (r.u32(), r.around());
        r.end();
        outcome
    }

    pub fn setattr(&mut self, handle: &[u8], set: &Set) -> u32 {
        self.setattr_guarded(handle, set, None).0
    }

    pub fn lookup(&mut self, dir: &[u8], name: &str) -> Result<(Vec<u8>, Attr), u32> {
        let mut r = self.nfs(3, args().bytes(dir).bytes(name.as_bytes()));
        let status = r.u32();
        let found = (status == OK).then(|| (r.bytes(), r.post_op().unwrap()));
        r.post_op();
        r.end();
        found.ok_or(status)
    }

    pub fn access(&mut self, handle: &[u8]) -> Result<u32, u32> {
        let mut r = self.nfs(4, args().bytes(handle).u32(0x3f));
        let status = r.u32();
        r.post_op();
        let granted = (status == OK).then(|| r.u32());
        r.end();
        granted.ok_or(status)
    }

    pub fn readlink(&mut self, handle: &[u8]) -> Result<Vec<u8>, u32> {
        let mut r = self.nfs(5, args().bytes(handle));
        let status = r.u32();
        r.post_op();
        let target = (status == OK).then(|| r.bytes());
        r.end();
        target.ok_or(status)
    }

    /// Returns the bytes, and whether the file ends after them.
    pub fn read(&mut self, handle: &[u8], offset: u64, count: u32) -> Result<(Vec<u8>, bool), u32> {
        let mut r = self.nfs(6, args().bytes(handle).u64(offset).u32(count));
        let status = r.u32();
        r.post_op();
        if status != OK {
            r.end();
            return Err(status);
        }
        let (len, eof, bytes) = (r.u32(), r.u32() == 1, r.bytes());
        assert_eq!(len as usize, bytes.len());
        r.end();
        Ok((bytes, eof))
    }

    pub fn try_write(
        &mut self,
        handle: &[u8],
        offset: u64,
        bytes: &[u8],
        stable: u32,
    ) -> std::io::Result<Result<Written, u32>> {
        let a = args().bytes(handle).u64(offset).u32(bytes.len() as u32).u32(stable).bytes(bytes);
        let mut r = self.try_nfs(7, &a)?;
        let status = r.u32();
        r.around();
        let written =
            (status == OK).then(|| Written { count: r.u32(), committed: r.u32(), verifier: r.u64() });
        r.end();
        Ok(written.ok_or(status))
    }

    pub fn write(&mut self, handle: &[u8], offset: u64, bytes: &[u8], stable: u32) -> Result<Written, u32> {
        self.try_write(handle, offset, bytes, stable).unwrap()
    }

    fn made(&self, mut r: Results) -> Result<(Vec<u8>, Attr), u32> {
        let status = r.u32();
        let made = (status == OK).then(|| (r.handle().unwrap(), r.post_op().unwrap()));
        let around = r.around();
        if made.is_some() {
            assert_eq!(around.before.is_some(), !self.beside, "the attributes before a change");
            assert!(around.after.is_some(), "the attributes after a change");
        }
        r.end();
        made.ok_or(status)
    }

    pub fn try_create(
        &mut self,
        dir: &[u8],
        name: &str,
        how: u32,
        set: &Set,
    ) -> std::io::Result<Result<(Vec<u8>, Attr), u32>> {
        let a = args().bytes(dir).bytes(name.as_bytes()).u32(how).set(set);
        let r = self.try_nfs(8, &a)?;
        Ok(self.made(r))
    }

    /// CREATE with UNCHECKED.
    pub fn create(&mut self, dir: &[u8], name: &str, set: &Set) -> Result<(Vec<u8>, Attr), u32> {
        self.try_create(dir, name, 0, set).unwrap()
    }

    pub fn create_guarded(&mut self, dir: &[u8], name: &str, set: &Set) -> Result<(Vec<u8>, Attr), u32> {
        self.try_create(dir, name, 1, set).unwrap()
    }

    pub fn create_exclusive(
        &mut self,
        dir: &[u8],
        name: &str,
        verifier: [u8; 8],
    ) -> Result<(Vec<u8>, Attr), u32> {
        let r = self.nfs(8, args().bytes(dir).bytes(name.as_bytes()).u32(2).raw(&verifier));
        self.made(r)
    }

    pub fn mkdir(&mut self, dir: &[u8], name: &str, set: &Set) -> Result<(Vec<u8>, Attr), u32> {
        let r = self.nfs(9, args().bytes(dir).bytes(name.as_bytes()).set(set));
        self.made(r)
    }

    pub fn symlink(&mut self, dir: &[u8], name: &str, target: &[u8]) -> Result<(Vec<u8>, Attr), u32> {
        let a = args().bytes(dir).bytes(name.as_bytes()).set(&Set::default()).bytes(target);
        let r = self.nfs(10, a);
        self.made(r)
    }

    pub fn mknod(
        &mut self,
        dir: &[u8],
        name: &str,
        kind: u32,
        numbers: (u32, u32),
    ) -> Result<(Vec<u8>, Attr), u32> {
        let a = args().bytes(dir).bytes(name.as_bytes()).u32(kind).set(&mode(0o600));
        let r = self.nfs(11, if kind < 5 { a.u32(numbers.0).u32(numbers.1) } else { a });
        self.made(r)
    }

    pub fn remove(&mut self, dir: &[u8], name: &str) -> u32 {
        let mut r = self.nfs(12, args().bytes(dir).bytes(name.as_bytes()));
        let status = r.u32();
        r.around();
        r.end();
        status
    }

    pub fn rmdir(&mut self, dir: &[u8], name: &str) -> u32 {
        let mut r = self.nfs(13, args().bytes(dir).bytes(name.as_bytes()));
        let status = r.u32();
        r.around();
        r.end();
        status
    }

    pub fn rename(&mut self, from: (&[u8], &str), to: (&[u8], &str)) -> u32 {
        let a = args().bytes(from.0).bytes(from.1.as_bytes()).bytes(to.0).bytes(to.1.as_bytes());
        let mut r = self.nfs(14, a);
        let status = r.u32();
        r.around();
        r.around();
        r.end();
        status
    }

    pub fn link(&mut self, file: &[u8], dir: &[u8], name: &str) -> (u32, Option<Attr>) {
        let mut r = self.nfs(15, args().bytes(file).bytes(dir).bytes(name.as_bytes()));
        let (status, attr) = (r.u32(), r.post_op());
        r.around();
        r.end();
        (status, attr)
    }

    /// Returns one page, and whether the list ends with it. With `plus`, by READDIRPLUS.
    pub fn page(
        &mut self,
        dir: &[u8],
        cookie: u64,
        bytes: u32,
        plus: bool,
    ) -> Result<(Vec<Listed>, bool), u32> {
        let a = args().bytes(dir).u64(cookie).u64(0);
        let mut r = if plus { self.nfs(17, a.u32(bytes).u32(bytes)) } else { self.nfs(16, a.u32(bytes)) };
        assert!(r.rest() <= bytes as usize, "{} bytes of results, of {bytes}", r.rest());
        let status = r.u32();
        r.post_op();
        if status != OK {
            return Err(status);
        }
        let (_verifier, mut entries) = (r.u64(), Vec::new());
        while r.u32() == 1 {
            let (ino, name, cookie) = (r.u64(), String::from_utf8(r.bytes()).unwrap(), r.u64());
            let (attr, handle) = if plus { (r.post_op(), r.handle()) } else { (None, None) };
            entries.push(Listed { name, ino, cookie, attr, handle });
        }
        let end = r.u32() == 1;
        r.end();
        Ok((entries, end))
    }

    pub fn list(&mut self, dir: &[u8], bytes: u32, plus: bool) -> Vec<Listed> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (page, end) = self.page(dir, cookie, bytes, plus).unwrap();
            cookie = page.last().map_or(cookie, |entry| entry.cookie);
            all.extend(page);
            if end {
                return all;
            }
        }
    }

    pub fn try_commit(&mut self, handle: &[u8]) -> std::io::Result<Result<u64, u32>> {
        let mut r = self.try_nfs(21, &args().bytes(handle).u64(0).u32(0))?;
        let status = r.u32();
        r.around();
        let verifier = (status == OK).then(|| r.u64());
        r.end();
        Ok(verifier.ok_or(status))
    }

    pub fn commit(&mut self, handle: &[u8]) -> Result<u64, u32> {
        self.try_commit(handle).unwrap()
    }
}

pub const NOBODY: Owner = Owner { uid: 65534, gid: 65534 };

pub fn rights(squash: Squash) -> Rights {
    Rights { squash, anonymous: NOBODY, ports_below: None, tree: Ino::ROOT }
}

pub fn clock() -> Arc<SystemClock> {
    Arc::new(SystemClock::default())
}

pub fn formatted(bytes: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(bytes));
    FileSystem::format(device.clone(), clock(), &FormatOptions::default()).unwrap();
    device
}

pub fn open(device: Arc<dyn Device>) -> FileSystem {
    FileSystem::open(device, clock(), MountOptions::default()).unwrap()
}

pub fn serve_with(fs: &FileSystem, squash: Squash, limits: Limits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(fs.clone(), listener, rights(squash), limits).unwrap()
}

pub fn serve(fs: &FileSystem) -> Server {
    serve_with(fs, Squash::None, Limits::default())
}

/// A served file system in memory, with a client that acts as root.
pub struct Rig {
    pub fs: FileSystem,
    pub server: Server,
    pub client: Client,
    pub root: Vec<u8>,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::on(open(formatted(64 << 20)), Squash::None)
    }

    pub fn on(fs: FileSystem, squash: Squash) -> Rig {
        let server = serve_with(&fs, squash, Limits::default());
        let mut client = Client::of(server.address(), 0, 0, &[]);
        let root = client.root();
        Rig { fs, server, client, root }
    }

    pub fn user(&self, uid: u32, gid: u32, groups: &[u32]) -> Client {
        Client::of(self.server.address(), uid, gid, groups)
    }

    /// Stops the server, then drops the file system without closing it, as a crash does.
    pub fn die(self) {
        drop(self.client);
        self.server.stop();
    }

    /// Stops the server, then closes the file system without an error.
    pub fn end(self) {
        drop(self.client);
        self.server.stop();
        self.fs.close().unwrap();
    }
}
