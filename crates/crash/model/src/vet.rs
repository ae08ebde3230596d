//! Vets the events of a recording.
//!
//! People exchange recordings, so each is read as if an attacker had made it: no code that uses its
//! names and numbers must have to check them. An event is refused unless
//! 1. each name of a directory is one that a directory can hold: not empty, neither `.` nor `..`,
//!    without `/` and NUL, and of at most 255 bytes;
//! 2. the target of a symlink and the name of an attribute are neither empty nor contain a NUL, and
//!    are no longer than Linux permits;
//! 3. a new inode has a number other than 0 and the root's;
//! 4. no range and no size goes beyond the largest file;
//! 5. a persistence call covers only events that come before it;
//! 6. the ranges of an msync do not end before they begin.
//!
//! Failed calls are vetted too, as far as they are used: reports show their names, which may be too
//! long, and a failed persistence call has an effect.

use crate::state::ROOT;
use crate::trace::{Call, Event};

/// The longest name of a directory entry and of an attribute, in bytes.
const NAME_MAX: usize = 255;
/// The longest target of a symlink, in bytes.
const TARGET_MAX: usize = 4095;
/// The largest size of a file, in bytes.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Whether a directory can contain the name, so that the name as a path leads only to an entry.
pub fn is_plain_name(name: &[u8]) -> bool {
    is_plain_of(name, NAME_MAX)
}

fn is_plain_of(name: &[u8], longest: usize) -> bool {
    let names_an_entry = !name.is_empty() && name != b"." && name != b"..";
    names_an_entry && !name.contains(&b'/') && !name.contains(&0) && name.len() <= longest
}

/// Checks an event. The error is why event number `number` cannot be part of a recording.
pub(crate) fn vet(event: &Event, number: u64) -> Result<(), &'static str> {
    names(event)?;
    match &event.call {
        Call::Fsync { since, .. }
        | Call::Msync { since, .. }
        | Call::SyncRange { since, .. }
        | Call::Sync { since }
            if *since > number =>
        {
            Err("it makes events durable that come after it")
        }
        // The ranges of a failed call are checked too, since reports show them.
        Call::Msync { ranges, .. } | Call::SyncRange { ranges, .. }
            if ranges.iter().any(|(from, to)| from > to || *to > SIZE_MAX) =>
        {
            Err("its range is none of a file")
        }
        call if event.ok() => values(call),
        _ => Ok(()),
    }
}

fn names(event: &Event) -> Result<(), &'static str> {
    let [name, second]: [Option<&[u8]>; 2] = match &event.call {
        Call::Create { name, .. } | Call::Link { name, .. } | Call::Remove { name, .. } => [Some(name), None],
        Call::Rename { name, new_name, .. } => [Some(name), Some(new_name)],
        _ => return Ok(()),
    };
    let longest = if event.ok() { NAME_MAX } else { usize::MAX };
    match [name, second].into_iter().flatten().all(|name| is_plain_of(name, longest)) {
        true => Ok(()),
        false => Err("a name in it is none that a directory can hold"),
    }
}

fn values(call: &Call) -> Result<(), &'static str> {
    let is_text = |text: &[u8], longest| !text.is_empty() && text.len() <= longest && !text.contains(&0);
    let is_range = |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= SIZE_MAX);
    match call {
        Call::Create { ino, .. } | Call::Tmpfile { ino, .. } if matches!(*ino, 0 | ROOT) => {
            Err("the number of its inode is not free")
        }
        Call::Create { target: Some(target), .. } if !is_text(target, TARGET_MAX) => {
            Err("the target of the link is none that a link can have")
        }
        Call::Xattr { name, .. } if !is_text(name, NAME_MAX) => {
            Err("the name of the attribute is none that a file can have")
        }
        Call::Write { offset, data, .. } if !is_range(*offset, data.len() as u64) => {
            Err("it writes beyond the largest file")
        }
        Call::Allocate { offset, len, .. } if !is_range(*offset, *len) => {
            Err("it allocates beyond the largest file")
        }
        Call::Truncate { size, .. } if *size > SIZE_MAX => Err("it makes a file larger than the largest"),
        _ => Ok(()),
    }
}
