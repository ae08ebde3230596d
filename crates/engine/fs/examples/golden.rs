//! Makes the golden image that `tests/golden.rs` opens: `cargo run -p kedgefs --example golden --
//! FILE`. Run it only when the format changes in a way that makes older images unreadable; the old
//! file then stays, under its version's name, as a test of the refusal.
//!
//! The file contains the blocks of the image that are not zero: number (u64, little-endian) and
//! content.

use kedge_device::MemDevice;
use kedgefs::*;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

const SIZE: u64 = 16 << 20;
/// `u::rwx,u:1000:r--,g::r-x,m::r-x,o::---`
const LIST: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255,
    16, 0, 5, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    let device = Arc::new(MemDevice::new(SIZE));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    let options = FormatOptions {
        log_size: Some(1 << 20),
        label: "golden".into(),
        immutable: true,
        ..Default::default()
    };
    FileSystem::format(device.clone(), clock.clone(), &options)?;
    let fs = FileSystem::open(device.clone(), clock, MountOptions::default())?;
    let owner = Owner { uid: 1000, gid: 100 };
    let dir = fs.mkdir(Ino::ROOT, b"dir", 0o750, owner)?;
    let big = fs.create(dir.ino, b"big", 0o644, owner)?;
    fs.write(big.ino, 0, &[b'b'; 40_000])?;
    fs.write(big.ino, 1 << 20, b"behind a hole")?;
    fs.fallocate(big.ino, FallocateMode::Allocate { keep_size: true }, 2 << 20, 8192)?;
    fs.symlink(dir.ino, b"link", b"big", owner)?;
    fs.setxattr(dir.ino, b"user.key", b"value", XattrMode::Any)?;
    fs.link(big.ino, Ino::ROOT, b"hard")?;
    let listed = fs.create(Ino::ROOT, b"listed", 0o640, owner)?;
    fs.setxattr(listed.ino, acl::ACCESS, &LIST, XattrMode::Any)?;
    let fixed = fs.create(Ino::ROOT, b"fixed", 0o644, owner)?;
    fs.write(fixed.ino, 0, b"never to change")?;
    fs.set_flags(fixed.ino, FileFlags::IMMUTABLE)?;
    fs.setxattr(listed.ino, b"user.large", &[b'L'; 9000], XattrMode::Any)?;
    fs.checkpoint()?;
    // From here on changes are only in the log, not in a checkpoint.
    fs.setxattr(dir.ino, acl::DEFAULT, &LIST, XattrMode::Any)?;
    fs.set_flags(dir.ino, FileFlags::NODUMP)?;
    fs.setxattr(dir.ino, b"user.large", &[b'D'; 13_000], XattrMode::Any)?;
    fs.setxattr(listed.ino, b"user.large", &[b'S'; 5000], XattrMode::Any)?;
    fs.create(dir.ino, b"heir", 0o666, owner)?;
    fs.create(Ino::ROOT, b"below", 0o644, owner)?;
    let whiteout = RenameMode::Whiteout { owner, replace: false };
    fs.rename(Ino::ROOT, b"below", Ino::ROOT, b"above", whiteout)?;
    let logged = fs.create(Ino::ROOT, b"logged", 0o600, owner)?;
    fs.write(logged.ino, 0, b"data that rides in the log")?;
    fs.fsync(logged.ino, false)?;
    fs.rename(dir.ino, b"link", Ino::ROOT, b"moved", RenameMode::Replace)?;
    let open = fs.create(Ino::ROOT, b"gone", 0o600, owner)?;
    fs.pin(open.ino)?;
    fs.unlink(Ino::ROOT, b"gone")?;
    fs.sync()?;

    let bytes = device.bytes(0, SIZE as usize);
    let mut out = std::fs::File::create(path)?;
    for (number, block) in bytes.chunks(4096).enumerate().filter(|(_, b)| b.iter().any(|x| *x != 0)) {
        out.write_all(&(number as u64).to_le_bytes())?;
        out.write_all(block)?;
    }
    Ok(())
}
