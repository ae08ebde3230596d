//! What replies promise about durability, tested with crashes and device errors.

use crate::common::*;
use kedge_fsck::{CheckOptions, StoreReplay};
use kedge_nfs::{Server, Squash};
use kedgefs::device::MemDevice;
use kedgefs::device::sim::{Choice, FaultPlan, OpKind, SimDevice};
use kedgefs::{FileSystem, MountOptions};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const EIO: i32 = 5;
const PAUSE: Duration = Duration::from_micros(200);

fn sim(bytes: u64) -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(Arc::into_inner(formatted(bytes)).unwrap()));
    device.stop_recording();
    device
}

/// Serves a device as a power failure left it, runs `look` with a client, then runs fsck.
fn after_crash(left: MemDevice, look: impl FnOnce(&mut Client)) {
    let left = Arc::new(left);
    let rig = Rig::on(open(left.clone()), Squash::None);
    look(&mut rig.user(0, 0, &[]));
    rig.end();
    let check = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(left, &check);
    assert_eq!(report.exit_code(), 0, "{report}");
}

#[test]
fn each_reply_is_sent_when_its_change_is_durable() {
    let device = sim(64 << 20);
    let mut rig = Rig::on(open(device.clone()), Squash::None);
    let (c, root) = (&mut rig.client, rig.root.clone());
    // The crash keeps only what was flushed. Handles from before the crash stay valid.
    let crash = |look: &dyn Fn(&mut Client)| after_crash(device.crash_as(Choice::None), look);

    let (dir, _) = c.mkdir(&root, "d", &mode(0o750)).unwrap();
    crash(&|c| assert_eq!(c.getattr(&dir).unwrap().mode, 0o750));
    let stamped = Set { mtime: Some(Time::At(5, 6)), ..mode(0o640) };
    let (file, _) = c.create(&dir, "f", &stamped).unwrap();
    crash(&|c| {
        assert_eq!(c.lookup(&dir, "f").unwrap().0, file);
        assert_eq!(c.getattr(&file).unwrap().mtime, (5, 6), "the times in the call");
    });
    c.write(&file, 0, &[1; 5000], FILE_SYNC).unwrap();
    crash(&|c| assert_eq!(c.read(&file, 0, 9000).unwrap().0, [1; 5000]));
    c.write(&file, 4000, &[2; 5000], DATA_SYNC).unwrap();
    crash(&|c| assert_eq!(c.read(&file, 4000, 9000).unwrap().0, [2; 5000]));
    c.write(&file, 100_000, &[3; 100_000], UNSTABLE).unwrap();
    c.commit(&file).unwrap();
    crash(&|c| assert_eq!(c.read(&file, 100_000, 200_000).unwrap().0, [3; 100_000]));
    assert_eq!(c.setattr(&file, &size(10)), OK);
    crash(&|c| assert_eq!(c.read(&file, 0, 100).unwrap(), (vec![1; 10], true)));
    let times = Set { atime: Some(Time::At(7, 8)), mtime: Some(Time::At(9, 10)), ..Set::default() };
    assert_eq!(c.setattr(&file, &times), OK);
    crash(&|c| assert_eq!(c.getattr(&file).unwrap().mtime, (9, 10)));
    assert_eq!(c.rename((&dir, "f"), (&root, "g")), OK);
    crash(&|c| {
        assert_eq!(c.lookup(&root, "g").unwrap().0, file);
        assert_eq!(c.lookup(&dir, "f").err(), Some(NOENT));
    });
    assert_eq!(c.link(&file, &dir, "h").0, OK);
    crash(&|c| assert_eq!(c.getattr(&file).unwrap().nlink, 2));
    let (link, _) = c.symlink(&dir, "l", b"target").unwrap();
    crash(&|c| assert_eq!(c.readlink(&link).unwrap(), b"target"));
    let (node, _) = c.mknod(&dir, "p", 7, (0, 0)).unwrap();
    crash(&|c| assert_eq!(c.getattr(&node).unwrap().kind, 7));
    let (once, _) = c.create_exclusive(&dir, "x", [3; 8]).unwrap();
    crash(&|c| assert_eq!(c.create_exclusive(&dir, "x", [3; 8]).unwrap().0, once));
    for name in ["h", "l", "p", "x"] {
        assert_eq!(c.remove(&dir, name), OK);
    }
    crash(&|c| assert_eq!(c.list(&dir, 4096, false).len(), 2));
    assert_eq!(c.rmdir(&root, "d"), OK);
    crash(&|c| assert_eq!(c.getattr(&dir).err(), Some(STALE)));
    let (file, _) = c.create(&root, "g", &size(0)).unwrap();
    crash(&|c| assert_eq!(c.getattr(&file).unwrap().size, 0));
    rig.end();
}

/// Names and contents of the files whose WRITE with FILE_SYNC was replied to.
type Acked = Mutex<BTreeMap<String, Vec<u8>>>;

/// Writes files while `acked` has fewer than `wanted`. Returns when `wanted` is zero.
fn write_files(address: SocketAddr, writer: usize, acked: &Acked, wanted: &AtomicUsize) {
    let mut c = Client::of(address, 0, 0, &[]);
    let root = c.root();
    for n in 0.. {
        while acked.lock().len() >= wanted.load(Ordering::SeqCst) {
            if wanted.load(Ordering::SeqCst) == 0 {
                return;
            }
            kedge_base::pause(PAUSE);
        }
        let name = format!("{writer}-{n}");
        let bytes: Vec<u8> = (0..1 + n * 37 % 9000).map(|at| (at + n * 7 + writer) as u8).collect();
        let (file, _) = c.create_guarded(&root, &name, &mode(0o600)).unwrap();
        c.write(&file, 0, &bytes, FILE_SYNC).unwrap();
        acked.lock().insert(name, bytes);
    }
}

#[test]
fn concurrent_clients_find_what_was_answered_before_a_crash() {
    let device = sim(256 << 20);
    let fs = open(device.clone());
    let server = serve(&fs);
    let address = server.address();
    let (acked, wanted) = (Arc::new(Acked::default()), Arc::new(AtomicUsize::new(1)));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (acked, wanted) = (acked.clone(), wanted.clone());
            kedge_base::spawn_named("writer", move || write_files(address, writer, &acked, &wanted)).unwrap()
        })
        .collect();
    for seed in 0..20 {
        // The writers may write 20 files beyond `enough`, so that requests are in flight at the
        // crash.
        let enough = acked.lock().len() + 5;
        wanted.store(enough + 20, Ordering::SeqCst);
        while acked.lock().len() < enough {
            assert!(writers.iter().all(|w| !w.is_finished()), "a writer has failed");
            kedge_base::pause(PAUSE);
        }
        let promised = acked.lock().clone();
        let left = if seed == 0 { device.crash_as(Choice::None) } else { device.crash(seed) };
        after_crash(left, |c| {
            let root = c.root();
            for (name, bytes) in &promised {
                let (file, _) = c.lookup(&root, name).unwrap();
                assert!(c.read(&file, 0, 10_000).unwrap().0 == *bytes, "{name} after crash {seed}");
            }
        });
    }
    wanted.store(0, Ordering::SeqCst);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    server.stop();
    fs.close().unwrap();
}

/// Starts a server on a device, and returns it with a client and a file's handle.
fn one_file(device: &Arc<SimDevice>) -> (kedgefs::FileSystem, Server, Client, Vec<u8>) {
    let fs = open(device.clone());
    let server = serve(&fs);
    let mut c = Client::of(server.address(), 0, 0, &[]);
    let root = c.root();
    let (file, _) = c.create(&root, "f", &mode(0o600)).unwrap();
    (fs, server, c, file)
}

#[test]
fn the_verifier_differs_after_each_start() {
    let mut seen = Vec::new();
    let device = sim(64 << 20);
    let (fs, server, mut c, file) = one_file(&device);
    let verifier = c.write(&file, 0, b"lost", UNSTABLE).unwrap().verifier;
    assert_eq!(c.write(&file, 0, b"lost", UNSTABLE).unwrap().verifier, verifier, "no loss, no change");
    seen.push(verifier);
    // Each start is on the same device contents, because the crash loses what the start wrote: its
    // epoch.
    for _ in 0..5 {
        after_crash(device.crash_as(Choice::None), |c| {
            seen.push(c.commit(&file).unwrap());
            assert_eq!(c.read(&file, 0, 9).unwrap().0, b"", "the bytes were lost, and the client sees it");
        });
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 6);
    server.stop();
    fs.close().unwrap();
}

#[test]
fn a_failed_commit_is_reported_and_changes_the_verifier() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let device = sim(64 << 20);
        let (fs, server, mut c, file) = one_file(&device);
        let first = c.write(&file, 0, &[1; 100_000], UNSTABLE).unwrap().verifier;
        device.set_plan(FaultPlan::new(1).fail_kind_from(kind, 0, EIO));
        assert_eq!(c.commit(&file).err(), Some(IO), "{kind:?}");
        device.heal();
        // A device error leaves the device's contents uncertain, so the file system may have shut
        // down.
        match c.write(&file, 0, b"x", UNSTABLE) {
            Ok(written) => assert_ne!(written.verifier, first, "{kind:?}"),
            Err(status) => assert_eq!(status, IO, "{kind:?}"),
        }
        match c.commit(&file) {
            Ok(verifier) => assert_ne!(verifier, first, "{kind:?}"),
            Err(status) => assert_eq!(status, IO, "{kind:?}"),
        }
        server.stop();
        drop(fs);
    }
}

#[test]
fn a_bad_place_in_the_data_fails_one_commit_and_the_client_sends_again() {
    let device = sim(64 << 20);
    let (fs, server, mut c, file) = one_file(&device);
    let first = c.write(&file, 0, &[1; 200_000], UNSTABLE).unwrap().verifier;
    // The first write, of the data, fails; the later ones, of the log, succeed.
    device.set_plan(FaultPlan::new(1).fail(OpKind::Write, 0, EIO));
    let outcome = c.commit(&file);
    assert!(device.struck() > 0, "the plan has had no effect");
    match outcome {
        Err(status) => assert_eq!(status, IO),
        Ok(verifier) => assert_eq!(verifier, first, "the data was written elsewhere: nothing is lost"),
    }
    let again = c.write(&file, 0, &[1; 200_000], UNSTABLE).unwrap().verifier;
    assert_eq!(outcome.is_err(), again != first, "a failure changes the verifier, and nothing else does");
    assert_eq!(c.commit(&file), Ok(again));
    after_crash(device.crash_as(Choice::None), |c| {
        assert!(c.read(&file, 0, 200_000).unwrap().0 == [1; 200_000]);
    });
    server.stop();
    fs.close().unwrap();
}

#[test]
fn lost_data_is_the_error_of_the_client_that_has_written_it() {
    let device = sim(64 << 20);
    let (fs, server, mut writer, file) = one_file(&device);
    let mut other = Client::of(server.address(), 0, 0, &[]);
    let root = other.root();
    let dirty = || {
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        stats["cache"]["dirty_pages"].as_u64().unwrap()
    };
    writer.write(&file, 0, &b"nowhere!".repeat(25_000), UNSTABLE).unwrap();
    let written = dirty();
    assert_eq!(other.setattr(&file, &mode(0o640)), OK);
    assert_eq!(dirty(), written, "a change of attributes writes no data");
    after_crash(device.crash_as(Choice::None), |c| assert_eq!(c.getattr(&file).unwrap().mode, 0o640));
    // No place on the device takes the data.
    device.set_plan(FaultPlan::new(1).refuse(*b"nowhere!", EIO));
    assert!(fs.sync().is_err(), "a writeback in the background");
    device.heal();
    assert_eq!(other.setattr(&file, &mode(0o600)), OK);
    assert_eq!(other.create(&root, "f", &mode(0o620)).unwrap().0, file, "of an existing file");
    assert_eq!(writer.commit(&file).err(), Some(IO));
    writer.commit(&file).unwrap();
    server.stop();
    fs.close().unwrap();
}

/// The server writes the client's bytes back when it needs the memory. After a crash each byte has
/// its written value or is zero.
#[test]
fn a_client_that_never_commits_takes_no_memory_and_nothing_of_another() {
    const CACHE: u64 = 4 << 20;
    const CHUNK: usize = 256 << 10;
    const CHUNKS: usize = 48;
    let device = sim(64 << 20);
    let options = MountOptions { cache_size: CACHE, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), clock(), options).unwrap();
    let mut rig = Rig::on(fs.clone(), Squash::None);
    let (mut careless, root) = (rig.user(0, 0, &[]), rig.root.clone());
    let (loose, _) = careless.create(&root, "loose", &mode(0o600)).unwrap();
    let mut kept = Vec::new();
    for n in 0..CHUNKS {
        careless.write(&loose, (n * CHUNK) as u64, &[n as u8 + 1; CHUNK], UNSTABLE).unwrap();
        let stats: serde_json::Value = serde_json::from_str(&fs.stats_json()).unwrap();
        let dirty = stats["cache"]["dirty_pages"].as_u64().unwrap() * 4096;
        assert!(dirty <= CACHE, "{dirty} bytes after {n} chunks");
        if n % 8 == 0 {
            let (file, _) = rig.client.create(&root, &format!("{n}"), &mode(0o600)).unwrap();
            rig.client.write(&file, 0, &[n as u8 + 1; 20_000], UNSTABLE).unwrap();
            rig.client.commit(&file).unwrap();
            kept.push((file, n as u8 + 1));
        }
    }
    for choice in [Choice::None, Choice::Torn(1)] {
        after_crash(device.crash_as(choice), |c| {
            for (file, byte) in &kept {
                assert!(c.read(file, 0, 30_000).unwrap().0 == [*byte; 20_000], "{byte} was committed");
            }
            for n in 0..CHUNKS {
                let (found, _) = c.read(&loose, (n * CHUNK) as u64, CHUNK as u32).unwrap();
                assert!(found.iter().all(|byte| [0, n as u8 + 1].contains(byte)), "chunk {n}");
            }
        });
    }
    rig.end();
}

#[test]
fn a_stopped_server_has_answered_and_closes_cleanly() {
    let device = sim(64 << 20);
    let (fs, server, mut c, file) = one_file(&device);
    // Requests in flight when the server stops get a reply, or are not executed.
    let mut offsets = BTreeMap::new();
    for n in 0..8u64 {
        let data = [n as u8 + 1; 512];
        let write = args().bytes(&file).u64(n * 512).u32(512).u32(UNSTABLE).bytes(&data);
        let message = c.head(NFS, 3, 7).raw(&write.0).0;
        offsets.insert(message[..4].to_vec(), n);
        c.send(&message).unwrap();
    }
    // The first reply proves that the server has accepted the connection.
    let mut replies = vec![c.receive().unwrap()];
    let address = c.stream.peer_addr().unwrap();
    server.stop();
    replies.extend(std::iter::from_fn(|| c.receive().ok()));
    fs.close().unwrap();
    assert!(Client::connect(address).is_err(), "nothing listens any more");
    // A write that was replied to survives the orderly end, without a COMMIT.
    after_crash(device.crash_as(Choice::None), |c| {
        for reply in &replies {
            let n = offsets[&reply[..4]];
            assert_eq!(reply[20..28], [0; 8], "accepted, and successful");
            assert_eq!(c.read(&file, n * 512, 512).unwrap().0, [n as u8 + 1; 512]);
        }
    });
}

/// Clients that make and remove the same name get only errors that some order of their calls
/// explains, even when an inode is removed before its creation is durable.
#[test]
fn clients_that_make_and_remove_the_same_name_do_not_fail() {
    const ROUNDS: usize = 1500;
    let device = sim(64 << 20);
    let fs = open(device.clone());
    let server = serve(&fs);
    let address = server.address();
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let work = move || {
                let mut c = Client::of(address, 0, 0, &[]);
                let root = c.root();
                for n in 0..ROUNDS {
                    let status = match client % 4 {
                        0 => c.create(&root, "name", &mode(0o644)).err().unwrap_or(OK),
                        1 => c.mkdir(&root, "name", &mode(0o755)).err().unwrap_or(OK),
                        2 => c.remove(&root, "name"),
                        _ => c.rmdir(&root, "name"),
                    };
                    let explained = [OK, NOENT, EXIST, NOTDIR, ISDIR].contains(&status);
                    assert!(explained, "round {n} of client {client}: {status}");
                }
            };
            kedge_base::spawn_named("client", work).unwrap()
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.stop();
    fs.close().unwrap();
    after_crash(device.crash_as(Choice::None), |c| assert!(c.mount("/").is_ok()));
}
