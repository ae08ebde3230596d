//! Termination signals. An interrupted experiment still undoes its mounts and removes its images.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

const TERMINATION: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// A set of blocked signals.
pub struct TerminationSignals(libc::sigset_t);

impl TerminationSignals {
    /// Blocks them in this thread and in those it starts from now on. To be called before any other
    /// thread exists: the kernel hands a signal to any thread that has not blocked it, and its
    /// default action ends the process.
    pub fn block() -> io::Result<TerminationSignals> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises what it is given; sigaddset and pthread_sigmask get an
        // initialised set, and pthread_sigmask takes null for the old mask, which is not needed.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in TERMINATION {
                libc::sigaddset(&raw mut set, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) {
                0 => Ok(TerminationSignals(set)),
                e => Err(io::Error::from_raw_os_error(e)),
            }
        }
    }

    /// Waits for one of the signals and returns its number.
    pub fn wait(&self) -> io::Result<i32> {
        let mut signal = 0;
        // SAFETY: both pointers are valid for the call; the set was initialised by `block`.
        match unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } {
            0 => Ok(signal),
            e => Err(io::Error::from_raw_os_error(e)),
        }
    }
}
