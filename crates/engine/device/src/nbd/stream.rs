//! A socket on which every wait is bounded.
//!
//! A read waits for at most one tick at a time and then checks whether to continue.
//! [`Stream::shut`] unblocks a thread that waits in a write.

use crate::location::NbdAddress;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects. Tries each address of a host for at most `limit`.
    pub fn connect(address: &NbdAddress, limit: Duration) -> io::Result<Stream> {
        match address {
            NbdAddress::Tcp { host, port } => {
                let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, limit) {
                        Ok(stream) => {
                            // A small request must not wait for the acknowledgement of the previous
                            // one.
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(e) => last = e,
                    }
                }
                Err(last)
            }
            NbdAddress::Unix { socket } => {
                let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
                // Bounds connect(2), which waits while the server's queue is full, and later the
                // writes of the handshake.
                set_socket_timeout(&fd, Timeout::Send, Some(limit))?;
                connect(&fd, &SocketAddrUnix::new(socket)?)?;
                Ok(Stream::Unix(UnixStream::from(fd)))
            }
        }
    }

    /// Sets the maximum wait of a read, and of a write (`None`: no limit).
    pub fn set_timeouts(&self, read: Duration, write: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s.set_read_timeout(Some(read)).and_then(|()| s.set_write_timeout(write)),
            Stream::Unix(s) => s.set_read_timeout(Some(read)).and_then(|()| s.set_write_timeout(write)),
        }
    }

    /// Ends the reads and writes of all threads, present and future.
    pub fn shut(&self) {
        // An error means that the socket was already shut down.
        let _ = match self {
            Stream::Tcp(s) => s.shutdown(Shutdown::Both),
            Stream::Unix(s) => s.shutdown(Shutdown::Both),
        };
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => { s }.read(buf),
            Stream::Unix(s) => { s }.read(buf),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(s) => s.as_fd(),
            Stream::Unix(s) => s.as_fd(),
        }
    }

    /// Fills `buf`. After each wait, and between the pieces of a reply that arrives slowly, calls
    /// `go_on`, which may end the read with a reason.
    pub fn read_exact(
        &self,
        mut buf: &mut [u8],
        mut go_on: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        while !buf.is_empty() {
            match self.read(buf) {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    if buf.is_empty() {
                        return Ok(());
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("cannot read: {e}")),
            }
            go_on()?;
        }
        Ok(())
    }

    /// Writes a message's header and payload.
    pub fn write_all(&self, mut head: &[u8], mut payload: &[u8]) -> Result<(), String> {
        while !head.is_empty() || !payload.is_empty() {
            let bufs = [IoSlice::new(head), IoSlice::new(payload)];
            // NOSIGNAL, because SIGPIPE would kill a program that links the library.
            match sendmsg(self.fd(), &bufs, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(0) => return Err("the connection takes no bytes".into()),
                Ok(n) => {
                    let of_head = n.min(head.len());
                    head = &head[of_head..];
                    payload = &payload[n - of_head..];
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(format!("cannot write: {}", io::Error::from(e))),
            }
        }
        Ok(())
    }
}
