//! `kedge mkfs --from`: an image filled from a directory or a tar stream, through the library.
//!
//! | part | does |
//! |---|---|
//! | `sink` | makes files in the image with owners, modes, times and attributes; knows no source |
//! | `tree` | reads a directory |
//! | `image` | reads an image |
//! | `archive` | reads a tar stream as records, believing nothing in it |
//! | `tar` | makes the entries of an archive in the image |
//!
//! # Bytes that repeat
//! With `SOURCE_DATE_EPOCH` the same source and options give the same image, byte for byte: the
//! clock stands still, what is random follows from the options, and one thread does everything.
//! Nothing may depend on how fast the device is. So the sink syncs before a batch of the log is
//! full and before the flusher would wake, and writes checkpoints before the background would.

mod archive;
pub mod image;
pub mod sink;
mod tar;
mod tree;

use anyhow::{Context, Result};
use kedge_host::image::is_remote;
use kedge_host::{Usage, clock, engine};
use kedgefs::{Attr, FileSystem, FormatOptions, Ino, Timespec};
use sink::{Entries, Sink};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What `--from` names.
pub enum Source {
    Tree(PathBuf),
    /// A tar file, or a copy of standard input. Read from its beginning each time.
    Tar(File),
}

/// What a source holds, roughly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    pub entries: u64,
    /// Whole blocks.
    pub data_bytes: u64,
    /// Names, link targets and attributes.
    pub text_bytes: u64,
}

impl Estimate {
    fn data(&mut self, bytes: u64) {
        self.data_bytes = self.data_bytes.saturating_add(bytes).saturating_add(BLOCK - 1) / BLOCK * BLOCK;
    }

    /// Bytes of an image that holds it. Generous with the tree: between two checkpoints a changed
    /// node exists twice, and nodes are half full at worst.
    pub fn image_size(&self) -> u64 {
        const MIB: u64 = 1 << 20;
        let tree = self.entries.saturating_mul(700).saturating_add(self.text_bytes.saturating_mul(2));
        let content = self.data_bytes.saturating_add(tree.saturating_mul(4)).saturating_add(6 * MIB);
        // The log: a 32nd within 32 MiB and 1 GiB, and at most a quarter.
        let log = (content / 16).max(32 * MIB).min(content / 2);
        let bytes = content.saturating_add(log).saturating_add(content / 50);
        // What is larger than any image is refused when the image is made.
        bytes.clamp(16 * MIB, 1 << 60).div_ceil(MIB) * MIB
    }
}

const BLOCK: u64 = kedge_base::BLOCK_SIZE as u64;

impl Source {
    /// Opens what was named. `-` is standard input; if its size is wanted before it is read, it is
    /// kept in a nameless file in `scratch`.
    pub fn open(path: &Path, scratch: &Path) -> Result<Source> {
        if path == Path::new("-") {
            return Ok(Source::Tar(spool(scratch)?));
        }
        // Looked at before it is opened: a pipe would wait for a writer.
        let meta = std::fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
        if meta.is_dir() {
            return Ok(Source::Tree(path.to_owned()));
        }
        if !meta.is_file() {
            return Err(Usage(format!(
                "--from {}: neither a directory nor a file (- is standard input)",
                path.display()
            ))
            .into());
        }
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        Ok(Source::Tar(file))
    }

    /// Refuses an image inside of the directory that fills it: it would have to hold itself.
    pub fn refuse_inside(&self, image: &Path) -> Result<()> {
        let Source::Tree(dir) = self else { return Ok(()) };
        if is_remote(image)? {
            return Ok(());
        }
        let above = image.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let real = |path: &Path| path.canonicalize().with_context(|| format!("find {}", path.display()));
        if real(above)?.starts_with(real(dir)?) {
            return Err(Usage(format!(
                "{} lies in {}, from which it is made",
                image.display(),
                dir.display()
            ))
            .into());
        }
        Ok(())
    }

    /// What it holds. Reads the headers of an archive, and all names of a directory.
    pub fn estimate(&self) -> Result<Estimate> {
        match self {
            Source::Tree(dir) => tree::estimate(dir),
            Source::Tar(file) => tar::estimate(from_start(file)?),
        }
    }
}

fn from_start(mut file: &File) -> Result<BufReader<&File>> {
    file.seek(SeekFrom::Start(0)).context("go to the beginning of the archive")?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// A copy of standard input that can be read twice, and goes with this process.
fn spool(dir: &Path) -> Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = open(dir, flags, Mode::RUSR | Mode::WUSR)
        .with_context(|| format!("make a file in {} for standard input", dir.display()))?;
    let mut file = File::from(fd);
    let mut input = std::io::stdin().lock();
    std::io::copy(&mut input, &mut file)
        .with_context(|| format!("keep standard input in {}", dir.display()))?;
    Ok(file)
}

/// What is otherwise random, from the options that tell images apart (FNV-1a).
pub fn seed(date: Timespec, options: &FormatOptions) -> u64 {
    let uuid = options.uuid.unwrap_or_default().into_bytes();
    let size = options.size.unwrap_or(0).to_le_bytes();
    let label = options.label.bytes();
    let bytes = date.sec.to_le_bytes().into_iter().chain(size).chain(uuid).chain(label);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Fills the new image at `image` and closes it.
pub fn fill(source: &Source, image: &Path, date: Option<Timespec>) -> Result<()> {
    let fs = engine::open_to_fill(image, clock::of(date))?;
    let shows = std::io::stderr().is_terminal();
    let mut sink = Sink::new(&fs, Ino::ROOT, date, shows);
    let filled = match source {
        Source::Tree(dir) => tree::fill(dir, &mut sink),
        Source::Tar(file) => from_start(file).and_then(|reader| tar::fill(reader, &mut sink)),
    };
    let finished = filled.and_then(|()| sink.finish());
    // Closed in any case; the first error is the cause.
    let closed = fs.close().with_context(|| format!("close {}", image.display()));
    finished.and(closed)
}

/// Copies what is below a directory of this machine, and its attributes, to where the sink begins.
pub fn fill_from_dir(dir: &Path, sink: &mut impl Entries) -> Result<()> {
    tree::fill(dir, sink)
}

/// Copies a file of this machine that is no directory.
pub fn add_host_file<E: Entries>(path: &Path, at: sink::At<'_, E::Id>, sink: &mut E) -> Result<()> {
    tree::add(path, at, sink)
}

/// Puts the entries of an archive where the sink begins.
pub fn fill_from_tar(archive: impl Read, sink: &mut Sink<'_>) -> Result<()> {
    tar::fill(archive, sink)
}

/// Puts the entries of an archive into a directory.
pub fn unpack(fs: &FileSystem, dir: Ino, archive: impl Read) -> Result<()> {
    let mut sink = Sink::new(fs, dir, None, std::io::stderr().is_terminal());
    let filled = tar::fill(archive, &mut sink);
    // Also behind an error: directories that are there get the times that they were told.
    let finished = sink.finish();
    filled.and(finished)
}

/// Reads until `buf` is full or the source ends.
pub fn read_full(reader: &mut impl Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match reader.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// A path for people.
fn show(path: &[u8]) -> String {
    match path {
        b"" => ".".into(),
        path => kedge_base::printable(&String::from_utf8_lossy(path)),
    }
}

pub fn is_dir(attr: &Attr) -> bool {
    attr.kind == kedgefs::FileKind::Directory
}

#[cfg(test)]
#[path = "import/crash_tests.rs"]
mod crash_tests;
#[cfg(test)]
#[path = "import/fuzz_tests.rs"]
mod fuzz_tests;
#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
