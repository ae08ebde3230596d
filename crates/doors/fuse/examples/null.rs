//! The lower bound of every measurement on a mount: a file system in memory, with the same server
//! and transport as KedgeFS, that makes nothing durable. Its time for an operation is the cost of
//! the kernel's interface. `null DIR [LOG]` serves the mount on DIR until it is unmounted.
//!
//! With LOG, a file, each fsync costs as much as with the smallest possible log: a durable write of
//! 4 KiB that begins after the call and serves all fsyncs that were called before it began.

#[path = "../tests/memfs/mod.rs"]
mod memfs;

use kedge_base::{BLOCK_SIZE, IoBuf, spawn_named};
use kedge_device::{Device, FileDevice, OpenOptions};
use kedge_fuse::{Done, FuseOptions, mount};
use memfs::{MemFs, OnFsync};
use std::fs::File;
use std::io::{self, Error};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(dir), log, None) = (args.next(), args.next(), args.next()) else {
        return Err(Error::other("usage: null DIR [LOG]"));
    };
    let mut fs = MemFs::new();
    fs.on_fsync = log.map(|log| group_commit(log.as_ref())).transpose()?;
    let temp = tempfile::tempdir()?;
    // A mount by root uses a block device, as with KedgeFS.
    let image = temp.path().join("null");
    File::create(&image)?.set_len(1 << 20)?;
    let session = mount(&image, dir.as_ref(), &FuseOptions::default()).map_err(Error::other)?;
    session.run(fs)
}

/// Writes one block after another, from one thread, and wraps around at the end of the file.
fn group_commit(log: &Path) -> io::Result<OnFsync> {
    let device = FileDevice::open(log, OpenOptions::default()).map_err(Error::other)?;
    let blocks = device.geometry().size / BLOCK_SIZE as u64;
    let (asked, asking) = channel::<Done>();
    spawn_named("null-log", move || {
        let block = IoBuf::zeroed(1);
        let places = (0..blocks).cycle();
        for (first, place) in asking.iter().zip(places) {
            let group: Vec<Done> = std::iter::once(first).chain(asking.try_iter()).collect();
            let written = device.write(place * BLOCK_SIZE as u64, &block, true);
            for done in group {
                done(match &written {
                    Ok(()) => Ok(()),
                    Err(e) => Err(kedgefs::Error::from(e.clone())),
                });
            }
        }
    })?;
    Ok(Arc::new(move |done| {
        // An error drops `done`, which makes the fsync fail with EIO.
        let _ = asked.send(done);
    }))
}
