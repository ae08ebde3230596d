//! What was done and promised since the image was mounted, and the judgement of what a recovery
//! finds.
//!
//! There is no fsync action. Whenever the rules would let an fsync of a file return, its promise
//! counts as given. No program asks for more, and the exploration does not have to vary the time of
//! the call.

use crate::medium::{FILES, GARBAGE, Medium, Tree};
use crate::recovery::Recovered;
use crate::rule::Guarantee;

/// The content that an operation gives to a file. It is unique, and its parity identifies the file.
pub fn content(file: u8, operation: u8) -> u8 {
    2 * operation + file
}

/// An operation. `number` is that of an operation that gives content to files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Done {
    Write { file: u8, number: u8 },
    Remove { file: u8 },
    Items,
    Atomic { number: u8 },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct History {
    /// The content of each file when the image was mounted.
    pub base: [u8; FILES],
    pub done: Vec<Done>,
    /// By file: the number of operations that an fsync of it has made persistent.
    pub fsynced: [usize; FILES],
    /// The number of operations that a sync has made persistent.
    pub synced: usize,
    /// The log is promised to be durable up to this position.
    pub durable: u64,
    /// The end of each record from the last promised one on, and the tree after it.
    pub trees: Vec<(u64, Tree)>,
}

impl History {
    pub fn new(base: [u8; FILES], head: u64, tree: Tree) -> History {
        let trees = vec![(head, tree)];
        History { base, done: Vec::new(), fsynced: [0; FILES], synced: 0, durable: head, trees }
    }

    /// Promises that the log is durable up to `durable`.
    pub fn promise(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
        let durable = self.durable;
        self.trees.retain(|(end, _)| *end >= durable);
    }

    /// Drops operations that are persistent for every file.
    pub fn forget(&mut self) {
        let count = self.fsynced.iter().copied().min().unwrap_or(0);
        self.base = std::array::from_fn(|file| self.value(file, count));
        self.done.drain(..count);
        self.fsynced = self.fsynced.map(|fsynced| fsynced.saturating_sub(count));
        self.synced = self.synced.saturating_sub(count);
    }

    /// The content of a file after the first `count` operations.
    fn value(&self, file: usize, count: usize) -> u8 {
        let of_file = |done: &Done| match *done {
            Done::Write { file: of, number } if usize::from(of) == file => Some(content(of, number)),
            Done::Remove { file: of } if usize::from(of) == file => Some(0),
            Done::Atomic { number } => Some(content(file as u8, number)),
            Done::Write { .. } | Done::Remove { .. } | Done::Items => None,
        };
        self.done[..count].iter().rev().find_map(of_file).unwrap_or(self.base[file])
    }

    /// Whether the file had this content after the first `from` operations or after a later one.
    fn since(&self, file: usize, from: usize, content: u8) -> bool {
        (from..=self.done.len()).any(|count| self.value(file, count) == content)
    }

    /// Checks the recovered state. The error is the guarantee that it breaks.
    pub fn judge(
        &self,
        medium: &Medium,
        recovered: &Result<Recovered, &'static str>,
    ) -> Result<(), Guarantee> {
        let broken = |holds: bool, guarantee: Guarantee| if holds { Ok(()) } else { Err(guarantee) };
        let recovered = recovered.as_ref().map_err(|_| Guarantee::Mounts)?;
        let tree = recovered.tree;
        let files: [u8; FILES] = std::array::from_fn(|file| recovered.file(medium, file));
        broken(tree.items[0] == tree.items[1], Guarantee::G3)?;
        for count in 1..=self.done.len() {
            if let Done::Atomic { number } = self.done[count - 1] {
                let some = (0..FILES).any(|file| files[file] == content(file as u8, number));
                let all = (0..FILES).all(|file| self.since(file, count, files[file]));
                broken(!some || all, Guarantee::G15)?;
            }
        }
        for (file, content) in files.into_iter().enumerate() {
            let own = content == 0 || usize::from(content % 2) == file;
            broken(content != GARBAGE && own, Guarantee::G9)?;
            broken(self.since(file, self.fsynced[file], content), Guarantee::G1)?;
            broken(self.since(file, self.synced, content), Guarantee::G13)?;
        }
        broken(recovered.head >= self.durable, Guarantee::G12)?;
        broken(self.trees.contains(&(recovered.head, tree)), Guarantee::Prefix)
    }
}
