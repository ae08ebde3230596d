//! Exports that are enlarged while they are open.

use super::tests::{B, Foreign, NBDKIT, Servers, open};
use super::*;
use crate::sim::Manners;
use crate::testing::{SIZE, pattern};
use crate::{Io, MemDevice, run_batch};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;

fn blocks(at: u64, round: u8) -> IoBuf {
    IoBuf::from_bytes(&pattern(at, 1, round))
}

/// Four threads write and read through both interfaces while the export grows ten times.
#[test]
fn an_export_grows_while_it_is_used() {
    let servers = Servers::new();
    let medium = Arc::new(MemDevice::new(SIZE));
    let uri = servers.serve(medium.clone(), Manners::default());
    let device = open(&format!("{uri}&connections=3"), OpenOptions::default()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4u64)
        .map(|t| {
            let (device, stop) = (device.clone(), stop.clone());
            let body = move || {
                let mut round = 0u8;
                while !stop.load(SeqCst) {
                    round = round % 250 + 1;
                    let place = |i| (t * 16 + i) * B;
                    let write = |i| {
                        let op = Op::Write { buf: blocks(t * 16 + i, round), fua: i == 3 };
                        Io { offset: place(i), op }
                    };
                    run_batch(&*device, (0..15).map(write).collect())
                        .into_iter()
                        .for_each(|done| done.result.unwrap());
                    device.write(place(15), &blocks(t * 16 + 15, round), false).unwrap();
                    device.flush().unwrap();
                    let mut found = IoBuf::zeroed(16);
                    device.read(place(0), &mut found).unwrap();
                    for (i, block) in (0..).zip(found.as_bytes().chunks(BLOCK_SIZE)) {
                        assert!(block == pattern(t * 16 + i, 1, round), "thread {t}, round {round}");
                    }
                }
            };
            spawn_named(&format!("writer-{t}"), body).unwrap()
        })
        .collect();
    for n in 1..=10 {
        let size = SIZE + n * 8 * B;
        assert_eq!(device.room().unwrap(), SIZE + (n - 1) * 8 * B);
        assert!(device.grow(size).unwrap_err().to_string().contains("are wanted"));
        medium.grow(size).unwrap();
        assert_eq!(device.room().unwrap(), size);
        device.grow(size).unwrap();
        assert_eq!(device.geometry().size, size);
        // The last block lies beyond the size that the old connections have.
        let last = size - B;
        device.write(last, &blocks(last, n as u8), true).unwrap();
        let mut found = IoBuf::zeroed(1);
        device.read(last, &mut found).unwrap();
        assert!(found.as_bytes() == pattern(last, 1, n as u8));
    }
    stop.store(true, SeqCst);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert!(device.write(SIZE + 80 * B, &blocks(0, 1), false).is_err(), "beyond the end");
}

#[test]
fn a_server_for_one_connection_keeps_its_size() {
    let servers = Servers::new();
    let medium = Arc::new(MemDevice::new(SIZE));
    let uri = servers.serve(medium.clone(), Manners { flags: 1 | 1 << 2, ..Manners::default() });
    let device = open(&uri, OpenOptions::default()).unwrap();
    medium.grow(2 * SIZE).unwrap();
    assert_eq!(device.room().unwrap(), SIZE);
    let refused = device.grow(2 * SIZE).unwrap_err().to_string();
    assert!(refused.contains(&uri) && refused.contains("one connection"), "{refused}");
    drop(device);
    assert_eq!(open(&uri, OpenOptions::default()).unwrap().geometry().size, 2 * SIZE);
}

#[test]
fn a_reader_does_not_grow() {
    let servers = Servers::new();
    let medium = Arc::new(MemDevice::new(SIZE));
    let uri = servers.serve(medium.clone(), Manners::default());
    let device = open(&uri, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    medium.grow(2 * SIZE).unwrap();
    assert!(matches!(device.grow(2 * SIZE), Err(Error::ReadOnly)));
}

/// The server never replies to a request on an old connection. The growth fails when that request
/// times out, and then the device fails every later request, although its new connections work.
#[test]
fn a_growth_does_not_outlive_a_lost_request() {
    let servers = Servers::new();
    let medium = Arc::new(MemDevice::new(SIZE));
    let manners = Manners { forgets: 1, ..Manners::default() };
    let uri = servers.serve(medium.clone(), manners);
    let device = open(&format!("{uri}&timeout=1"), OpenOptions::default()).unwrap();
    let other = device.clone();
    let lost = spawn_named("lost", move || other.write(0, &blocks(0, 1), false)).unwrap();
    while servers.made.lock()[0].requests() == 0 {
        kedge_base::pause(Duration::from_millis(2));
    }
    medium.grow(2 * SIZE).unwrap();
    assert!(matches!(device.grow(2 * SIZE), Err(Error::OutcomeUnknown)));
    assert!(matches!(lost.join().unwrap(), Err(Error::OutcomeUnknown)));
    assert!(matches!(device.read(0, &mut IoBuf::zeroed(1)), Err(Error::OutcomeUnknown)));
    let done = run_batch(&*device, vec![Io { offset: SIZE, op: Op::Read(IoBuf::zeroed(1)) }]);
    assert!(matches!(done[0].result, Err(Error::OutcomeUnknown)));
}

/// A growth ends an old connection whose receiver is in the middle of the bytes of a read. The
/// device dies then, for example because of a new connection. The test holds the lock of the state,
/// so that the receiver notices the failed read only after the growth has marked the connection as
/// ended.
#[test]
fn a_read_that_breaks_off_while_its_connection_is_retired_is_lost_and_not_forgotten() {
    let (ours, mut server) = UnixStream::pair().unwrap();
    let stream = Stream::Unix(ours);
    stream.set_timeouts(TICK_MAX, None).unwrap();
    let link = Arc::new(Link::new(stream, Duration::from_secs(300)));
    let export = Export { size: SIZE, flags: CAN_MULTI_CONN, payload_max: 1 << 20, structured: false };
    let shared = Arc::new(Shared::new("a pair of sockets".into(), export));
    let part = Plan::new(Kind::Read, 0, 2 * B).next(&shared.export).unwrap();
    let waiter = Arc::new(Waiter::default());
    let owner = Owner::Waiter(waiter.clone(), Some((IoBuf::zeroed(2), 0)));
    assert!(matches!(link.send(part, owner, None), Sent::Under));
    let mut reply = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    reply.extend([0; 4 + 8 + BLOCK_SIZE]);
    server.write_all(&reply).unwrap();
    let (receives, of) = (shared.clone(), link.clone());
    let receiver = spawn_named("receiver", move || receives.receiver(&of)).unwrap();
    while !link.is_filling() {
        kedge_base::pause(Duration::from_millis(1));
    }

    link.retire();
    let of = link.clone();
    let growth = spawn_named("growth", move || of.end()).unwrap();
    let state = shared.state.lock();
    assert!(link.kill().is_empty(), "the receiver has the only owner");
    growth.join().unwrap();
    assert!(link.has_ended());
    drop(state);
    assert_eq!(receiver.join().unwrap(), Ok(()));
    let (done, answered) = mpsc::channel();
    spawn_named("reader", move || done.send(waiter.wait()).unwrap()).unwrap();
    let (result, buf) = answered.recv_timeout(Duration::from_secs(20)).expect("the reader waits for ever");
    assert!(matches!(result, Err(Error::OutcomeUnknown)) && buf.is_some(), "{result:?}");
}

#[test]
fn a_server_that_is_gone_is_named() {
    let servers = Servers::new();
    let uri = servers.serve(Arc::new(MemDevice::new(SIZE)), Manners::default());
    let device = open(&uri, OpenOptions::default()).unwrap();
    servers.made.lock().clear();
    for e in [device.grow(2 * SIZE).unwrap_err(), device.room().unwrap_err()] {
        assert!(e.to_string().contains(&uri) && e.to_string().contains("look at"), "{e}");
    }
}

/// nbdkit measures the file again for each connection.
#[test]
fn nbdkit_serves_a_file_that_was_extended() {
    let Some(foreign) = Foreign::probe(&NBDKIT) else { return };
    let (dir, _process, uri) = foreign.serve(SIZE);
    let device = open(&uri, OpenOptions::default()).unwrap();
    device.write(SIZE - B, &blocks(1, 1), false).unwrap();
    std::fs::File::options().write(true).open(dir.path().join("image")).unwrap().set_len(2 * SIZE).unwrap();
    assert_eq!(device.room().unwrap(), 2 * SIZE);
    device.grow(2 * SIZE).unwrap();
    device.write(2 * SIZE - B, &blocks(2, 2), true).unwrap();
    drop(device);
    let bytes = std::fs::read(dir.path().join("image")).unwrap();
    assert!(bytes[(SIZE - B) as usize..SIZE as usize] == pattern(1, 1, 1));
    assert!(bytes[(2 * SIZE - B) as usize..] == pattern(2, 1, 2));
}
