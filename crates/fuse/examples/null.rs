//! The floor of every measurement on a mount: a file system in memory, behind the same server and
//! transport as KedgeFS, which makes nothing durable. What it needs for an operation is what the
//! kernel's interface costs. `null DIR [WORKERS]` serves the mount on DIR until it is unmounted.

#[path = "../tests/memfs/mod.rs"]
mod memfs;

use kedge_fuse::{FuseOptions, mount};
use memfs::MemFs;
use std::fs::File;
use std::io::{self, Error};

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or_else(|| Error::other("usage: null DIR [WORKERS]"))?;
    let workers = args.next().map(|n| n.parse().map_err(Error::other)).transpose()?;
    let temp = tempfile::tempdir()?;
    // A mount by root goes through a block device, as that of KedgeFS does.
    let image = temp.path().join("null");
    File::create(&image)?.set_len(1 << 20)?;
    let options = FuseOptions { workers, ..FuseOptions::default() };
    let session = mount(&image, dir.as_ref(), &options).map_err(Error::other)?;
    session.run(MemFs::new())
}
