//! Access to the bytes of a file that std lacks: shared mappings, and asynchronous IO by the system
//! calls of libaio.

use kedge_base::IoBuf;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A shared mapping of a file, from a page offset on.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn new(file: &File, offset: u64, len: usize) -> io::Result<Mapping> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset)? };
        Ok(Mapping { at: at.cast(), len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn read(&self, from: usize, to: &mut [u8]) {
        assert!(from + to.len() <= self.len);
        // SAFETY: the assertion above keeps the range inside the mapping, and the file has all
        // mapped pages.
        unsafe { self.at.add(from).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }

    pub fn write(&self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.len);
        // SAFETY: the assertion above keeps the range inside the mapping, and the file has all
        // mapped pages.
        unsafe { self.at.add(from).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: `self` owns the mapping of `len` bytes, which lives until `drop`.
        unsafe { msync(self.at.cast(), self.len, MsyncFlags::SYNC)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped exactly this range, and no reference into it is left.
        unsafe { munmap(self.at.cast(), self.len).unwrap() }
    }
}

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_rw_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);

/// An AIO context, with the submitted writes that may not have completed. Their buffers must stay
/// valid.
pub struct Aio {
    context: libc::c_ulong,
    in_flight: Vec<(Box<Iocb>, IoBuf)>,
}

impl Aio {
    pub fn new(depth: usize) -> io::Result<Aio> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes one number through the pointer to `context`, which outlives the
        // call.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, depth as libc::c_uint, &raw mut context) };
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(Aio { context, in_flight: Vec::new() }) }
    }

    /// Submits a write of blocks; the file must be open with `O_DIRECT`.
    pub fn write(&mut self, file: &File, offset: u64, bytes: IoBuf) -> io::Result<()> {
        const PWRITE: u16 = 1;
        let iocb = Box::new(Iocb {
            opcode: PWRITE,
            file: file.as_raw_fd() as u32,
            buf: bytes.as_bytes().as_ptr() as u64,
            len: bytes.len() as u64,
            offset: offset as i64,
            ..Iocb::default()
        });
        let list: [*const Iocb; 1] = [&raw const *iocb];
        // SAFETY: the list has one iocb; the iocb and its buffer are kept until the write has
        // completed.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_ptr()) };
        if submitted != 1 {
            return Err(io::Error::last_os_error());
        }
        self.in_flight.push((iocb, bytes));
        Ok(())
    }

    /// Waits for all submitted writes.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut events = vec![Event::default(); self.in_flight.len()];
        let mut done = 0;
        while done < events.len() {
            let left = events.len() - done;
            let none = std::ptr::null::<libc::timespec>();
            let to = events[done..].as_mut_ptr();
            // SAFETY: the call writes at most `left` events, for which there is room.
            let got = unsafe { libc::syscall(libc::SYS_io_getevents, self.context, left, left, to, none) };
            match got {
                0.. => done += got as usize,
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
        let in_flight = std::mem::take(&mut self.in_flight);
        for event in events {
            let of = in_flight.iter().find(|(iocb, _)| &raw const **iocb as u64 == event.iocb);
            let (_, bytes) = of.expect("an event for each that was submitted");
            if event.result < 0 {
                return Err(io::Error::from_raw_os_error(-event.result as i32));
            }
            assert_eq!(event.result as usize, bytes.len(), "a direct write is whole or fails");
        }
        Ok(())
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: the call waits for the writes in flight; the buffers are freed afterwards.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
