//! What a command shows that ran on a state: its exit code, its output, the files that it leaves.

use crate::page::{Digest, digest_of};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The text that replaces the name of the state's directory in an output.
const DIR: &[u8] = b"$KEDGE_DIR";
/// The most levels of directories that are read.
const DEPTH_MAX: usize = 256;

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

/// The regular files below a directory, with the digests of their contents. Links are not followed.
pub fn read_tree(dir: &Path) -> io::Result<BTreeMap<Vec<u8>, Digest>> {
    let mut tree = BTreeMap::new();
    read_below(dir, dir, 0, &mut tree)?;
    Ok(tree)
}

fn read_below(top: &Path, dir: &Path, depth: usize, tree: &mut BTreeMap<Vec<u8>, Digest>) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other("the directories that the command left are too deep"));
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            read_below(top, &path, depth + 1, tree)?;
        } else if kind.is_file() {
            let bytes = fs::read(&path)?;
            let below = path.strip_prefix(top).unwrap_or(&path);
            // Add the length to the digest, since the digest of zeros does not depend on their
            // number.
            let digest =
                digest_of(&[&digest_of(&bytes).to_le_bytes()[..], &bytes.len().to_le_bytes()].concat());
            tree.insert(below.as_os_str().as_bytes().to_vec(), digest);
        }
    }
    Ok(())
}
