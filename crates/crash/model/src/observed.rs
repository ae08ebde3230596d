//! What a command shows that ran on a state: its exit code, its output, the files that it leaves.

use crate::page::{Digest, ZEROS, digest_of};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The text that replaces the name of the state's directory in an output.
const DIR: &[u8] = b"$KEDGE_DIR";
/// The most levels of directories that are read.
const DEPTH_MAX: usize = 256;
/// The bytes of a file that are in memory at a time.
const PIECE: u64 = 1 << 20;

/// Whether a caller wants the file at a path below the directory.
pub type IsWanted<'a> = &'a dyn Fn(&[u8]) -> bool;

pub struct Observed {
    /// The exit code, or 128 plus the number of the signal that killed the command.
    pub code: i32,
    /// Standard output, with `$KEDGE_DIR` in place of the directory.
    pub out: Vec<u8>,
    /// The last line of standard error, or else of the output.
    pub last_line: String,
    /// The regular files that the command leaves, if the caller wanted them.
    pub tree: BTreeMap<Vec<u8>, Digest>,
}

/// The output with `$KEDGE_DIR` for the name of the directory, which differs from run to run.
pub fn without(out: &[u8], dir: &[u8]) -> Vec<u8> {
    let mut left = Vec::with_capacity(out.len());
    let mut rest = out;
    while let Some(at) = rest.windows(dir.len().max(1)).position(|part| part == dir) {
        left.extend_from_slice(&rest[..at]);
        left.extend_from_slice(DIR);
        rest = &rest[at + dir.len()..];
    }
    left.extend_from_slice(rest);
    left
}

/// The wanted regular files below a directory, with the digests of their contents. Links are not
/// followed.
pub fn read_tree(dir: &Path, is_wanted: IsWanted<'_>) -> io::Result<BTreeMap<Vec<u8>, Digest>> {
    let mut tree = BTreeMap::new();
    read_below(dir, dir, 0, is_wanted, &mut tree)?;
    Ok(tree)
}

fn read_below(
    top: &Path,
    dir: &Path,
    depth: usize,
    is_wanted: IsWanted<'_>,
    tree: &mut BTreeMap<Vec<u8>, Digest>,
) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other("the directories that the command left are too deep"));
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            read_below(top, &path, depth + 1, is_wanted, tree)?;
        } else if kind.is_file() {
            let below = path.strip_prefix(top).unwrap_or(&path).as_os_str().as_bytes();
            if is_wanted(below) {
                tree.insert(below.to_vec(), digest_file(&path)?);
            }
        }
    }
    Ok(())
}

/// The digest of a file's bytes and length. The file may be larger than the memory, and most of it
/// a hole: pieces are read one after the other, and those without data are skipped. A piece of
/// zeros counts like a hole.
fn digest_file(path: &Path) -> io::Result<Digest> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = vec![0; size.min(PIECE) as usize];
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < size {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let piece = data / PIECE;
        at = piece * PIECE;
        let bytes = &mut bytes[..size.saturating_sub(at).min(PIECE) as usize];
        file.read_exact_at(bytes, at)?;
        let digest = digest_of(bytes);
        if digest != ZEROS {
            pieces.extend(piece.to_le_bytes());
            pieces.extend(digest.to_le_bytes());
        }
        at = at.saturating_add(PIECE);
    }
    pieces.extend(size.to_le_bytes());
    Ok(digest_of(&pieces))
}

#[cfg(test)]
#[path = "observed_tests.rs"]
mod tests;
