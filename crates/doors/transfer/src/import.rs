//! `kedge mkfs --from`: fills an image from a directory or a tar stream, through the library.
//!
//! | part | does |
//! |---|---|
//! | `sink` | makes files in the image with owners, modes, times and attributes, for any source |
//! | `tree` | reads a directory |
//! | `image` | reads an image |
//! | `archive` | reads a tar stream as records, trusting nothing in it |
//! | `tar` | makes the entries of an archive in the image |
//!
//! # Bytes that repeat
//! With `SOURCE_DATE_EPOCH` the same source and options give the same image, byte for byte: the
//! clock is fixed, random values are derived from the options, and one thread does all the work.
//! Nothing may depend on the speed of the device. So the sink syncs before a batch of the log is
//! full and before the flusher would wake, and writes a checkpoint before the background checkpoint
//! would start.

pub(crate) mod archive;
pub(crate) mod image;
pub mod sink;
mod tar;
mod tree;

use anyhow::{Context, Result};
use kedge_device::Device;
use kedge_host::image::locate;
use kedge_host::{Usage, clock, engine};
use kedgefs::{Attr, FileSystem, FormatOptions, Ino, Timespec};
use sink::{Entries, Sink};
use std::fs::File;
use std::io::{BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The source that `--from` names.
pub enum Source {
    Tree(PathBuf),
    /// A tar file, or a copy of standard input. Each pass reads it from its beginning.
    Tar(File),
}

/// An estimate of a source's contents.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    pub entries: u64,
    /// Bytes of data, each file rounded up to whole blocks.
    pub data_bytes: u64,
    /// Bytes of names, link targets and attributes.
    pub text_bytes: u64,
}

impl Estimate {
    fn data(&mut self, bytes: u64) {
        self.data_bytes = self.data_bytes.saturating_add(bytes).saturating_add(BLOCK - 1) / BLOCK * BLOCK;
    }

    /// The size of an image that has room for the source, in bytes. The estimate of the tree is
    /// generous: between two checkpoints a changed node exists twice, and nodes are half full at
    /// worst.
    pub fn image_size(&self) -> u64 {
        const MIB: u64 = 1 << 20;
        let tree = self.entries.saturating_mul(700).saturating_add(self.text_bytes.saturating_mul(2));
        let content = self.data_bytes.saturating_add(tree.saturating_mul(4)).saturating_add(6 * MIB);
        // mkfs gives the log 1/32 of the image, within 32 MiB and 1 GiB, and at most a quarter.
        let log = (content / 16).max(32 * MIB).min(content / 2);
        let bytes = content.saturating_add(log).saturating_add(content / 50);
        // A size above the largest image is refused when the image is made.
        bytes.clamp(16 * MIB, 1 << 60).div_ceil(MIB) * MIB
    }
}

const BLOCK: u64 = kedge_base::BLOCK_SIZE as u64;

impl Source {
    /// Opens the named source. `-` is standard input, which is copied to a nameless file in
    /// `scratch` so that it can be read twice.
    pub fn open(path: &Path, scratch: &Path) -> Result<Source> {
        if path == Path::new("-") {
            return Ok(Source::Tar(spool(scratch)?));
        }
        // Check the type before opening: the open of a pipe would wait for a writer.
        let meta = std::fs::metadata(path).with_context(|| format!("find {}", path.display()))?;
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

    /// Refuses an image inside the directory that fills it, because the image would have to contain
    /// itself.
    pub fn refuse_inside(&self, image: &Path) -> Result<()> {
        let Source::Tree(dir) = self else { return Ok(()) };
        let location = locate(image)?;
        let Some(image) = location.host_path() else { return Ok(()) };
        let above = image.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let real = |path: &Path| path.canonicalize().with_context(|| format!("find {}", path.display()));
        if real(above)?.starts_with(real(dir)?) {
            return Err(Usage(format!("{} lies inside its source {}", image.display(), dir.display())).into());
        }
        Ok(())
    }

    /// Estimates the contents. Reads the headers of an archive, or all names of a directory.
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

/// Copies standard input to a nameless file that can be read twice and disappears with this
/// process.
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

/// Derives the seed of otherwise random values from the options that must lead to different images
/// (FNV-1a).
pub fn seed(date: Timespec, options: &FormatOptions) -> u64 {
    let uuid = options.uuid.unwrap_or_default().into_bytes();
    let size = options.size.unwrap_or(0).to_le_bytes();
    let label = options.label.bytes();
    let bytes = date.sec.to_le_bytes().into_iter().chain(size).chain(uuid).chain(label);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Fills the new image on the decrypted device `image` and closes it.
pub fn fill(source: &Source, image: Arc<dyn Device>, date: Option<Timespec>) -> Result<()> {
    let fs = engine::open_to_fill(image.clone(), clock::of(date))?;
    let shows = std::io::stderr().is_terminal();
    let mut sink = Sink::new(&fs, Ino::ROOT, date, shows);
    let filled = match source {
        Source::Tree(dir) => tree::fill(dir, &mut sink),
        Source::Tar(file) => from_start(file).and_then(|reader| tar::fill(reader, &mut sink)),
    };
    let finished = filled.and_then(|()| sink.finish());
    // Close in any case; the first error is the cause and is returned.
    let closed = fs.close().with_context(|| format!("close {}", image.name()));
    finished.and(closed)
}

/// Copies the contents and attributes of a directory of this machine to the top of the sink.
pub fn fill_from_dir(dir: &Path, sink: &mut impl Entries) -> Result<()> {
    tree::fill(dir, sink)
}

/// Copies a file of this machine other than a directory.
pub fn add_host_file<E: Entries>(path: &Path, at: sink::At<'_, E::Id>, sink: &mut E) -> Result<()> {
    tree::add(path, at, sink)
}

/// Unpacks an archive below the top of the sink.
pub fn fill_from_tar(archive: impl Read, sink: &mut Sink<'_>) -> Result<()> {
    tar::fill(archive, sink)
}

/// Unpacks an archive into a directory.
pub fn unpack(fs: &FileSystem, dir: Ino, archive: impl Read) -> Result<()> {
    let mut sink = Sink::new(fs, dir, None, std::io::stderr().is_terminal());
    let filled = tar::fill(archive, &mut sink);
    // Finish after an error too, so that the directories made so far get their times.
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

/// The path as messages print it: `.` for the root, control characters escaped.
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
