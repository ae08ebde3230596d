//! Makes the golden images with trees that `tests/golden_trees.rs` opens: `cargo run -p kedgefs
//! --example golden_trees -- FILE [all]`. Without `all` the image has no checksums of data and no
//! data in the tree, and its allocation maps lie before the log. Run it only to make an image with
//! a new name; existing images must not be replaced.
//!
//! The file has the form of that of `examples/golden.rs`.

use kedge_device::{Device, MemDevice};
use kedgefs::*;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
/// The size in bytes after a growth that moves the allocation maps.
const GROWN: u64 = 8 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which file?")?;
    let all = args.next().is_some_and(|kind| kind == "all");
    let device = Arc::new(MemDevice::new(SIZE));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let options = FormatOptions {
        log_size: Some(1 << 20),
        label: "golden trees".into(),
        data_checksums: all,
        inline_max: if all { 512 } else { 0 },
        ..Default::default()
    };
    FileSystem::format(device.clone(), clock.clone(), &options)?;
    let fs = FileSystem::open(device.clone(), clock, MountOptions::default())?;
    if all {
        fs.resize(Some(GROWN))?;
    }
    let owner = Owner { uid: 1000, gid: 100 };
    let put = |dir: Ino, name: &[u8], data: &[u8]| -> kedgefs::Result<Ino> {
        let ino = fs.lookup(dir, name).or_else(|_| fs.create(dir, name, 0o644, owner))?.ino;
        fs.write(ino, 0, data)?;
        Ok(ino)
    };
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, owner)?.ino;
    put(dir, b"small", &[b's'; 300])?;
    let large = put(dir, b"large", &[b'l'; 40_000])?;
    let clone = put(dir, b"clone", b"")?;
    fs.clone_file(large, clone)?;
    fs.write(clone, 4096, &[b'c'; 4096])?;
    let limited = fs.mkdir(Ino::ROOT, b"limited", 0o755, owner)?.ino;
    fs.set_limit(limited, SetLimit { bytes: Some(Some(64 << 10)), files: Some(Some(4)) })?;
    put(limited, b"counted", &[b'n'; 8192])?;
    fs.fork(Ino::ROOT, Ino::ROOT, b"snapshot", true)?;
    fs.write(large, 0, &[b'L'; 4096])?;
    put(dir, b"small", b"smaller")?;
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false)?.ino;
    let in_fork = fs.lookup(fork, b"dir")?.ino;
    put(in_fork, b"large", &[b'F'; 5000])?;
    put(in_fork, b"new", b"only in the fork")?;
    fs.fork(Ino::ROOT, Ino::ROOT, b"gone", false)?;
    fs.checkpoint()?;
    // From here on changes are only in the log, not in a checkpoint.
    fs.delete_tree(Ino::ROOT, b"gone")?;
    fs.fork(fork, Ino::ROOT, b"late", false)?;
    let late = put(dir, b"late clone", b"")?;
    fs.clone_file(large, late)?;
    fs.set_limit(limited, SetLimit { bytes: None, files: Some(Some(5)) })?;
    put(limited, b"logged", &[b'g'; 200])?;
    fs.fsync(fs.lookup(limited, b"logged")?.ino, false)?;
    let small = fs.lookup(in_fork, b"small")?.ino;
    fs.write(small, 2, b"ASH")?;
    fs.fsync(small, false)?;
    fs.unlink(in_fork, b"clone")?;
    fs.sync()?;

    // The image is copied at one moment, because the deleted tree is being reclaimed in the
    // background.
    let device = device.fork();
    let mut out = std::fs::File::create(path)?;
    for number in 0..device.geometry().size / 4096 {
        let block = device.bytes(number * 4096, 4096);
        if block.iter().any(|byte| *byte != 0) {
            out.write_all(&number.to_le_bytes())?;
            out.write_all(&block)?;
        }
    }
    Ok(())
}
