//! A device that fails writes: fsync never falsely returns success, every call that a failure
//! concerns returns an error, and no other call does.
#![allow(clippy::disallowed_methods)]

use crate::common::failing::{Failing, MARK, PAGE};
use crate::common::images::errno;
use kedge_base::HANG;
use kedge_base::errno::{EIO, ENOSPC};
use kedge_device::sim::{FaultPlan, OpKind};
use kedgefs::*;
use std::time::Duration;

fn bytes(byte: u8, pages: usize) -> Vec<u8> {
    vec![byte; pages * PAGE]
}

/// Pages that begin with the mark. While marked pages are refused, their writes fail at every
/// block.
fn marked(pages: usize) -> Vec<u8> {
    let mut bytes = bytes(b'x', pages);
    bytes.chunks_exact_mut(PAGE).for_each(|page| page[..MARK.len()].copy_from_slice(MARK));
    bytes
}

/// An fsync that may return an earlier failure once.
fn fsync_at_last(fs: &FileSystem, ino: Ino) {
    if let Err(e) = fs.fsync(ino, false) {
        assert!(matches!(e, Error::WriteBack(_)), "{e}");
        fs.fsync(ino, false).unwrap();
    }
}

/// The record of a writeback needs a tree node that is not in memory. Each read of an fsync fails
/// in turn, once.
#[test]
fn a_writeback_whose_record_fails_is_done_again() {
    let base = Failing::new();
    let fs = base.open();
    let ino = base.create(&fs, b"sparse");
    for i in 0..3000 {
        fs.write(ino, 2 * i * PAGE as u64, &[1; PAGE]).unwrap();
    }
    fs.close().unwrap();
    let (mut failed, mut free) = (0, None);
    for nth in 0.. {
        let device = base.fork();
        let fs = device.open_with(MountOptions { cache_size: 128 << 10, ..Failing::little_memory() });
        let end = 2 * 3000 * PAGE as u64;
        fs.write(ino, end, &bytes(b'n', 20)).unwrap();
        // These reads evict the nodes that the map and the record need.
        for i in 1000..2000 {
            fs.read(ino, 2 * i * PAGE as u64, &mut [0]).unwrap();
        }
        device.sim.set_plan(FaultPlan::new(nth).fail(OpKind::Read, nth, EIO));
        let first = fs.fsync(ino, false);
        let struck = device.sim.struck() > 0;
        device.sim.set_plan(FaultPlan::default());
        if struck {
            assert_eq!(errno(first), EIO, "read {nth}");
            failed += 1;
        } else {
            first.unwrap();
        }
        fsync_at_last(&fs, ino);
        assert_eq!(device.durable(ino)[end as usize..], bytes(b'n', 20), "read {nth}: a lie");
        fs.sync().unwrap();
        let now = fs.statfs().blocks_free;
        assert_eq!(*free.get_or_insert(now), now, "read {nth}: blocks leaked");
        if !struck {
            break;
        }
    }
    assert!(failed > 1, "the record's own read must be among {failed}");
}

#[test]
fn an_fsync_beside_one_that_fails_looks_for_itself() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"f", 64);
    fs.write(ino, 0, &bytes(b'n', 64)).unwrap();
    device.sim.set_plan(device.data().hold(OpKind::Write, 0).bad_block(OpKind::Write, 0, EIO));
    let syncs = [0, 1].map(|i| {
        let fs = fs.clone();
        let thread = kedge_base::spawn_named("fsync", move || fs.fsync(ino, false)).unwrap();
        while device.sim.held_up() == 0 {
            std::thread::yield_now();
        }
        if i == 1 {
            std::thread::sleep(Duration::from_millis(100)); // it waits for the first fsync now
        }
        thread
    });
    device.sim.release();
    let [first, second] = syncs.map(|thread| thread.join().unwrap());
    assert_eq!(errno(first), EIO);
    if second.is_ok() {
        assert_eq!(device.durable(ino), bytes(b'n', 64), "a lie");
    }
    fs.fsync(ino, false).unwrap();
    assert_eq!(device.durable(ino), bytes(b'n', 64));
}

#[test]
fn a_bad_block_is_left_for_another_one() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"f", 300);
    fs.write(ino, 100 * PAGE as u64, &bytes(b'n', 100)).unwrap();
    // The first block of the write is bad.
    device.sim.set_plan(device.data().bad_block(OpKind::Write, 0, EIO));
    assert_eq!(errno(fs.fsync(ino, false)), EIO);
    let free = fs.statfs().blocks_free;
    assert_eq!(device.stat(&fs, "bad_blocks"), 1, "the others of that write are not bad");
    fs.fsync(ino, false).unwrap();
    let mut expected = bytes(b'0', 300);
    expected[100 * PAGE..200 * PAGE].fill(b'n');
    assert_eq!(device.durable(ino), expected);
    assert_eq!(fs.statfs().blocks_free, free - 1, "the bad one stays out of use");
    fs.unlink(Ino::ROOT, b"f").unwrap();
    fs.sync().unwrap();
    // A program that fills the image gets all blocks except the bad one.
    let other = device.create(&fs, b"other");
    for at in 0.. {
        match fs.write(other, at * (1 << 20), &[b'o'; 1 << 20]) {
            Ok(n) if n == 1 << 20 => {}
            _ => break,
        }
    }
    let struck = device.sim.struck();
    fs.fsync(other, false).unwrap();
    assert_eq!(device.sim.struck(), struck);
    fs.close().unwrap();
}

/// A flush that fails may have lost other bytes, so nothing is retried.
#[test]
fn a_durable_write_that_fails_in_its_flush_shuts_down() {
    for in_flush in [false, true] {
        let device = Failing::new();
        let fs = device.open();
        let ino = device.file(&fs, b"f", 64);
        fs.sync().unwrap();
        fs.write(ino, 0, &marked(16)).unwrap();
        let durable = device.stat(&fs, "durable_writes");
        if in_flush {
            device.fail_marked_in_flush();
        } else {
            device.refuse_marked(true);
        }
        assert_eq!(errno(fs.fsync(ino, true)), EIO);
        assert_eq!(device.stat(&fs, "durable_writes"), durable + 1, "one durable write");
        device.refuse_marked(false);
        let again = fs.fsync(ino, true);
        assert_eq!(again.is_err(), in_flush, "{again:?}");
        let other = fs.create(Ino::ROOT, b"other", 0o644, Owner::default());
        assert_eq!(other.is_err(), in_flush, "{other:?}");
    }
}

/// The first write to a block of a full host fails, and loses nothing that waits for a flush: the
/// fsync returns the error, and the mount continues.
#[test]
fn a_durable_write_without_space_on_the_host_does_not_shut_down() {
    let device = Failing::new();
    let fs = device.open();
    let [a, b] = [b"a", b"b"].map(|name| device.create(&fs, name));
    fs.sync().unwrap();
    fs.write(b, 0, &bytes(b'b', 256)).unwrap();
    fs.seek(b, 0, SeekKind::Data).unwrap(); // in place, and not flushed
    fs.write(a, 0, &bytes(b'a', 12)).unwrap();
    device.host_full(true);
    for _ in 0..2 {
        assert_eq!(errno(fs.fsync(a, false)), ENOSPC);
    }
    device.create(&fs, b"c");
    device.host_full(false);
    fs.fsync(a, false).unwrap();
    fs.fsync(b, false).unwrap();
    assert!(device.is_durable(b"a", &bytes(b'a', 12)) && device.is_durable(b"b", &bytes(b'b', 256)));
}

#[test]
fn what_failed_in_the_background_is_told_once_though_it_has_healed() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"f", 4);
    fs.write(ino, 0, &bytes(b'n', 4)).unwrap();
    device.sim.set_plan(device.data().bad_block(OpKind::Write, 0, EIO));
    fs.sync().unwrap();
    assert_eq!(device.durable(ino), bytes(b'n', 4), "written elsewhere");
    assert_eq!(errno(fs.fsync(ino, false)), EIO);
    fs.fsync(ino, false).unwrap();
}

#[test]
fn as_long_as_bytes_are_not_durable_every_sync_says_so() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"f", 8);
    let other = device.create(&fs, b"other");
    fs.write(ino, 0, &marked(2)).unwrap();
    device.refuse_marked(true);
    for round in 0..3 {
        fs.write(other, round * PAGE as u64, &[b'o'; PAGE]).unwrap();
        assert_eq!(errno(fs.fsync(ino, true)), EIO);
        assert_eq!(errno(fs.sync()), EIO);
        assert_eq!(errno(fs.fsync(ino, false)), EIO);
        fsync_at_last(&fs, other); // its data was in the same failed write
    }
    device.refuse_marked(false);
    fsync_at_last(&fs, ino);
    assert_eq!(device.durable(ino)[..2 * PAGE], marked(2));
}

/// Writes of the page in the middle and of the tail fail. After a crash no bytes after them may
/// show.
#[test]
fn a_size_never_covers_what_is_not_written() {
    for bad in [0, 5, 29] {
        let device = Failing::new();
        let fs = device.open();
        let ino = device.create(&fs, b"f");
        fs.write(ino, 0, &bytes(b'a', 1)[..100]).unwrap();
        fs.fsync(ino, false).unwrap();
        fs.checkpoint().unwrap();
        let mut data = bytes(b'n', 30);
        data[bad * PAGE..][..MARK.len()].copy_from_slice(MARK);
        fs.write(ino, 0, &data).unwrap();
        device.refuse_marked(true);
        assert_eq!(errno(fs.fsync(ino, false)), EIO);
        fs.sync().unwrap_err();
        let found = device.durable(ino);
        assert!(found.len() <= (bad * PAGE).max(100), "{} bytes with page {bad} missing", found.len());
        device.refuse_marked(false);
        fsync_at_last(&fs, ino);
        assert!(device.durable(ino) == data, "page {bad}: pages that had to wait for it are lost");
    }
}

#[test]
fn one_file_that_cannot_be_written_keeps_no_other_from_it() {
    let device = Failing::new();
    let fs = device.open();
    let stuck = device.file(&fs, b"stuck", 3);
    let others: Vec<Ino> = (0..12).map(|i| device.file(&fs, format!("o{i}").as_bytes(), 20)).collect();
    fs.write(stuck, 0, &marked(3)).unwrap();
    others.iter().for_each(|ino| assert_eq!(fs.write(*ino, 0, &bytes(b'n', 20)).unwrap(), 20 * PAGE));
    let made = device.create(&fs, b"made");
    device.refuse_marked(true);
    assert_eq!(errno(fs.sync()), EIO);
    for ino in &others {
        assert_eq!(device.durable(*ino), bytes(b'n', 20));
    }
    assert_eq!(device.durable(made), b"");
    others.iter().for_each(|ino| fsync_at_last(&fs, *ino));
    assert_eq!(errno(fs.fsync(stuck, false)), EIO);
}

#[test]
fn the_commit_timer_goes_on_beside_a_file_that_cannot_be_written() {
    let device = Failing::new();
    let fs = device.open_with(MountOptions { commit: Duration::from_millis(20), ..Default::default() });
    let stuck = device.create(&fs, b"stuck");
    device.refuse_marked(true);
    fs.write(stuck, 0, &marked(20)).unwrap();
    for name in [b"one", b"two"] {
        let ino = device.create(&fs, name);
        fs.write(ino, 0, &bytes(b'n', 20)).unwrap();
        // The timer writes the file sooner or later, without an fsync. The bound only turns a hang
        // into a failure of the test.
        let made_durable = (0..HANG.as_millis() / 20).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            device.is_durable(name, &bytes(b'n', 20))
        });
        assert!(made_durable, "the timer makes nothing durable");
    }
    assert_eq!(errno(fs.fsync(stuck, false)), EIO);
}

/// A writer that has to write back dirty data does not get the error of another file.
#[test]
fn a_writer_hears_nothing_of_other_files() {
    let device = Failing::new();
    let fs = device.open_with(Failing::little_memory());
    let stuck = device.create(&fs, b"stuck");
    device.refuse_marked(true);
    fs.write(stuck, 0, &marked(100)).unwrap();
    let ino = device.create(&fs, b"f");
    // Makes writes slow, so that the flusher alone does not suffice.
    device.sim.set_plan(FaultPlan::default().latency(OpKind::Write, Duration::from_millis(20)));
    for at in 0..10 {
        assert_eq!(fs.write(ino, at << 20, &[b'n'; 1 << 20]).unwrap(), 1 << 20);
    }
    assert!(device.stat(&fs, "throttled_writes") > 0, "nobody had to help");
    fsync_at_last(&fs, ino);
    assert_eq!(errno(fs.fsync(stuck, false)), EIO);
}

/// Memory is bounded: when it is full of data that cannot be written to any block, the file system
/// shuts down and reports the reason.
#[test]
fn what_cannot_be_written_does_not_fill_memory_without_bound() {
    let device = Failing::new();
    let fs = device.open_with(Failing::little_memory());
    let stuck = device.create(&fs, b"stuck");
    device.refuse_marked(true);
    let mut taken = 0;
    let error = loop {
        match fs.write(stuck, taken * (16 * PAGE) as u64, &marked(16)) {
            Ok(n) => taken += n as u64 / (16 * PAGE) as u64,
            Err(e) => break e,
        }
        assert!(taken < 100, "no bound");
    };
    let said = error.to_string();
    assert!(said.contains("cannot be written") && said.contains(&format!("inode {stuck}")), "{said}");
    assert_eq!(error.errno(), EIO);
}

/// If the block of log-resident data is bad, the data goes to another block, and the log's tail
/// moves.
#[test]
fn a_bad_block_under_logged_bytes_does_not_hold_the_log() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"f");
    fs.write(ino, 0, &[b'a'; 1000]).unwrap();
    fs.seek(ino, 0, SeekKind::Data).unwrap(); // writes the data in place
    fs.write(ino, 1000, &[b'b'; 100]).unwrap();
    fs.fsync(ino, false).unwrap();
    assert!(device.stat(&fs, "fsyncs_with_data_in_log") > 0);
    device.sim.set_plan(device.data().bad_block(OpKind::Write, 0, EIO));
    fs.checkpoint().unwrap();
    assert_eq!(device.sim.struck(), 1, "its own block, and no other try of it");
    device.sim.set_plan(FaultPlan::default());
    let log = |name: &str| device.value(&fs, &["log", name]);
    assert!(log("tail_lsn") >= log("durable_lsn") - 4096, "the tail is held");
    assert_eq!(device.durable(ino), [[b'a'; 1000].as_slice(), &[b'b'; 100]].concat());
}

/// Here writes fail at every block. The log fills up after the data, and an operation that needs
/// space gets an error with the reason, not a hang. The device is not retried without pause.
#[test]
fn what_no_place_takes_and_a_full_log_end_in_an_error() {
    let device = Failing::with(&FormatOptions { log_size: Some(1 << 20), ..Default::default() });
    let fs = device.open();
    let ino = device.create(&fs, b"stuck");
    fs.write(ino, 0, &marked(1)[..100]).unwrap();
    fs.fsync(ino, false).unwrap();
    assert!(device.stat(&fs, "fsyncs_with_data_in_log") > 0);
    device.refuse_marked(true);
    let error = (0..100_000)
        .find_map(|i| fs.create(Ino::ROOT, format!("f{i}").as_bytes(), 0o644, Owner::default()).err())
        .unwrap();
    assert_eq!(error.errno(), EIO);
    let said = error.to_string();
    assert!(said.contains("log is full") && said.contains(&format!("inode {ino}")), "{said}");
    let refused = device.refused.load(std::sync::atomic::Ordering::SeqCst);
    assert!(refused < 1000, "{refused} tries");
    assert_eq!(device.durable(ino), marked(1)[..100]);
}

#[test]
fn a_write_that_fails_once_at_unmount_loses_nothing() {
    for nth in 0..2 {
        let device = Failing::new();
        let fs = device.open();
        let [a, b] = [b"a", b"b"].map(|name| device.create(&fs, name));
        fs.write(a, 0, &bytes(b'a', 300)).unwrap();
        fs.write(b, 0, &bytes(b'b', 1)).unwrap();
        device.sim.set_plan(device.data().fail(OpKind::Write, nth, EIO));
        fs.close().unwrap();
        assert_eq!(device.losses(), None);
        assert_eq!(device.durable(a), bytes(b'a', 300), "write {nth}");
        assert_eq!(device.durable(b), bytes(b'b', 1));
    }
}

#[test]
fn unmount_says_what_it_could_not_write_and_closes_the_rest() {
    let device = Failing::new();
    let fs = device.open();
    let stuck = device.file(&fs, b"stuck", 5);
    let other = device.create(&fs, b"other");
    fs.write(stuck, PAGE as u64, &marked(2)).unwrap();
    fs.write(other, 0, &bytes(b'o', 30)).unwrap();
    device.refuse_marked(true);
    let error = fs.close().unwrap_err();
    assert_eq!(error.errno(), EIO);
    let Error::DataLost(lost) = error else { panic!("{error}") };
    assert_eq!((lost.files, lost.bytes, &lost.some[..]), (1, 8192, [(stuck, 8192)].as_slice()));
    assert_eq!(
        lost.to_string(),
        format!("8192 bytes of 1 files could not be written and are lost: 8192 of inode {stuck}")
    );
    assert_eq!(device.losses(), Some(1));
    assert!(device.is_clean());
    assert_eq!(device.durable(other), bytes(b'o', 30));
    assert_eq!(device.durable(stuck), bytes(b'0', 5));
}

// ----- kinds of writes -----

#[test]
fn a_direct_write_is_on_the_device_or_fails() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"f", 600);
    device.sim.set_plan(device.data());
    fs.write_with(ino, 0, &bytes(b'n', 2), WriteMode::direct()).unwrap();
    assert_eq!(device.sim.op_counts().writes, 1);
    assert_eq!(device.sim.op_counts().flushes, 0);
    device.refuse_marked(true);
    assert_eq!(errno(fs.write_with(ino, 0, &marked(1), WriteMode::direct())), EIO);
    // A prefix is on the device: of two MiB the second one fails.
    let mut data = bytes(b'n', 512);
    data[300 * PAGE..][..MARK.len()].copy_from_slice(MARK);
    assert_eq!(fs.write_with(ino, 0, &data, WriteMode::direct()).unwrap(), 1 << 20);
    assert_eq!(errno(fs.write_with(ino, 0, &data, WriteMode::direct().with_whole(true))), EIO);
    // A direct write beyond the recorded size. The pages before it are only in memory.
    device.refuse_marked(false);
    let new = device.create(&fs, b"new");
    fs.write(new, 0, &bytes(b'b', 30)).unwrap();
    fs.write_with(new, 40 * PAGE as u64, &bytes(b'd', 30), WriteMode::direct()).unwrap();
    fs.fsync(new, false).unwrap();
    let expected = [bytes(b'b', 30), bytes(0, 10), bytes(b'd', 30)].concat();
    assert!(device.durable(new) == expected);
}

/// A write that has taken its bytes succeeds, although the record of its time stamps fails: an
/// error would make a program append them again.
#[test]
fn a_write_whose_stamps_cannot_be_logged_succeeds() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"f");
    for i in 0..3000 {
        fs.write(ino, 2 * i * PAGE as u64, &[1; PAGE]).unwrap();
    }
    fs.close().unwrap();
    let fs = device.open_with(MountOptions { cache_size: 128 << 10, ..Failing::little_memory() });
    fs.set_options("fdatasync=relog").unwrap();
    // These reads evict the leaf of the inode. The inode itself stays in memory.
    for i in 1000..2000 {
        fs.read(ino, 2 * i * PAGE as u64, &mut [0]).unwrap();
    }
    device.clock.advance(Duration::from_secs(1));
    device.sim.set_plan(device.unreadable(kedge_format::Key::inode(ino)));
    let place = 2 * 2500 * PAGE as u64;
    assert_eq!(fs.write(ino, place, &bytes(b'2', 1)).unwrap(), PAGE);
    assert!(device.sim.struck() > 0, "the record needed no read");
    device.sim.set_plan(FaultPlan::default());
    let mtime = fs.getattr(ino).unwrap().mtime;
    fs.fsync(ino, false).unwrap();
    assert_eq!(device.durable(ino)[place as usize..][..PAGE], bytes(b'2', 1));
    assert_eq!(device.after_power_loss().getattr(ino).unwrap().mtime, mtime);
}

fn fill(device: &Failing, fs: &FileSystem) -> Ino {
    let fill = device.create(fs, b"fill");
    let mut at = 0;
    for step in [1 << 20, PAGE] {
        while let Ok(n) = fs.write_with(fill, at, &vec![b'f'; step], WriteMode::direct().with_whole(true)) {
            at += n as u64;
        }
    }
    fill
}

/// write returns how much of an append a full image accepts. Exactly that is durable after fsync.
#[test]
fn a_full_image_takes_what_it_says() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"log");
    fs.write(ino, 0, &[b'a'; 6000]).unwrap();
    fs.fsync(ino, false).unwrap();
    fill(&device, &fs);
    let more = vec![b'b'; 500_000];
    assert_eq!(errno(fs.write_with(ino, 6000, &more, WriteMode::from_cache())), ENOSPC);
    assert_eq!(fs.write(ino, 6000, &more).unwrap(), 2192);
    assert_eq!(errno(fs.write(ino, 8192, &more)), ENOSPC);
    assert_eq!(errno(fs.write_with(ino, 8192, &more, WriteMode::direct())), ENOSPC);
    fs.fsync(ino, false).unwrap();
    let expected = [vec![b'a'; 6000], vec![b'b'; 2192]].concat();
    assert_eq!(device.durable(ino), expected);
    fs.close().unwrap();
    assert_eq!(device.durable(ino), expected);
}

#[test]
fn a_half_allocated_file_on_a_full_image_takes_what_has_blocks() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"sparse");
    for i in (0..256).step_by(2) {
        fs.write(ino, i * PAGE as u64, &[b'a'; PAGE]).unwrap();
    }
    fs.fsync(ino, false).unwrap();
    fill(&device, &fs);
    let data = bytes(b'b', 16);
    assert_eq!(errno(fs.write_with(ino, 0, &data, WriteMode::from_cache())), ENOSPC);
    assert_eq!(fs.write(ino, 0, &data).unwrap(), PAGE);
    fs.fsync(ino, false).unwrap();
    assert_eq!(device.durable(ino)[..2 * PAGE], [bytes(b'b', 1), bytes(0, 1)].concat());
}

/// A bad block on a full image. Without another block the bad one is tried again, and no fsync
/// falsely returns success.
#[test]
fn a_bad_block_on_a_full_image_is_tried_again() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"f", 40);
    fill(&device, &fs);
    fs.write(ino, 0, &bytes(b'n', 40)).unwrap();
    device.sim.set_plan(device.data().bad_block(OpKind::Write, 0, EIO));
    for _ in 0..3 {
        assert_eq!(errno(fs.fsync(ino, false)), EIO);
    }
    device.sim.set_plan(FaultPlan::default());
    fs.fsync(ino, false).unwrap();
    assert_eq!(device.durable(ino), bytes(b'n', 40));
}

/// Accepted data keeps its promise of a block, even if the first block that it got is released.
#[test]
fn accepted_bytes_find_a_place_though_others_fill_the_image() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"f");
    fs.write(ino, 0, &bytes(b'n', 20)).unwrap();
    fs.write(ino, 20 * PAGE as u64, &marked(20)).unwrap();
    device.refuse_marked(true);
    for _ in 0..2 {
        assert_eq!(errno(fs.fsync(ino, false)), EIO);
    }
    let fill = fill(&device, &fs);
    device.refuse_marked(false);
    fs.fsync(ino, false).unwrap();
    assert_eq!(device.durable(ino), [bytes(b'n', 20), marked(20)].concat());
    fs.fsync(fill, false).unwrap();
}

#[test]
fn time_stamps_stay_if_the_caller_keeps_them() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.create(&fs, b"f");
    let at = Timespec { sec: 7, nsec: 8 };
    fs.setattr(ino, &SetAttr { mtime: Some(SetTime::At(at)), ctime: Some(at), ..Default::default() })
        .unwrap();
    device.clock.advance(Duration::from_secs(1));
    fs.write_with(ino, 0, b"bytes", WriteMode::from_cache()).unwrap();
    fs.sync().unwrap();
    let attr = fs.getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.ctime, attr.size), (at, at, 5));
    fs.write(ino, 0, b"bytes").unwrap();
    assert_ne!(fs.getattr(ino).unwrap().mtime, at);
}

/// Data of a write-through that failed stays dirty, like that of any other write: reads return it,
/// and it becomes durable once a write to the device succeeds. So the error does not mean that the
/// old bytes are kept.
#[test]
fn a_write_through_that_failed_takes_effect_later() {
    let device = Failing::new();
    let fs = device.open();
    let ino = device.file(&fs, b"file", 8);
    let mode = WriteMode::default().with_whole(true).with_through(true);
    device.refuse_marked(true);
    assert_eq!(errno(fs.write_with(ino, 0, &marked(4), mode)), EIO);
    let mut found = vec![0; 4 * PAGE];
    assert_eq!(fs.read_uncached(ino, 0, &mut found).unwrap(), found.len());
    assert_eq!(found, marked(4), "what was written");
    assert_eq!(device.durable(ino), bytes(b'0', 8), "as it was");
    device.refuse_marked(false);
    fs.sync().unwrap();
    assert_eq!(device.durable(ino)[..4 * PAGE], marked(4), "later");
    assert_eq!(device.durable(ino)[4 * PAGE..], bytes(b'0', 4));
}
