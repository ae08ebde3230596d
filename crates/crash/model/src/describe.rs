//! Describes calls in words by which a person finds them in the program.

use crate::state::ROOT;
use crate::trace::{Call, Event, Space, Trace};
use kedge_base::printable;
use std::collections::HashMap;

/// The paths of inodes, as they were when each call was made.
pub struct Paths {
    /// For each event, the path of the file or directory that it changes, and a second path if it
    /// has one.
    of: Vec<(String, String)>,
    /// For each inode, the events that gave it a name: event number, directory, name.
    names: HashMap<u64, Vec<(usize, u64, Vec<u8>)>>,
    /// The file that stands for a block device.
    device: Option<u64>,
}

/// The persistence call of a block device.
const FLUSH: &str = "flush";

/// The longest path in names. Only a damaged recording has more, in a loop of directories.
const DEPTH_MAX: usize = 256;
/// The longest path in bytes that is shown; of a longer one the report shows the end.
const PATH_MAX: usize = 4096;

impl Paths {
    pub fn of(trace: &Trace) -> Paths {
        let mut paths = Paths {
            of: Vec::with_capacity(trace.events.len()),
            names: HashMap::new(),
            device: trace.device(),
        };
        for (number, event) in trace.events.iter().enumerate() {
            let both = paths.read(number, event);
            paths.of.push(both);
        }
        paths
    }

    fn set_name(&mut self, number: usize, ino: u64, dir: u64, name: &[u8]) {
        self.names.entry(ino).or_default().push((number, dir, name.to_vec()));
    }

    /// The call that makes an inode durable.
    pub fn persisting(&self, ino: u64, at: usize) -> String {
        match self.device == Some(ino) {
            true => FLUSH.to_owned(),
            false => format!("fsync({:?})", self.inode(ino, at)),
        }
    }

    pub fn path(&self, event: usize) -> &str {
        self.of.get(event).map_or("", |p| &p.0)
    }

    /// The path of an inode just before event `at`. A file whose name was removed has its last
    /// path.
    pub fn inode(&self, ino: u64, at: usize) -> String {
        let (mut parts, mut len) = (Vec::new(), 0);
        let mut next = ino;
        while next != ROOT && parts.len() < DEPTH_MAX && len < PATH_MAX {
            let names = self.names.get(&next).map_or(&[][..], Vec::as_slice);
            let Some((_, dir, name)) = names.iter().rev().find(|n| n.0 < at) else {
                return format!("(inode {ino}, without a name)");
            };
            parts.push(String::from_utf8_lossy(name).into_owned());
            len += name.len() + 1;
            next = *dir;
        }
        if parts.is_empty() {
            return ".".into();
        }
        parts.reverse();
        parts.join("/")
    }

    fn child(&self, dir: u64, name: &[u8], at: usize) -> String {
        let name = String::from_utf8_lossy(name);
        if dir == ROOT { name.into_owned() } else { format!("{}/{name}", self.inode(dir, at)) }
    }

    fn read(&mut self, at: usize, event: &Event) -> (String, String) {
        let none = String::new;
        match &event.call {
            Call::Create { dir, name, ino, target, .. } => {
                let path = self.child(*dir, name, at);
                if event.ok() {
                    self.set_name(at, *ino, *dir, name);
                }
                (path, target.as_ref().map_or_else(none, |t| String::from_utf8_lossy(t).into_owned()))
            }
            Call::Link { ino, dir, name } => {
                let both = (self.inode(*ino, at), self.child(*dir, name, at));
                if event.ok() {
                    self.set_name(at, *ino, *dir, name);
                }
                both
            }
            Call::Remove { dir, name, .. } => {
                // Reports show an open file under this name even after its removal.
                (self.child(*dir, name, at), none())
            }
            Call::Rename { dir, name, new_dir, new_name, ino, victim, exchange } => {
                let both = (self.child(*dir, name, at), self.child(*new_dir, new_name, at));
                if event.ok() {
                    self.set_name(at, *ino, *new_dir, new_name);
                    if let Some(victim) = victim.filter(|_| *exchange) {
                        self.set_name(at, victim, *dir, name);
                    }
                }
                both
            }
            Call::Tmpfile { ino, .. }
            | Call::Write { ino, .. }
            | Call::Truncate { ino, .. }
            | Call::Allocate { ino, .. }
            | Call::Attr { ino, .. }
            | Call::Xattr { ino, .. }
            | Call::Fsync { ino, .. }
            | Call::Msync { ino, .. }
            | Call::SyncRange { ino, .. } => (self.inode(*ino, at), none()),
            Call::Process { .. }
            | Call::Sync { .. }
            | Call::Mark { .. }
            | Call::Baseline
            | Call::End { .. }
            | Call::Device { .. } => (none(), none()),
        }
    }

    /// The call with its arguments.
    pub fn call(&self, number: usize, event: &Event) -> String {
        let (path, second) = self.of.get(number).map_or(("", ""), |p| (&p.0, &p.1));
        let name = event.call.name();
        let text = match &event.call {
            Call::Create { target: Some(_), .. } => format!("{name}({second:?}, {path:?})"),
            Call::Fsync { ino, .. } if self.device == Some(*ino) => FLUSH.to_owned(),
            Call::Write { ino, offset, data, .. } if self.device == Some(*ino) => {
                format!("{name}({} bytes at {offset})", data.len())
            }
            Call::Allocate { ino, offset, len, .. } if self.device == Some(*ino) => {
                format!("discard({len} bytes at {offset})")
            }
            Call::Create { .. } | Call::Remove { .. } | Call::Fsync { .. } | Call::Tmpfile { .. } => {
                format!("{name}({path:?})")
            }
            Call::Link { .. } | Call::Rename { .. } => format!("{name}({path:?}, {second:?})"),
            Call::Write { offset, data, .. } => {
                format!("{name}({path:?}, {} bytes at {offset})", data.len())
            }
            Call::Msync { ranges, .. } | Call::SyncRange { ranges, .. } => {
                let range = |(from, to): &(u64, u64)| format!(", {} bytes at {from}", to - from);
                format!("{name}({path:?}{})", ranges.iter().map(range).collect::<String>())
            }
            Call::Truncate { size, .. } => format!("{name}({path:?}, {size})"),
            Call::Allocate { how, offset, len, .. } => {
                let how = match how {
                    Space::Allocate { keep_size: false } => "",
                    Space::Allocate { keep_size: true } => ", keep size",
                    Space::Punch => ", punch hole",
                    Space::Zero { .. } => ", zero range",
                    Space::Collapse => ", collapse range",
                    Space::Insert => ", insert range",
                };
                format!("{name}({path:?}{how}, {len} bytes at {offset})")
            }
            Call::Attr { mode: Some(mode), .. } => format!("{name}({path:?}, {:o})", mode & 0o7777),
            Call::Attr { .. } => format!("{name}({path:?})"),
            Call::Xattr { name: xattr, .. } => {
                format!("{name}({path:?}, {:?})", String::from_utf8_lossy(xattr))
            }
            Call::Mark { text } => format!("mark {text:?}"),
            Call::Process { pid, name, .. } => format!("process {pid}, {}", printable(name)),
            Call::End { code } => format!("end, exit code {code}"),
            Call::Sync { .. } | Call::Baseline | Call::Device { .. } => name.to_owned(),
        };
        if event.ok() { text } else { format!("{text} = {}", std::io::Error::from_raw_os_error(event.errno)) }
    }
}

/// A number with its noun: `1 state`, `2 states`.
pub fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
