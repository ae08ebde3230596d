//! A close while other threads make calls.

use crate::common::images::open_still;
use kedge_base::errno::{EIO, ENOSPC};
use kedge_base::spawn_named;
use kedge_device::MemDevice;
use kedgefs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROUNDS: usize = 60;
const THREADS: usize = 4;
const BLOCK: [u8; 100] = [1; 100];

/// Appends without a sync until the file system is closed. Returns the number of bytes accepted.
fn append(fs: &FileSystem, ino: Ino, accepted: &AtomicU64) -> u64 {
    loop {
        let at = accepted.load(SeqCst);
        match fs.write(ino, at, &BLOCK) {
            Ok(n) => accepted.store(at + n as u64, SeqCst),
            Err(e) => {
                // On a busy machine the writers may have enough time to fill the image.
                assert!([EIO, ENOSPC].contains(&e.errno()), "{e}");
                return at;
            }
        }
    }
}

#[test]
fn what_a_write_accepts_beside_a_close_is_in_the_image() {
    let device = Arc::new(MemDevice::new(64 << 20));
    FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &FormatOptions::default()).unwrap();
    for round in 0..ROUNDS {
        let fs = Arc::new(open_still(&device));
        let counts: Vec<Arc<AtomicU64>> = (0..THREADS).map(|_| Arc::default()).collect();
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let name = format!("{round}-{me}");
                let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default()).unwrap().ino;
                let (fs, count) = (fs.clone(), counts[me].clone());
                (name, spawn_named("writer", move || append(&fs, ino, &count)).unwrap())
            })
            .collect();
        while counts.iter().any(|count| count.load(SeqCst) == 0) {
            std::thread::yield_now();
        }
        fs.close().unwrap();
        let accepted: Vec<_> = threads.into_iter().map(|(name, t)| (name, t.join().unwrap())).collect();
        let fs = open_still(&device);
        for (name, bytes) in accepted {
            let size = fs.lookup(Ino::ROOT, name.as_bytes()).unwrap().size;
            assert_eq!(size, bytes, "round {round}, {name}");
            fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        }
        fs.close().unwrap();
    }
}
