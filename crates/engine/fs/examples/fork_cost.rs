//! What operations cost in an image with forks, to be counted in instructions: `valgrind
//! --tool=callgrind target/release/examples/fork_cost FORKS OPERATIONS [each|reclaim]`.
//!
//! Makes FORKS forks of a small tree in memory and opens all of them. Then creates, writes and
//! fsyncs OPERATIONS files in the last fork (in the tree itself without forks), or with `each` in
//! all trees in turn, twenty files at a time. The cost of an operation is the difference of two
//! runs divided by the difference of their OPERATIONS; checkpoints of other threads are included.
//! `reclaim` works as `each`, then deletes all forks and frees their space: the cost of that is the
//! difference from a run with `each`.

use kedge_device::MemDevice;
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, SystemClock};
use std::error::Error;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |what| args.next().ok_or(what)?.parse::<usize>().map_err(Box::<dyn Error>::from);
    let (forks, operations) = (number("how many forks?")?, number("how many operations?")?);
    let word = args.next();
    let (each, reclaim) = (word.is_some(), word.is_some_and(|word| word == "reclaim"));
    let device = Arc::new(MemDevice::new(1 << 30));
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default())?;
    let fs = FileSystem::open(device, clock, MountOptions::default())?;
    for i in 0..1000 {
        let file = fs.create(Ino::ROOT, format!("file{i}").as_bytes(), 0o644, Owner::default())?;
        fs.write(file.ino, 0, &[7; 4096])?;
    }
    let mut roots = vec![Ino::ROOT];
    for i in 0..forks {
        roots.push(fs.fork(Ino::ROOT, Ino::ROOT, format!("fork{i}").as_bytes(), false)?.ino);
    }
    let used = if each { &roots[..] } else { &roots[roots.len() - 1..] };
    let mkdir = |root: &Ino| fs.mkdir(*root, b"dir", 0o755, Owner::default());
    let dirs = used.iter().map(mkdir).collect::<Result<Vec<_>, _>>()?;
    fs.checkpoint()?;
    for i in 0..operations {
        let dir = dirs[i / 20 % dirs.len()].ino;
        let file = fs.create(dir, format!("{i}").as_bytes(), 0o644, Owner::default())?;
        fs.write(file.ino, 0, &[7; 4096])?;
        fs.fsync(file.ino, false)?;
        if i % 500 == 499 {
            fs.checkpoint()?;
        }
    }
    if reclaim {
        for i in 0..forks {
            fs.delete_tree(Ino::ROOT, format!("fork{i}").as_bytes())?;
        }
        fs.reclaim()?;
    }
    fs.close()?;
    Ok(())
}
