//! Maps a file's bytes into memory.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;

/// A whole file, mapped shared. The file must not become shorter while it is mapped.
#[allow(dead_code)] // several tests include this file
pub struct Mapping {
    at: *mut c_void,
    len: usize,
}

// SAFETY: only this value owns the mapping, so any thread may hold it.
unsafe impl Send for Mapping {}

#[allow(dead_code)]
impl Mapping {
    pub fn of(file: &File) -> io::Result<Mapping> {
        let len = file.metadata()?.len() as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases no memory of this
        // program.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)? };
        Ok(Mapping { at, len })
    }

    /// Stores bytes. The page faults of the first access read the pages from the file system.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "a store beyond the end of the file");
        // SAFETY: the range is inside the mapping, as asserted above; no reference into the mapping
        // exists.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast::<u8>().add(offset), bytes.len());
        };
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: this is exactly the range that was mapped.
        let synced = unsafe { msync(self.at, self.len, MsyncFlags::SYNC) };
        Ok(synced?)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range that was mapped, and nothing points into it.
        let unmapped = unsafe { munmap(self.at, self.len) };
        assert_eq!(unmapped, Ok(()), "a whole mapping can be unmapped");
    }
}
