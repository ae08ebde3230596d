//! The calls of a program to a file system, in the order in which they took effect.
//!
//! An [`Event`] is one call that changes or persists something, or a mark. Failed calls are kept
//! for the report and change nothing. Inodes are identified by number, and no number is reused.

use serde::{Deserialize, Serialize};

/// One recorded call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since the recording began.
    pub time: u64,
    /// The process that made the call; 0 if it was the kernel itself, or if it is unknown.
    pub pid: u32,
    /// The thread that made the call.
    pub tid: u32,
    /// The error of the call; 0 if it succeeded.
    pub errno: i32,
    pub call: Call,
    /// The callers, innermost first. Empty if they were not recorded.
    pub stack: Vec<String>,
}

impl Event {
    pub fn ok(&self) -> bool {
        self.errno == 0
    }
}

/// How fallocate(2) was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Space {
    Allocate { keep_size: bool },
    Punch,
    Zero { keep_size: bool },
    Collapse,
    Insert,
}

/// New variants are only added at the end: a variant's position is its number in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Call {
    /// A process that appears in the recording: its name and command line.
    Process {
        pid: u32,
        name: String,
        command: String,
    },
    /// A new inode with a name. `mode` includes the type bits; symlinks have a target.
    Create {
        dir: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        ino: u64,
        mode: u32,
        uid: u32,
        gid: u32,
        #[serde(with = "serde_bytes")]
        target: Option<Vec<u8>>,
    },
    /// A new inode without a name.
    Tmpfile {
        ino: u64,
        mode: u32,
        uid: u32,
        gid: u32,
    },
    Link {
        ino: u64,
        dir: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// unlink(2) or rmdir(2).
    Remove {
        dir: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        ino: u64,
        is_dir: bool,
    },
    Rename {
        dir: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        new_dir: u64,
        #[serde(with = "serde_bytes")]
        new_name: Vec<u8>,
        ino: u64,
        /// The inode that had the new name before, if any.
        victim: Option<u64>,
        exchange: bool,
    },
    Write {
        ino: u64,
        offset: u64,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        /// Whether the kernel wrote back pages of a mapping. The program that changed the pages is
        /// not known then.
        mapped: bool,
    },
    Truncate {
        ino: u64,
        size: u64,
    },
    Allocate {
        ino: u64,
        how: Space,
        offset: u64,
        len: u64,
    },
    Attr {
        ino: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Xattr {
        ino: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// The new value; `None` if the attribute was removed.
        #[serde(with = "serde_bytes")]
        value: Option<Vec<u8>>,
    },
    /// fsync(2), fdatasync(2), and the same effect of a write with O_SYNC or O_DSYNC; msync(2) too,
    /// unless its range is known. The call covers the events with numbers below `since`, which are
    /// those that had returned when the call was made.
    Fsync {
        ino: u64,
        datasync: bool,
        since: u64,
    },
    /// sync(2) or syncfs(2).
    Sync {
        since: u64,
    },
    /// A promise: from now on the user relies on `text`.
    Mark {
        text: String,
    },
    /// The end of what the program found at its start. No crash loses any event before this one.
    Baseline,
    /// The program ended with this exit code, or 128 plus the number of the signal that killed it.
    End {
        code: i32,
    },
    /// Declares that the file stands for a block device, so that its persistence calls are flushes.
    Device {
        ino: u64,
    },
    /// msync(2) has the effect of fdatasync(2) on the pages of these ranges of the file. Each range
    /// has its first byte and the byte after its last. `since` has the meaning as in `Fsync`.
    Msync {
        ino: u64,
        ranges: Vec<(u64, u64)>,
        since: u64,
    },
    /// The end of a write with `O_DSYNC`, `O_SYNC` or `RWF_DSYNC`: the effect of fdatasync, or with
    /// `datasync` false of fsync, on the pages of these ranges of the file. The kernel writes and
    /// waits for no other page, so the sizes of writes to other pages may still be lost. Ranges and
    /// `since` are those of `Msync`.
    SyncRange {
        ino: u64,
        datasync: bool,
        ranges: Vec<(u64, u64)>,
        since: u64,
    },
}

impl Call {
    /// The call's name as in the manual pages.
    pub fn name(&self) -> &'static str {
        use crate::edit::Meta;
        match self {
            Call::Process { .. } => "process",
            Call::Create { mode, .. } => match mode & Meta::KINDS {
                Meta::DIR => "mkdir",
                Meta::LINK => "symlink",
                Meta::FILE | 0 => "create",
                _ => "mknod",
            },
            Call::Tmpfile { .. } => "open(O_TMPFILE)",
            Call::Link { .. } => "link",
            Call::Remove { is_dir: false, .. } => "unlink",
            Call::Remove { is_dir: true, .. } => "rmdir",
            Call::Rename { exchange: false, .. } => "rename",
            Call::Rename { exchange: true, .. } => "rename(exchange)",
            Call::Write { mapped: false, .. } => "write",
            Call::Write { mapped: true, .. } => "mapped write",
            Call::Truncate { .. } => "truncate",
            Call::Allocate { .. } => "fallocate",
            Call::Attr { mode: Some(_), .. } => "chmod",
            Call::Attr { .. } => "chown",
            Call::Xattr { value: Some(_), .. } => "setxattr",
            Call::Xattr { value: None, .. } => "removexattr",
            Call::Fsync { datasync: false, .. } => "fsync",
            Call::Fsync { datasync: true, .. } => "fdatasync",
            Call::Sync { .. } => "sync",
            Call::Mark { .. } => "mark",
            Call::Baseline => "start",
            Call::End { .. } => "end",
            Call::Device { .. } => "device",
            Call::Msync { .. } => "msync",
            Call::SyncRange { datasync: true, .. } => "O_DSYNC",
            Call::SyncRange { datasync: false, .. } => "O_SYNC",
        }
    }

    /// Bytes of data that the call carries.
    pub fn payload(&self) -> usize {
        match self {
            Call::Write { data, .. } => data.len(),
            Call::Xattr { value, .. } => value.as_ref().map_or(0, Vec::len),
            _ => 0,
        }
    }

    /// Whether the event is a mark of the recorder rather than a call of the program.
    pub fn is_note(&self) -> bool {
        matches!(
            self,
            Call::Process { .. }
                | Call::Mark { .. }
                | Call::Baseline
                | Call::End { .. }
                | Call::Device { .. }
        )
    }
}

/// A recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub events: Vec<Event>,
}

impl Trace {
    /// Number of the first event that a crash can follow.
    pub fn start(&self) -> usize {
        self.events.iter().rposition(|e| e.call == Call::Baseline).map_or(0, |i| i + 1)
    }

    /// The inode of the file that stands for a block device, if a device was recorded.
    pub fn device(&self) -> Option<u64> {
        self.events.iter().find_map(|e| match e.call {
            Call::Device { ino } => Some(ino),
            _ => None,
        })
    }

    /// The time of the last event before crash point `at`; 0 at the very beginning.
    pub fn time_before(&self, at: u32) -> u64 {
        let last = (at as usize).checked_sub(1).and_then(|last| self.events.get(last));
        last.map_or(0, |event| event.time)
    }

    /// The exit code of the program, if the recorder saw the program end.
    pub fn end(&self) -> Option<i32> {
        self.events.iter().rev().find_map(|e| match e.call {
            Call::End { code } => Some(code),
            _ => None,
        })
    }

    /// Whether no call changed anything.
    pub fn is_unchanged(&self) -> bool {
        self.events.iter().skip(self.start()).all(|event| event.call.is_note())
    }

    /// The texts of the marks before event `at`.
    pub fn marks(&self, at: usize) -> Vec<&str> {
        let told = self.events[..at.min(self.events.len())].iter();
        told.filter_map(|e| match &e.call {
            Call::Mark { text } => Some(text.as_str()),
            _ => None,
        })
        .collect()
    }

    /// All marks, in a form that finds those before any event without a walk over the events.
    pub(crate) fn all_marks(&self) -> Marks<'_> {
        let mut marks = Marks { events: Vec::new(), texts: Vec::new() };
        for (number, event) in self.events.iter().enumerate() {
            if let Call::Mark { text } = &event.call {
                marks.events.push(number);
                marks.texts.push(text);
            }
        }
        marks
    }

    /// The recording with events inserted, each before the event with its number. A persistence
    /// call covers the same calls as before, and those inserted between them.
    pub fn with_events(&self, mut new: Vec<(usize, Event)>) -> Trace {
        new.sort_by_key(|(before, _)| *before);
        let places: Vec<usize> = new.iter().map(|(before, _)| *before).collect();
        let moved = |mut event: Event| {
            if let Call::Fsync { since, .. }
            | Call::Msync { since, .. }
            | Call::SyncRange { since, .. }
            | Call::Sync { since } = &mut event.call
            {
                *since += places.partition_point(|at| (*at as u64) < *since) as u64;
            }
            event
        };
        let mut new = new.into_iter().peekable();
        let mut events = Vec::with_capacity(self.events.len() + places.len());
        for (number, event) in self.events.iter().enumerate() {
            while let Some((_, event)) = new.next_if(|(before, _)| *before == number) {
                events.push(moved(event));
            }
            events.push(moved(event.clone()));
        }
        events.extend(new.map(|(_, event)| moved(event)));
        Trace { events }
    }
}

/// The texts of the marks, with the numbers of their events.
pub(crate) struct Marks<'a> {
    /// The numbers of the events.
    events: Vec<usize>,
    texts: Vec<&'a str>,
}

impl<'a> Marks<'a> {
    /// The texts of the marks before event `at`.
    pub fn before(&self, at: u32) -> &[&'a str] {
        &self.texts[..self.events.partition_point(|n| *n < at as usize)]
    }
}
