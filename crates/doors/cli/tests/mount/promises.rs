//! A full image and a failing device, through the mount: data that was reported as durable is
//! there.
//!
//! Files with holes are made first, then the image is filled. Not all data then written to a hole
//! can be stored, so the call that promises durability must fail, whichever call it is and in
//! either cache mode. The kernel writes its cached pages back in requests whose short counts it
//! ignores, so an engine that returns a short count there would lose data silently.

use crate::common::mapping::Mapping;
use crate::common::{Place, needs_fuse, no_fuse, tool};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const MIB: usize = 1 << 20;
/// The alignment that O_DIRECT demands, in bytes.
const BLOCK: usize = 4096;

/// The call by which a program makes its data durable.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    Fsync,
    Fdatasync,
    Syncfs,
    OpenSync,
    OpenDsync,
    Direct,
    Msync,
}

const PROMISES: [Promise; 7] = [
    Promise::Fsync,
    Promise::Fdatasync,
    Promise::Syncfs,
    Promise::OpenSync,
    Promise::OpenDsync,
    Promise::Direct,
    Promise::Msync,
];

/// A buffer aligned for O_DIRECT.
fn aligned(len: usize, byte: u8) -> kedge_base::IoBuf {
    let mut buf = kedge_base::IoBuf::zeroed(len / BLOCK);
    buf.as_mut_bytes().fill(byte);
    buf
}

/// Writes in ever smaller steps until the image is full.
fn fill(path: &Path) {
    let file = OpenOptions::new().create(true).append(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    for step in [MIB, 16 * BLOCK, BLOCK] {
        let buf = aligned(step, 0xee);
        loop {
            match (&file).write(buf.as_bytes()) {
                Ok(n) if n > 0 => {}
                Ok(_) => panic!("a write of nothing"),
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                    break;
                }
            }
        }
    }
    file.sync_all().unwrap();
}

/// Writes `bytes` at `offset` and checks every result, as a careful program does. `Ok` means that
/// all bytes are durable.
fn keep(path: &Path, promise: Promise, offset: u64, bytes: &kedge_base::IoBuf) -> io::Result<()> {
    let flags = match promise {
        Promise::OpenSync => libc::O_SYNC,
        Promise::OpenDsync => libc::O_DSYNC,
        Promise::Direct => libc::O_DIRECT,
        _ => 0,
    };
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    if promise == Promise::Msync {
        let mut map = Mapping::of(&file)?;
        map.store(offset as usize, bytes.as_bytes());
        return map.sync();
    }
    let mut done = 0;
    while done < bytes.len() {
        done += file.write_at(&bytes.as_bytes()[done..], offset + done as u64)?;
    }
    match promise {
        Promise::Fsync | Promise::Direct => file.sync_all(),
        Promise::Fdatasync => file.sync_data(),
        Promise::Syncfs => Ok(rustix::fs::syncfs(&file)?),
        _ => Ok(()),
    }
}

fn full_image(options: &str) {
    let place = Place::after("mkfs --size 64M --log-size 4M disk.kedge");
    place.run(&format!("mount --create 64M {options} disk.kedge mnt")).ok();
    let path = |promise| place.path(&format!("mnt/{promise:?}"));
    for promise in PROMISES {
        // The first blocks exist, so that a later write has space for its beginning and could get a
        // short count.
        let file = File::create(path(promise)).unwrap();
        file.write_all_at(&[b'0'; 16 * BLOCK], 0).unwrap();
        file.set_len(MIB as u64).unwrap();
    }
    std::fs::write(place.path("mnt/log"), [b'l'; 6000]).unwrap();
    rustix::fs::syncfs(File::open(place.path("mnt")).unwrap()).unwrap();
    fill(&place.path("mnt/filler"));

    // A growing log file: bytes that write(2) and fsync(2) have confirmed are there.
    let mut log = OpenOptions::new().append(true).open(place.path("mnt/log")).unwrap();
    let mut length = 6000;
    let told = log.write(&[b'm'; 500_000]).and_then(|n| {
        length += n;
        log.sync_all()
    });
    println!("{options}: append {told:?}, {length} bytes");
    if !options.contains("-o writeback_cache") {
        assert!(length < 500_000, "write(2) counts what there is room for");
    }
    let mut kept = Vec::new();
    for (promise, byte) in PROMISES.into_iter().zip(b'A'..) {
        let bytes = aligned(MIB / 2, byte);
        match keep(&path(promise), promise, 0, &bytes) {
            Ok(()) => kept.push((promise, bytes)),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{options} {promise:?}: {e}"),
        }
    }
    drop(log);
    crate::common::kill(&place, "mnt");
    place.run(&format!("mount {options} disk.kedge mnt")).ok();
    if told.is_ok() {
        assert_eq!(std::fs::metadata(place.path("mnt/log")).unwrap().len(), length as u64, "{options}: log");
    }
    for (promise, bytes) in &kept {
        let now = std::fs::read(path(*promise)).unwrap();
        assert!(&now[..bytes.len()] == bytes.as_bytes(), "{options} {promise:?}: success, and data lost");
    }
    assert!(
        kept.is_empty(),
        "{options}: there was no room for {:?}",
        kept.iter().map(|k| k.0).collect::<Vec<_>>()
    );
    assert!(!options.contains("-o writeback_cache") || told.is_err(), "there was no room for 500,000 bytes");
    place.unmount_and_check("disk.kedge");
}

/// An append to an append-only file bypasses the kernel's page cache, and the kernel sends no FSYNC
/// after it.
#[test]
fn a_synchronous_append_to_an_append_only_file_is_durable() {
    needs_fuse!(root: "only root may make a file append-only");
    for options in ["commit=300", "commit=300,writeback_cache"] {
        let place = Place::after("mkfs --immutable --size 64M disk.kedge");
        let chattr = |args: [&str; 2]| {
            let mut command = place.command("chattr");
            command.args(args);
            tool(command, "e2fsprogs");
        };
        place.run(&format!("mount -o {options} --create 64M disk.kedge mnt")).ok();
        let mut opened = Vec::new();
        for (name, flags) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC), ("later", libc::O_DSYNC)] {
            let path = place.path(&format!("mnt/{name}"));
            File::create(&path).unwrap();
            chattr(["+a", &format!("mnt/{name}")]);
            opened.push(OpenOptions::new().append(true).custom_flags(flags).open(path).unwrap());
        }
        // The open file is as before.
        chattr(["-a", "mnt/later"]);
        rustix::fs::syncfs(File::open(place.path("mnt")).unwrap()).unwrap();
        for mut file in &opened {
            file.write_all(&[b'r'; 5000]).unwrap();
        }
        crate::common::kill(&place, "mnt");
        drop(opened);
        place.run("mount disk.kedge mnt").ok();
        for name in ["sync", "dsync", "later"] {
            let now = std::fs::read(place.path(&format!("mnt/{name}"))).unwrap();
            assert!(now == [b'r'; 5000], "{options}: {name} has {} bytes", now.len());
        }
        place.unmount_and_check("disk.kedge");
    }
}

/// While the device fails, every kind of durability call fails, and none succeeds from memory.
fn failing_device(options: &str) {
    let place = Place::new();
    let line = format!("mount --create 64M -o commit=300,{options} --faults faults disk.kedge mnt");
    place.run(&line).ok();
    let path = |promise| place.path(&format!("mnt/{promise:?}"));
    for promise in PROMISES {
        crate::common::write_and_fsync(&path(promise), &[b'o'; MIB]);
    }
    let new = aligned(MIB / 2, b'S');
    std::fs::write(place.path("faults"), "write 5 0 SSSS").unwrap();
    for promise in PROMISES {
        let kept = keep(&path(promise), promise, 0, &new);
        let errno = kept.as_ref().err().and_then(io::Error::raw_os_error);
        assert_eq!(errno, Some(libc::EIO), "{options} {promise:?}: {kept:?}");
    }
    let struck = std::fs::read_to_string(place.path("faults.struck")).unwrap().lines().count();
    assert!(struck >= PROMISES.len(), "{struck} requests failed");
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats --json mnt").ok()).unwrap();
    let failed = &stats["fuse"]["failed"];
    assert!(
        failed["FSYNC"]["EIO"].as_u64() >= Some(2) && failed["WRITE"]["EIO"].as_u64() >= Some(1),
        "{failed}"
    );

    // The device works again. An earlier failure may still be reported once; data made durable
    // after that is there.
    std::fs::remove_file(place.path("faults")).unwrap();
    for promise in PROMISES {
        if let Err(e) = keep(&path(promise), promise, 0, &new) {
            println!("{options} {promise:?}: reported once more: {e}");
            keep(&path(promise), promise, 0, &new).unwrap();
        }
    }
    crate::common::kill(&place, "mnt");
    place.run(&line).ok();
    for promise in PROMISES {
        let now = std::fs::read(path(promise)).unwrap();
        assert!(&now[..new.len()] == new.as_bytes(), "{options} {promise:?}: success, and data lost");
        assert!(now[new.len()..].iter().all(|byte| *byte == b'o'), "{options} {promise:?}");
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_failing_device_tells_all() {
    if !no_fuse() {
        failing_device("nowriteback_cache");
        failing_device("writeback_cache");
    }
}

#[test]
fn a_full_image_tells_write() {
    if !no_fuse() {
        full_image("-o nowriteback_cache");
    }
}

#[test]
fn a_full_image_tells_fsync_of_a_writeback_cache() {
    if !no_fuse() {
        full_image("-o writeback_cache");
    }
}
