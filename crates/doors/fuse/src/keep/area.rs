//! The memory that outlives a server: a sealed memfd, which the keeper and the server of the moment
//! have open.
//!
//! | at | what | written by |
//! |---|---|---|
//! | 0 | `Head`: version, lives, what INIT negotiated, the suspect | the server |
//! | `DEATHS_AT` | `Deaths` | the keeper |
//! | `OPTIONS_AT` | `OPTIONS` places for the options that remounts have changed (`options`) | the server |
//! | `FORCED_AT` | `FORCED` changes that the journal does not cover (`forced`) | the server |
//! | `ANSWERS_AT` | a ring of `ANSWERS` results of requests that may be sent again | the server |
//! | `HALVES_AT` | the two halves of the journal (`journal`) | the server |
//! | `PINS_AT` | counts of pins (`pins`) | the server |
//!
//! It is written through a mapping, because a system call for each field costs more than most
//! changes. When its process is killed, a word is stored or not, and the stores before it are
//! done (`words`). So every validity here rests on one word, and each field says which:
//! - a field that one word replaces, such as a count: that word;
//! - a field that `Area::put` replaces: its first word, which is stored last;
//! - others name the word and the order at the place that stores them.
//!
//! Only the death of processes matters: with the machine the memory is gone.

use super::words::Words;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::io;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const MAGIC: u64 = u64::from_le_bytes(*b"kedgkeep");
/// Increases with each change of the layout. A server of another version refuses the area.
pub const VERSION: u32 = 3;

pub(crate) const OPTIONS_AT: u64 = 1024;
pub(crate) const OPTIONS: u64 = 2;
/// Bytes of one place.
pub(crate) const OPTIONS_MAX: u64 = 512;
pub(crate) const DEATHS_AT: u64 = 2048;
pub(crate) const FORCED_AT: u64 = 2560;
/// Changes that the journal does not cover and that may be under way at the same time.
pub(crate) const FORCED: u64 = 48;
pub(crate) const ANSWERS_AT: u64 = 4096;
pub(crate) const ANSWERS: u64 = 1024;
pub(crate) const HALVES_AT: u64 = ANSWERS_AT + ANSWERS * 64;
/// Bytes of one half of the journal.
pub(crate) const HALF: u64 = 16 << 20;
pub(crate) const PINS_AT: u64 = HALVES_AT + 2 * HALF;
/// Inodes that the kernel may know at the same time. The pages of unused ones take no memory.
pub(crate) const PINS: u64 = 4 << 20;
const SIZE: u64 = PINS_AT + PINS * 16;

/// Lives whose cut-off in the log is remembered. Changes of an older life are gone by then.
pub(crate) const LIVES: usize = 64;
/// Classes of pauses: up to a millisecond, two, four, and so on.
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
    /// What INIT has negotiated, with which the next server goes on.
    pub(crate) Negotiated = 16 { done: u32, writeback: u32, acls: u32, flags_checked: u32 }
);
fields!(
    /// The request that is served alone because it may have killed its server.
    pub(crate) Suspect = 32 { unique: u64, node: u64, opcode: u32, deaths: u32, under_way: u64 }
);
fields!(
    pub(crate) Head = 968 {
        magic: u64, version: u32, padding: u32, life: u64, negotiated: Negotiated, suspect: Suspect,
        // By life: the end of the log that recovery found after it; 0 for a life that is not over.
        cutoffs: [u64; LIVES],
        pauses: [u64; PAUSES], pause_max_ns: u64, pause_last_ns: u64, redone: u64, poisoned: u64,
        // When the last handover began; then as for deaths.
        handover_ns: u64, handovers: u64, handover_last_ns: u64, handover_max_ns: u64,
        handover_pauses: [u64; PAUSES],
        // Not 0: the keeper hastens the end of a server by its sentinel (`sentinel`).
        hastens: u64,
        // The thread id of the server's sentinel; 0: it has none.
        sentinel: u64,
        // The options that remounts have changed (`options`).
        options: u64,
        // A freeze (`frozen`): the request that made it, 0 for none; when it began, in seconds
        // since 1970; when it ends by itself, 0 for never; the last request that ended one.
        frozen: u64, frozen_since: u64, thaw_at_ns: u64, thawed: u64,
        // The descriptor by which servers inherit the image's file; 0: they open its path.
        image: u64,
    }
);
fields!(
    /// What the keeper saw of its servers.
    pub Deaths = 32 { deaths: u64, signal: u32, padding: u32, at_ns: u64, unused: u64 }
);

/// The offset of a field of [`Head`].
macro_rules! at {
    ($field:ident) => {
        std::mem::offset_of!(crate::keep::area::Head, $field) as u64
    };
}
pub(crate) use at;

impl Head {
    /// Whether the last server left its place, and did not die.
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
    /// Makes an area, and takes its memory except for the pins.
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

    /// Servers inherit the image's file as this descriptor.
    pub fn note_image(&self, fd: i32) {
        self.store(at!(image), u64::from(fd.unsigned_abs()));
    }

    /// The area that another process has made.
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

    /// Maps the pages of the journal.
    pub(crate) fn populate(&self) -> io::Result<()> {
        self.words.populate(HALVES_AT, 2 * HALF)
    }

    /// Takes memory for a range, so that stores there find it.
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

    /// Replaces a field. Its first word is stored last.
    pub(crate) fn put(&self, at: u64, field: &[u8]) {
        self.words.put(at, field);
    }

    /// Stores bytes that another field makes valid.
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

    /// The keeper saw a server die by a signal.
    pub fn note_death(&self, signal: i32) -> Deaths {
        let before = self.deaths();
        let deaths =
            Deaths { deaths: before.deaths + 1, signal: signal.cast_unsigned(), at_ns: now_ns(), ..before };
        self.put(DEATHS_AT, deaths.as_bytes());
        deaths
    }

    /// How long requests waited for the server that took a mount over last.
    pub fn last_handover(&self) -> Duration {
        let head: Head = self.read(0);
        Duration::from_nanos(head.handover_last_ns)
    }

    /// Handovers whose next server serves.
    pub fn handovers(&self) -> u64 {
        let head: Head = self.read(0);
        head.handovers
    }

    pub fn deaths(&self) -> Deaths {
        self.read(DEATHS_AT)
    }
}

/// Time that all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
