//! The memory that outlives a server: a sealed memfd, which the keeper and its present server have
//! open.
//!
//! | at | what | written by |
//! |---|---|---|
//! | 0 | `Head`: version, lives, what INIT negotiated, the suspect | the server |
//! | `DEATHS_AT` | `Deaths` | the keeper |
//! | `OPTIONS_AT` | `OPTIONS` lists of options changed by remounts (`options`) | the server |
//! | `FORCED_AT` | `FORCED` slots for changes outside the journal (`forced`) | the server |
//! | `ANSWERS_AT` | a ring of `ANSWERS` results of requests that may be resent | the server |
//! | `HALVES_AT` | the two halves of the journal (`journal`) | the server |
//! | `PINS_AT` | counts of pins (`pins`) | the server |
//!
//! The memory is written through a mapping, because a system call for each field would cost more
//! than most changes. When the process is killed, a word is stored or not, and all stores before it
//! have taken effect (`words`). So the validity of every field depends on a single word:
//! - a field of one word, such as a count: that word;
//! - a field that `Area::put` replaces: its first word, which is stored last;
//! - other fields: the code that stores them names the word and the order.
//!
//! Only deaths of processes matter: if the machine fails, the memory is lost.

use super::words::Words;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::io;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const MAGIC: u64 = u64::from_le_bytes(*b"kedgkeep");
/// The layout version. It increases with each change; a server of another version refuses the area.
pub const VERSION: u32 = 3;

pub(crate) const OPTIONS_AT: u64 = 1024;
pub(crate) const OPTIONS: u64 = 2;
/// Bytes of one list of options.
pub(crate) const OPTIONS_MAX: u64 = 512;
pub(crate) const DEATHS_AT: u64 = 2048;
pub(crate) const FORCED_AT: u64 = 2560;
/// Slots for changes outside the journal, and so the number of them that may be in progress.
pub(crate) const FORCED: u64 = 48;
pub(crate) const ANSWERS_AT: u64 = 4096;
pub(crate) const ANSWERS: u64 = 1024;
pub(crate) const HALVES_AT: u64 = ANSWERS_AT + ANSWERS * 64;
/// Bytes of one half of the journal.
pub(crate) const HALF: u64 = 16 << 20;
pub(crate) const PINS_AT: u64 = HALVES_AT + 2 * HALF;
/// Inodes that the kernel may know at the same time. Unused slots take no memory.
pub(crate) const PINS: u64 = 4 << 20;
const SIZE: u64 = PINS_AT + PINS * 16;

/// The number of lives whose cut-off in the log is kept. Older lives have no changes left in the
/// journal.
pub(crate) const LIVES: usize = 64;
/// Classes of pauses: up to 1 ms, 2 ms, 4 ms and so on.
pub const PAUSES: usize = 16;

macro_rules! fields {
    ($(#[$doc:meta])* $vis:vis $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
            zerocopy::KnownLayout,
        )]
        #[repr(C)]
        $vis struct $name { $(pub $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}
pub(crate) use fields;

fields!(
    /// The features that INIT has negotiated, which the next server keeps.
    pub(crate) Negotiated = 16 { done: u32, writeback: u32, acls: u32, flags_checked: u32 }
);
fields!(
    /// The request that is served alone because it may have killed a server.
    pub(crate) Suspect = 32 { unique: u64, node: u64, opcode: u32, deaths: u32, under_way: u64 }
);
fields!(
    pub(crate) Head = 1000 {
        magic: u64, version: u32, padding: u32, life: u64, negotiated: Negotiated, suspect: Suspect,
        // For each life, the end of the log that recovery found after it; 0 if recovery has not run
        // yet.
        cutoffs: [u64; LIVES],
        pauses: [u64; PAUSES], pause_max_ns: u64, pause_last_ns: u64, redone: u64, poisoned: u64,
        // The time when the last handover began; then the same statistics as for deaths.
        handover_ns: u64, handovers: u64, handover_last_ns: u64, handover_max_ns: u64,
        handover_pauses: [u64; PAUSES],
        // Not 0 if the keeper hastens the end of a server, which it detects by the sentinel
        // (`sentinel`).
        hastens: u64,
        // The thread id of the server's sentinel; 0 if it has none.
        sentinel: u64,
        // Which list has the options that remounts have changed, and its length (`options`).
        options: u64,
        // A freeze (`frozen`): the request that made it, 0 for none; its begin, in seconds since
        // 1970; its automatic end, 0 for never; the request that made the last thaw.
        frozen: u64, frozen_since: u64, thaw_at_ns: u64, thawed: u64,
        // The descriptor with which servers inherit the image's file; 0 if they open its path.
        image: u64,
        // Not 0 if the keeper gives the image up when its server has closed it at the end of the
        // mount.
        releases: u64,
        // The last life, if it has not noted anything in the journal. The next server begins that
        // life again. Another number, such as 0, means that there is no such life.
        starting: u64,
        // The device number of the mount's file system: the major number in the upper half, the
        // minor in the lower; 0 if the keeper has not noted it.
        device: u64,
        // Not 0 if the kernel waits for the server at sync(2) and umount(2) (`fuseblk`).
        privileged: u64,
    }
);
fields!(
    /// The deaths of servers that the keeper has observed. `failed_starts` counts servers that
    /// reported why they cannot serve, or ended by an error, and were replaced.
    pub Deaths = 32 { deaths: u64, signal: u32, padding: u32, at_ns: u64, failed_starts: u64 }
);

/// The offset of a field of [`Head`].
macro_rules! at {
    ($field:ident) => {
        std::mem::offset_of!(crate::keep::area::Head, $field) as u64
    };
}
pub(crate) use at;

impl Head {
    /// Whether the last server was replaced by a handover, rather than dying.
    pub(crate) fn is_handed_over(&self, deaths: &Deaths) -> bool {
        self.handover_ns > deaths.at_ns
    }
}
const _: () = assert!(size_of::<Head>() as u64 <= OPTIONS_AT);
const _: () = assert!(OPTIONS_AT + OPTIONS * OPTIONS_MAX <= DEATHS_AT);
const _: () = assert!(DEATHS_AT + size_of::<Deaths>() as u64 <= FORCED_AT);

pub struct Area {
    fd: OwnedFd,
    words: Words,
}

impl Area {
    /// Makes an area, and allocates all of its memory except for the pins.
    pub fn make() -> io::Result<Area> {
        let fd = rustix::fs::memfd_create("kedge-keeper", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, SIZE)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, PINS_AT)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let area = Area { words: Words::map(fd.as_fd())?, fd };
        let head = Head { magic: MAGIC, version: VERSION, ..Head::new_zeroed() };
        area.put(0, head.as_bytes());
        Ok(area)
    }

    /// Notes the descriptor with which servers inherit the image's file.
    pub fn note_image(&self, fd: i32) {
        self.store(at!(image), u64::from(fd.unsigned_abs()));
    }

    /// Notes that the keeper gives the image up when its server has closed it.
    pub fn note_releases(&self) {
        self.store(at!(releases), 1);
    }

    /// Notes the mount, which its servers find in the mount table by its device number
    /// (`major:minor`).
    pub fn note_mount(&self, device: Option<&str>, privileged: bool) {
        let numbers = device.and_then(|device| device.split_once(':'));
        let numbers =
            numbers.and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse().ok()?)));
        let number =
            numbers.map_or(0, |(major, minor): (u32, u32)| u64::from(major) << 32 | u64::from(minor));
        self.store(at!(device), number);
        self.store(at!(privileged), privileged.into());
    }

    /// Opens an area that another process has made.
    pub fn inherited(fd: OwnedFd) -> io::Result<Area> {
        let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let size = rustix::fs::fstat(&fd)?.st_size as u64;
        if size != SIZE {
            return invalid(format!("the keeper's memory has {size} bytes, not {SIZE}"));
        }
        let area = Area { words: Words::map(fd.as_fd())?, fd };
        let head: Head = area.read(0);
        if head.magic != MAGIC || head.version != VERSION {
            return invalid(format!("the keeper's memory is of version {}, not {VERSION}", head.version));
        }
        Ok(area)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Maps the pages of the journal in advance.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.words.populate(HALVES_AT, 2 * HALF)
    }

    /// Allocates memory for a range, so that stores to it cannot fail.
    pub(crate) fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), at, len) {
                Err(rustix::io::Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    /// Replaces one word.
    pub(crate) fn store(&self, at: u64, value: u64) {
        self.words.store(at, value);
    }

    /// Replaces a field of whole words. Its first word is stored last.
    pub(crate) fn put(&self, at: u64, field: &[u8]) {
        self.words.put(at, field);
    }

    /// Stores bytes whose validity depends on another field.
    pub(crate) fn fill(&self, at: u64, bytes: &[u8]) {
        self.words.fill(at, bytes);
    }

    pub(crate) fn get(&self, at: u64, buf: &mut [u8]) {
        self.words.get(at, buf);
    }

    pub(crate) fn read<T: FromBytes + FromZeros + IntoBytes>(&self, at: u64) -> T {
        let mut value = T::new_zeroed();
        self.get(at, value.as_mut_bytes());
        value
    }

    /// Notes that a server died from a signal.
    pub fn note_death(&self, signal: i32) -> Deaths {
        let before = self.deaths();
        let deaths =
            Deaths { deaths: before.deaths + 1, signal: signal.cast_unsigned(), at_ns: now_ns(), ..before };
        self.put(DEATHS_AT, deaths.as_bytes());
        deaths
    }

    /// Notes that a server could not serve, and that another one will be started.
    pub fn note_failed_start(&self) {
        let at = DEATHS_AT + std::mem::offset_of!(Deaths, failed_starts) as u64;
        self.store(at, self.deaths().failed_starts + 1);
    }

    /// How long requests waited during the last handover.
    pub fn last_handover(&self) -> Duration {
        let head: Head = self.read(0);
        Duration::from_nanos(head.handover_last_ns)
    }

    /// The number of handovers that are complete: their new server serves.
    pub fn handovers(&self) -> u64 {
        let head: Head = self.read(0);
        head.handovers
    }

    pub fn deaths(&self) -> Deaths {
        self.read(DEATHS_AT)
    }
}

/// The monotonic time in nanoseconds, which all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
