use super::*;
use crate::testing::SIZE;
use crate::{Location, conformance};
use kedge_ceph::{Cluster, Layout, Store};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The variable with the path of a configuration of a cluster whose pool `rbd` the tests may fill.
/// Without the variable the tests start a cluster.
const CLUSTER: &str = "KEDGE_CEPH_CONF";

/// Returns `None` if there is no cluster; the skip is then reported.
#[track_caller]
fn cluster() -> Option<String> {
    static OURS: OnceLock<Cluster> = OnceLock::new();
    if let Ok(conf) = std::env::var(CLUSTER) {
        return Some(conf);
    }
    if kedge_ceph::is_missing() {
        return None;
    }
    let layout = Layout { osds: 1, ..Layout::usual() };
    let ours = OURS.get_or_init(|| Cluster::start(layout).unwrap());
    Some(ours.conf().to_str().expect("a path of letters").to_owned())
}

fn location(conf: &str, image: &str, words: &str) -> Location {
    Location::parse(Path::new(&format!("rbd:rbd/{image}?conf={conf}&timeout=20{words}"))).unwrap()
}

/// Creates a new image.
fn image(conf: &str, size: u64) -> Location {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let name = format!("kedge-test-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
    let location = location(conf, &name, "");
    assert!(!crate::exists(&location).unwrap());
    crate::create(&location, size).unwrap();
    assert!(crate::exists(&location).unwrap());
    location
}

#[test]
fn the_contract_is_kept() {
    let Some(conf) = cluster() else { return };
    let open = |size| crate::open(&image(&conf, size), OpenOptions::default()).unwrap();
    conformance::conform(&open);
}

#[test]
fn the_lock_keeps_others_out() {
    let Some(conf) = cluster() else { return };
    let location = image(&conf, SIZE);
    conformance::one_writer(&|options| crate::open(&location, options));
    assert!(crate::is_unlocked(&location).unwrap());
}

/// A writer that starts later ends a reader's device, because the reader would otherwise mix old
/// and new contents.
#[test]
fn a_reader_ends_when_somebody_writes() {
    let Some(conf) = cluster() else { return };
    let location = image(&conf, SIZE);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let reader = crate::open(&location, read_only).unwrap();
    reader.read(0, &mut IoBuf::zeroed(1)).unwrap();
    let writer = crate::open(&location, OpenOptions::default()).unwrap();
    writer.write(0, &IoBuf::zeroed(1), true).unwrap();
    kedge_base::pause(2 * LOCK_CHECK);
    assert!(matches!(reader.read(0, &mut IoBuf::zeroed(1)), Err(Error::Fenced)));
    drop(writer);
    assert!(matches!(reader.read(0, &mut IoBuf::zeroed(1)), Err(Error::Fenced)), "fenced until reopened");
    crate::open(&location, read_only).unwrap().read(0, &mut IoBuf::zeroed(1)).unwrap();
}

/// The reader reads nothing while the writer has the lock, so only the writer's note shows that the
/// image has changed.
#[test]
fn a_reader_ends_after_a_writer_that_came_and_went() {
    let Some(conf) = cluster() else { return };
    let location = image(&conf, SIZE);
    // Two writers of one process, which differ only in the number of their session.
    drop(crate::open(&location, OpenOptions::default()).unwrap());
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let reader = crate::open(&location, read_only).unwrap();
    kedge_base::pause(2 * LOCK_CHECK);
    reader.read(0, &mut IoBuf::zeroed(1)).unwrap();
    let writer = crate::open(&location, OpenOptions::default()).unwrap();
    writer.write(0, &IoBuf::from_bytes(&[1; BLOCK_SIZE]), true).unwrap();
    drop(writer);
    kedge_base::pause(2 * LOCK_CHECK);
    assert!(matches!(reader.read(0, &mut IoBuf::zeroed(1)), Err(Error::Fenced)));
    drop(reader);
    crate::open(&location, read_only).unwrap().read(0, &mut IoBuf::zeroed(1)).unwrap();
}

#[test]
fn the_words_for_a_writer_leave_out_its_session() {
    let note = format!("process 7 on host a{SESSION}0123456789abcdef");
    assert_eq!(described(Some(&note), "10.0.0.1:0/1"), "process 7 on host a (10.0.0.1:0/1)");
    assert_eq!(described(Some("process 7 on host a"), "x"), "process 7 on host a (x)");
    assert_eq!(described(None, "10.0.0.1:0/1"), "10.0.0.1:0/1");
}

/// The owner of the lock changes the size, even while another handle is open. Contents that a
/// truncate removed read as zeros after the image has grown again.
#[test]
fn an_image_is_extended_and_truncated() {
    let Some(conf) = cluster() else { return };
    let location = image(&conf, SIZE);
    let device = crate::open(&location, OpenOptions::default()).unwrap();
    let size_now = || {
        let read_only = OpenOptions { read_only: true, lock: false, ..OpenOptions::default() };
        let other = crate::open(&location, read_only).unwrap();
        assert!(matches!(other.grow(9 * SIZE), Err(Error::ReadOnly)));
        assert!(matches!(other.cut(0), Err(Error::ReadOnly)));
        (device.geometry().size, device.room().unwrap(), other.geometry().size)
    };
    let (last, data) = (SIZE - BLOCK_SIZE as u64, IoBuf::from_bytes(&[7; BLOCK_SIZE]));
    device.write(last, &data, true).unwrap();
    device.grow(4 * SIZE).unwrap();
    assert_eq!(size_now(), (4 * SIZE, 4 * SIZE, 4 * SIZE));
    device.write(4 * last, &data, true).unwrap();
    device.grow(2 * SIZE).unwrap();
    assert_eq!(size_now(), (4 * SIZE, 4 * SIZE, 4 * SIZE));
    device.cut(SIZE / 2).unwrap();
    assert_eq!(size_now(), (SIZE / 2, SIZE / 2, SIZE / 2));
    assert!(device.read(last, &mut IoBuf::zeroed(1)).is_err(), "beyond the end");
    // Growing to less than the present size does not truncate an image that was enlarged by other
    // means.
    device.grow(SIZE).unwrap();
    let mut found = IoBuf::from_bytes(&[9; BLOCK_SIZE]);
    device.read(last, &mut found).unwrap();
    assert!(found.as_bytes().iter().all(|byte| *byte == 0));
}

/// The OSD is killed between a write and the flush that would make the write durable, and the
/// client stops working: it releases no lock, and is fenced. After the OSD's restart every write is
/// present that it has acknowledged as durable.
///
/// The machine does not lose power in this test. An OSD bypasses the page cache, so the death of
/// its process loses exactly what it had not written. Whether the OSD flushes its disk is up to
/// Ceph.
#[test]
fn what_is_durable_outlives_osd_and_client() {
    if kedge_ceph::is_missing() {
        return;
    }
    let layout = Layout { osds: 1, store: Store::Disk, apart: false, settings: Vec::new() };
    let cluster = Cluster::start(layout).unwrap();
    // The client waits while the OSD restarts.
    let uri = format!("rbd:rbd/cut?conf={}&timeout=600", cluster.conf().display());
    let location = Location::parse(Path::new(&uri)).unwrap();
    let silent = Mutex::new(Vec::new());
    let make = |size| {
        crate::create(&location, size).unwrap();
        crate::open(&location, OpenOptions::default()).unwrap()
    };
    let cut = |device| {
        cluster.kill("osd.0").unwrap();
        silent.lock().push(device);
        cluster.revive("osd.0").unwrap();
        crate::open(&location, OpenOptions { takeover: true, ..OpenOptions::default() }).unwrap()
    };
    conformance::durable(&make, &cut);
    assert_eq!(silent.lock().len(), 1, "it was cut");
}

/// The error names the owner of the lock. After the takeover the owner is fenced and can never
/// write again.
#[test]
fn a_takeover_fences_the_owner() {
    let Some(conf) = cluster() else { return };
    let location = image(&conf, SIZE);
    let old = crate::open(&location, OpenOptions::default()).unwrap();
    let (one, two) = (IoBuf::from_bytes(&[1; BLOCK_SIZE]), IoBuf::from_bytes(&[2; BLOCK_SIZE]));
    old.write(0, &one, true).unwrap();
    let refused = crate::open(&location, OpenOptions::default()).map(drop).unwrap_err();
    let me = format!("process {} on host", std::process::id());
    assert!(matches!(&refused, Error::Busy(who) if who.contains(&me)), "{refused}");

    let new = crate::open(&location, OpenOptions { takeover: true, ..OpenOptions::default() }).unwrap();
    new.write(BLOCK_SIZE as u64, &two, true).unwrap();
    assert!(matches!(old.write(BLOCK_SIZE as u64, &one, true), Err(Error::Fenced)));
    assert!(matches!(old.flush(), Err(Error::Fenced)));
    assert!(matches!(old.read(0, &mut IoBuf::zeroed(1)), Err(Error::Fenced)));
    let ios = (0..3).map(|i| crate::Io { offset: i, op: Op::Flush }).collect();
    assert!(crate::run_batch(&*old, ios).iter().all(|one| matches!(one.result, Err(Error::Fenced))));
    let mut found = IoBuf::zeroed(2);
    new.read(0, &mut found).unwrap();
    assert!(
        found.as_bytes()[..BLOCK_SIZE] == *one.as_bytes()
            && found.as_bytes()[BLOCK_SIZE..] == *two.as_bytes()
    );
    // Closing the old owner's device does not release the new owner's lock.
    drop(old);
    assert!(!crate::is_unlocked(&location).unwrap());
    new.write(0, &two, true).unwrap();
}

/// A write with an unknown outcome may still be in flight, so the lock is not released, and the
/// next owner fences this client.
#[test]
fn an_unknown_outcome_keeps_the_lock() {
    let Some(conf) = cluster() else { return };
    let location = image(&conf, SIZE);
    let Location::Rbd(uri) = &location else { panic!("an RBD image") };
    let lost = RbdDevice::open(uri, OpenOptions::default()).unwrap();
    assert!(matches!(lost.shared.error("write", 0, 1, libc::ETIMEDOUT), Error::OutcomeUnknown));
    assert!(matches!(lost.flush(), Err(Error::OutcomeUnknown)));
    drop(lost);
    let refused = crate::open(&location, OpenOptions::default()).map(drop);
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    let next = crate::open(&location, OpenOptions { takeover: true, ..OpenOptions::default() }).unwrap();
    next.write(0, &IoBuf::zeroed(1), true).unwrap();
}

#[test]
fn what_is_not_there_is_named() {
    let Some(conf) = cluster() else { return };
    let open = |uri: &str| {
        let location = Location::parse(Path::new(uri)).unwrap();
        let e = crate::open(&location, OpenOptions::default()).map(drop).unwrap_err().to_string();
        assert!(e.contains(&location.to_string()), "{e}");
        e
    };
    for (uri, word) in [
        (format!("rbd:rbd/none?conf={conf}"), "No such file"),
        (format!("rbd:nopool/none?conf={conf}"), "pool \"nopool\""),
        (format!("rbd:rbd/none?conf={conf}&id=nobody&timeout=5"), "client.nobody"),
        ("rbd:rbd/none?conf=/nonexistent".to_owned(), "/nonexistent"),
        (format!("rbd:rbd/none@snap?conf={conf}"), "for reading alone"),
    ] {
        let e = open(&uri);
        assert!(e.contains(word), "{uri}: {e}");
    }
}
