//! Groups the edits of a recording by what they change.
//!
//! An edit of a file's contents or attributes changes only that file. An edit of names may change
//! two directories at once. So all directories together are one *part*, and each file is a part.
//! Parts are independent: two states that differ in a few edits differ only in the parts of these
//! edits, and only those parts have to be rebuilt.

use crate::edit::{Edit, Meta};
use crate::split::Micro;
use crate::state::{Body, ROOT, State};
use std::collections::{BTreeSet, HashMap};

/// The number of the part that has all directories.
pub(crate) const DIRS: u32 = 0;

pub(crate) struct Parts {
    /// The part of each edit, by the edit's number.
    of: Vec<u32>,
    /// The edits of each part, in the order of the recording.
    edits: Vec<Vec<u32>>,
    /// The inodes of each part: one file, or all directories.
    inodes: Vec<Vec<u64>>,
}

impl Parts {
    /// Assigns the edits to parts. `base` is the tree before the first edit.
    pub fn new(base: &State, micros: &[Micro]) -> Parts {
        let mut dirs: BTreeSet<u64> = BTreeSet::from([ROOT]);
        dirs.extend(base.nodes().filter(|(_, node)| matches!(node.body, Body::Dir(_))).map(|(ino, _)| ino));
        dirs.extend(micros.iter().filter_map(|m| match &m.edit {
            Edit::Inode { ino, meta, .. } if meta.kind() == Meta::DIR => Some(*ino),
            _ => None,
        }));
        let mut numbers: HashMap<u64, u32> = dirs.iter().map(|ino| (*ino, DIRS)).collect();
        let mut parts = Parts {
            of: Vec::with_capacity(micros.len()),
            edits: vec![Vec::new()],
            inodes: vec![dirs.into_iter().collect()],
        };
        for (n, micro) in micros.iter().enumerate() {
            let part = match micro.edit.own() {
                None => DIRS,
                Some(ino) => *numbers.entry(ino).or_insert_with(|| {
                    parts.edits.push(Vec::new());
                    parts.inodes.push(vec![ino]);
                    parts.edits.len() as u32 - 1
                }),
            };
            parts.of.push(part);
            parts.edits[part as usize].push(n as u32);
        }
        parts
    }

    pub fn of(&self, micro: u32) -> u32 {
        self.of[micro as usize]
    }

    pub fn len(&self) -> usize {
        self.edits.len()
    }

    pub fn inodes(&self, part: u32) -> &[u64] {
        &self.inodes[part as usize]
    }

    /// The edits of a part whose numbers are in `from..to`.
    pub fn edits(&self, part: u32, from: u32, to: u32) -> &[u32] {
        let edits = &self.edits[part as usize];
        let place = |n: u32| edits.partition_point(|e| *e < n);
        &edits[place(from)..place(to)]
    }
}
