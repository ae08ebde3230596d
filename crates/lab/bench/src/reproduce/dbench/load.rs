//! dbench's load file: the operations of one client, one in each line.
//!
//! ```text
//! NTCreateX "\clients\client1\DIR\FILE" OPTIONS DISPOSITION HANDLE STATUS
//! WriteX HANDLE OFFSET SIZE WRITTEN STATUS
//! Rename "\clients\client1\OLD" "\clients\client1\NEW" STATUS
//! ```
//!
//! The last word is the status that the operation had when it was recorded. Empty lines and lines
//! that begin with `#` are ignored. All lines are parsed and checked before the first operation
//! runs: an invalid line is an error that names its number, whereas dbench would skip it.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// The path at which Debian's package installs the file.
pub const PLACE: &str = "/usr/share/dbench/client.txt";
const FILE_MAX: u64 = 256 << 20;
/// Limit of open files of a client, as in dbench.
pub const OPEN_MAX: usize = 200;
/// Limit of one read or write. dbench's largest is 64 KiB.
pub const BYTES_MAX: u64 = 1 << 20;
/// The client's name in a load file.
const CLIENT: &str = "client1";

/// The operations, in the order of the announcement's table.
pub const OPERATIONS: [&str; 16] = [
    "NTCreateX",
    "Close",
    "Rename",
    "Unlink",
    "Deltree",
    "Mkdir",
    "Qpathinfo",
    "Qfileinfo",
    "Qfsinfo",
    "Sfileinfo",
    "Find",
    "WriteX",
    "ReadX",
    "LockX",
    "UnlockX",
    "Flush",
];

/// An index in [`Load::paths`].
pub type PathAt = usize;
/// A slot in a client's table of open files.
pub type FileAt = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub file: FileAt,
    pub offset: u64,
    pub size: usize,
    /// Number of bytes that were actually read or written in the recording.
    pub done: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub file: FileAt,
    pub offset: u64,
    pub size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Opens or creates a file or directory. `file` is `None` if it is expected to fail.
    Create {
        path: PathAt,
        directory: bool,
        create: bool,
        truncate: bool,
        file: Option<FileAt>,
    },
    Close(FileAt),
    Rename(PathAt, PathAt),
    Unlink(PathAt),
    Deltree(PathAt),
    Mkdir(PathAt),
    QueryPath(PathAt),
    QueryFile(FileAt),
    QueryFs,
    SetFile(FileAt),
    /// Reads at most this many entries.
    Find(PathAt, u64),
    Write(Piece),
    Read(Piece),
    Lock(Range),
    Unlock(Range),
    Flush(FileAt),
}

impl Op {
    /// The operation's index in [`OPERATIONS`].
    pub fn row(self) -> usize {
        match self {
            Op::Create { .. } => 0,
            Op::Close(_) => 1,
            Op::Rename(..) => 2,
            Op::Unlink(_) => 3,
            Op::Deltree(_) => 4,
            Op::Mkdir(_) => 5,
            Op::QueryPath(_) => 6,
            Op::QueryFile(_) => 7,
            Op::QueryFs => 8,
            Op::SetFile(_) => 9,
            Op::Find(..) => 10,
            Op::Write(_) => 11,
            Op::Read(_) => 12,
            Op::Lock(_) => 13,
            Op::Unlock(_) => 14,
            Op::Flush(_) => 15,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub line: usize,
    pub op: Op,
    /// Whether the operation is expected to succeed.
    pub succeeds: bool,
}

#[derive(Debug)]
pub struct Load {
    pub steps: Vec<Step>,
    paths: Vec<String>,
}

impl Load {
    /// Reads the load file of the installed package.
    pub fn installed() -> Result<Load> {
        Load::read(Path::new(PLACE))
    }

    pub fn read(path: &Path) -> Result<Load> {
        let file = std::fs::File::open(path)
            .with_context(|| format!("open dbench's load file {} (Debian package dbench)", path.display()))?;
        let mut text = String::new();
        file.take(FILE_MAX + 1)
            .read_to_string(&mut text)
            .with_context(|| format!("read {}", path.display()))?;
        ensure!(text.len() as u64 <= FILE_MAX, "{}: more than {} MiB", path.display(), FILE_MAX >> 20);
        Load::parse(&text).with_context(|| path.display().to_string())
    }

    pub fn parse(text: &str) -> Result<Load> {
        let mut reader = Reader::default();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            reader.line(i + 1, line).with_context(|| format!("line {}: '{line}'", i + 1))?;
        }
        if let Some((handle, (_, line))) = reader.open.first_key_value() {
            bail!("line {line}: nothing closes the handle {handle}");
        }
        ensure!(!reader.steps.is_empty(), "no operations");
        let mut paths = vec![String::new(); reader.paths.len()];
        reader.paths.into_iter().for_each(|(path, at)| paths[at] = path);
        Ok(Load { steps: reader.steps, paths })
    }

    /// Paths by index, relative to the directory in which the clients work.
    pub fn paths(&self, client: usize) -> Vec<String> {
        self.paths.iter().map(|path| path.replace(CLIENT, &format!("client{client}"))).collect()
    }
}

#[derive(Default)]
struct Reader {
    steps: Vec<Step>,
    paths: BTreeMap<String, PathAt>,
    /// For each open handle: its slot, and the line that opened it.
    open: BTreeMap<u64, (FileAt, usize)>,
    /// The slots of closed handles.
    free: Vec<FileAt>,
}

/// The words of a line between the operation and the status.
struct Words<'a> {
    left: std::slice::Iter<'a, &'a str>,
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str> {
        self.left.next().copied().with_context(|| format!("no {what}"))
    }

    fn number(&mut self, what: &str) -> Result<u64> {
        let word = self.next(what)?;
        let parsed = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        // dbench's numbers have 32 bits.
        let number = parsed.ok().filter(|n| u32::try_from(*n).is_ok());
        number.with_context(|| format!("the {what} '{word}' is no number"))
    }
}

/// Words separated by spaces; quotes hide spaces and are not part of the word.
fn words(line: &str) -> Result<Vec<&str>> {
    let mut words = Vec::new();
    let mut left = line.trim_start();
    while !left.is_empty() {
        let (word, rest) = match left.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').context("a quote does not end")?,
            None => left.split_once(char::is_whitespace).unwrap_or((left, "")),
        };
        words.push(word);
        left = rest.trim_start();
    }
    Ok(words)
}

/// Bits and values of NTCreateX: the bit for directories, and the dispositions that create or
/// truncate a file.
const DIRECTORY: u64 = 1;
const OPEN: u64 = 1;
const CREATE: u64 = 2;
const OVERWRITE: u64 = 4;
const OVERWRITE_IF: u64 = 5;

impl Reader {
    fn line(&mut self, line: usize, text: &str) -> Result<()> {
        let words = words(text)?;
        let [name, middle @ .., status] = &words[..] else { bail!("no operation with a status") };
        ensure!(!name.starts_with(|c: char| c.is_ascii_digit()), "loads with times are not supported");
        ensure!(status.starts_with("NT_STATUS_") || status.starts_with("0x"), "the status '{status}'");
        let succeeds = matches!(*status, "NT_STATUS_OK" | "0x0" | "0x00000000");
        let mut words = Words { left: middle.iter() };
        let op = self.op(line, name, &mut words, succeeds)?;
        // Only for these operations dbench checks the status.
        let may_fail = matches!(
            op,
            Op::Create { .. } | Op::Rename(..) | Op::Unlink(_) | Op::QueryPath(_) | Op::Find(..)
        );
        ensure!(succeeds || may_fail, "{name} cannot be expected to fail");
        self.steps.push(Step { line, op, succeeds });
        Ok(())
    }

    fn op(&mut self, line: usize, name: &str, words: &mut Words<'_>, succeeds: bool) -> Result<Op> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "ntcreatex" => self.create(line, words, succeeds)?,
            "close" => Op::Close(self.close(words)?),
            "rename" => Op::Rename(self.path(words)?, self.path(words)?),
            "unlink" => Op::Unlink(self.path(words)?),
            "deltree" => Op::Deltree(self.path(words)?),
            "mkdir" => Op::Mkdir(self.path(words)?),
            "query_path_information" => Op::QueryPath(self.path(words)?),
            "query_file_information" => Op::QueryFile(self.file(words)?),
            "query_fs_information" => Op::QueryFs,
            "set_file_information" => Op::SetFile(self.file(words)?),
            "find_first" => {
                let path = self.path(words)?;
                words.number("level")?;
                Op::Find(path, words.number("number of entries")?)
            }
            "writex" => Op::Write(self.piece(words)?),
            "readx" => Op::Read(self.piece(words)?),
            "lockx" => Op::Lock(self.range(words)?),
            "unlockx" => Op::Unlock(self.range(words)?),
            "flush" => Op::Flush(self.file(words)?),
            _ => bail!("unknown operation {name}"),
        })
    }

    fn create(&mut self, line: usize, words: &mut Words<'_>, succeeds: bool) -> Result<Op> {
        let path = self.path(words)?;
        let directory = words.number("options")? & DIRECTORY != 0;
        let disposition = words.number("disposition")?;
        ensure!(
            matches!(disposition, OPEN | CREATE | OVERWRITE | OVERWRITE_IF),
            "the disposition {disposition}"
        );
        let truncate = matches!(disposition, OVERWRITE | OVERWRITE_IF);
        let create = truncate || disposition == CREATE;
        let handle = words.number("handle")?;
        let file = if succeeds {
            ensure!(!self.open.contains_key(&handle), "the handle {handle} is open already");
            let at = self.free.pop().unwrap_or(self.open.len());
            ensure!(at < OPEN_MAX, "more than {OPEN_MAX} open files");
            self.open.insert(handle, (at, line));
            Some(at)
        } else {
            None
        };
        Ok(Op::Create { path, directory, create, truncate, file })
    }

    fn close(&mut self, words: &mut Words<'_>) -> Result<FileAt> {
        let handle = words.number("handle")?;
        let (at, _) =
            self.open.remove(&handle).with_context(|| format!("the handle {handle} is not open"))?;
        self.free.push(at);
        Ok(at)
    }

    fn file(&self, words: &mut Words<'_>) -> Result<FileAt> {
        let handle = words.number("handle")?;
        let open = self.open.get(&handle).with_context(|| format!("the handle {handle} is not open"))?;
        Ok(open.0)
    }

    fn path(&mut self, words: &mut Words<'_>) -> Result<PathAt> {
        let word = words.next("path")?;
        let path = word.replace('\\', "/");
        let path = path.strip_prefix('/').with_context(|| format!("the path '{word}' is not absolute"))?;
        let fine = !path.contains('\0') && path.split('/').all(|name| !matches!(name, "" | "." | ".."));
        ensure!(fine, "the path '{word}'");
        let next = self.paths.len();
        Ok(*self.paths.entry(path.to_owned()).or_insert(next))
    }

    fn piece(&self, words: &mut Words<'_>) -> Result<Piece> {
        let (file, offset) = (self.file(words)?, words.number("offset")?);
        let (size, done) = (words.number("size")?, words.number("result")?);
        ensure!(done <= size && size <= BYTES_MAX, "{done} of {size} bytes");
        Ok(Piece { file, offset, size: size as usize, done: done as usize })
    }

    fn range(&self, words: &mut Words<'_>) -> Result<Range> {
        Ok(Range { file: self.file(words)?, offset: words.number("offset")?, size: words.number("size")? })
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
