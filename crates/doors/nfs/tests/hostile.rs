//! Malicious peers: no bytes stop the server, and the resources of a peer are bounded.

use crate::common::*;
use kedge_base::{Clock, HANG, SystemClock, spawn_named};
use kedge_nfs::{Limits, Rights, Server, Squash};
use kedgefs::device::sim::DistantDevice;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const POLL: Duration = Duration::from_millis(10);

/// Whether the server has closed the connection.
fn is_closed(c: &mut Client) -> bool {
    let mut byte = [0];
    c.stream.set_read_timeout(Some(HANG)).unwrap();
    match c.stream.read(&mut byte) {
        Ok(n) => n == 0,
        Err(e) => e.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn bytes_that_are_no_call_close_the_connection() {
    let mut rig = Rig::new();
    for bytes in [&[][..], b"abc", &[0xff; 64], &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2]] {
        let mut c = rig.user(0, 0, &[]);
        c.send(bytes).unwrap();
        assert!(is_closed(&mut c), "{bytes:?}");
    }
    let mut c = rig.user(0, 0, &[]);
    c.stream.write_all(&[0xff; 4]).unwrap();
    assert!(is_closed(&mut c), "a message of two gigabytes");
    assert!(rig.client.getattr(&rig.root).is_ok());
    rig.end();
}

/// Valid calls with some bytes changed, cut off or added: each gets a reply, or its connection is
/// closed, and the server goes on.
#[test]
fn changed_calls_never_end_the_server() {
    let seed = std::env::var("KEDGE_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("KEDGE_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut rig = Rig::new();
    let root = rig.root.clone();
    let (file, _) = rig.client.create(&root, "f", &mode(0o666)).unwrap();
    let name = args().bytes(&root).bytes(b"name");
    let set = mode(0o777);
    let calls: Vec<(u32, Args)> = vec![
        (1, args().bytes(&file)),
        (2, args().bytes(&file).set(&set).u32(0)),
        (3, name.clone()),
        (4, args().bytes(&file).u32(63)),
        (5, args().bytes(&file)),
        (6, args().bytes(&file).u64(0).u32(100)),
        (7, args().bytes(&file).u64(0).u32(4).u32(2).bytes(b"data")),
        (8, name.clone().u32(1).set(&set)),
        (8, name.clone().u32(2).u64(5)),
        (9, name.clone().set(&set)),
        (10, name.clone().set(&set).bytes(b"target")),
        (11, name.clone().u32(4).set(&set).u32(1).u32(3)),
        (12, name.clone()),
        (13, name.clone()),
        (14, name.clone().raw(&name.0)),
        (15, args().bytes(&file).raw(&name.0)),
        (16, args().bytes(&root).u64(0).u64(0).u32(1000)),
        (17, args().bytes(&root).u64(0).u64(0).u32(1000).u32(1000)),
        (18, args().bytes(&root)),
        (19, args().bytes(&root)),
        (20, args().bytes(&root)),
        (21, args().bytes(&file).u64(0).u32(0)),
    ];
    let mut c = rig.user(0, 0, &[]);
    let (mut answered, mut closed) = (0, 0);
    for round in 0..6000 {
        let (procedure, arguments) = &calls[rng.random_range(0..calls.len())];
        let mut message = c.head(NFS, 3, *procedure).raw(&arguments.0).0;
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..message.len());
            match rng.random_range(0..4) {
                0 => message[at] = rng.random(),
                1 => message[at] ^= 1 << rng.random_range(0..8),
                2 => message.truncate(at.max(4)),
                _ => message.extend((0..rng.random_range(1..40)).map(|_| rng.random::<u8>())),
            }
        }
        c.send(&message).unwrap();
        match c.receive() {
            Ok(reply) => {
                assert!(reply.len() >= 12, "round {round}");
                answered += 1;
            }
            Err(_) => {
                closed += 1;
                c = rig.user(0, 0, &[]);
            }
        }
    }
    assert!(answered > 3000 && closed > 10, "{answered} answered, {closed} closed");
    assert!(rig.client.getattr(&root).is_ok());
    rig.end();
}

#[test]
fn half_messages_and_silent_peers_are_given_up() {
    let fs = open(formatted(64 << 20));
    let limits = Limits {
        message_time: Duration::from_millis(200),
        idle_time: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = serve_with(&fs, Squash::None, limits);
    let mut half = Client::of(server.address(), 0, 0, &[]);
    half.stream.write_all(&[0x80, 0, 0]).unwrap();
    let mut more = Client::of(server.address(), 0, 0, &[]);
    more.stream.write_all(&[0x80, 0, 0, 99, 1, 2, 3]).unwrap();
    let mut silent = Client::of(server.address(), 0, 0, &[]);
    for c in [&mut half, &mut more, &mut silent] {
        assert!(is_closed(c));
    }
    server.stop();
    fs.close().unwrap();
}

#[test]
fn connections_beyond_the_limit_are_closed_and_later_ones_served() {
    const FURTHER: usize = 2000;
    let fs = open(formatted(64 << 20));
    let server = serve_with(&fs, Squash::None, Limits { connections: 3, ..Limits::default() });
    let mut live: Vec<Client> = (0..3).map(|_| Client::of(server.address(), 0, 0, &[])).collect();
    for c in &mut live {
        c.root();
    }
    for n in 0..FURTHER {
        let mut further = Client::of(server.address(), 0, 0, &[]);
        assert!(is_closed(&mut further));
        if n % 100 == 0 {
            live.iter_mut().for_each(|c| assert!(!c.root().is_empty()));
        }
    }
    live.pop();
    // The server notices the end of a connection after a delay.
    let served = (0..HANG.as_millis() / POLL.as_millis()).any(|_| {
        kedge_base::pause(POLL);
        let mut c = Client::of(server.address(), 0, 0, &[]);
        let head = c.head(NFS, 3, 0);
        c.send(&head.0).is_ok() && c.receive().is_ok()
    });
    assert!(served);
    drop(live);
    server.stop();
    fs.close().unwrap();
}

/// A peer that reads no replies delays only its own requests, and does not keep the server from
/// stopping.
#[test]
fn a_peer_that_takes_no_replies_harms_only_itself() {
    let fs = open(formatted(64 << 20));
    let limits = Limits { message_time: Duration::from_secs(2), workers: 2, ..Limits::default() };
    let server = serve_with(&fs, Squash::None, limits);
    let mut other = Client::of(server.address(), 0, 0, &[]);
    let root = other.root();
    let (file, _) = other.create(&root, "f", &mode(0o600)).unwrap();
    other.write(&file, 0, &[7; 256 << 10], UNSTABLE).unwrap();
    let mut greedy = Client::of(server.address(), 0, 0, &[]);
    greedy.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut sent = 0;
    for _ in 0..2000 {
        let call = greedy.head(NFS, 3, 6).raw(&args().bytes(&file).u64(0).u32(256 << 10).0);
        if greedy.send(&call.0).is_err() {
            break;
        }
        sent += 1;
    }
    assert!(sent > 16, "{sent}");
    for _ in 0..100 {
        assert_eq!(other.read(&file, 0, 5).unwrap().0, [7; 5]);
    }
    drop(other);
    server.stop();
    fs.close().unwrap();
}

/// Each reply makes the client send one more request. A change needs some milliseconds, so that
/// requests are always in flight.
#[test]
fn a_client_that_keeps_sending_does_not_delay_the_stop() {
    const IN_FLIGHT: usize = 600;
    const SOON: Duration = Duration::from_secs(10);
    let slow = Arc::new(DistantDevice::new(formatted(64 << 20), Duration::from_millis(2)));
    let Rig { fs, server, client: mut c, root } = Rig::on(open(slow), Squash::None);
    let send = move |c: &mut Client| {
        let call = c.head(NFS, 3, 2).raw(&args().bytes(&root).set(&mode(0o755)).u32(0).0);
        c.send(&call.0)
    };
    for _ in 0..IN_FLIGHT {
        send(&mut c).unwrap();
    }
    let given_up = Arc::new(AtomicBool::new(false));
    let ends = given_up.clone();
    let sender = spawn_named("sender", move || {
        while !ends.load(Ordering::SeqCst) && c.receive().is_ok() && send(&mut c).is_ok() {}
    });
    let stopping = spawn_named("stop", move || server.stop()).unwrap();
    let (clock, mut is_stopped) = (SystemClock::default(), false);
    let begun = clock.monotonic();
    while !is_stopped && clock.since(begun) < SOON {
        kedge_base::pause(POLL);
        is_stopped = stopping.is_finished();
    }
    given_up.store(true, Ordering::SeqCst);
    sender.unwrap().join().unwrap();
    stopping.join().unwrap();
    assert!(is_stopped, "the server goes on while the client sends");
    fs.close().unwrap();
}

/// Connects from the local port `port`.
fn connect_from(port: u16, to: SocketAddr) -> rustix::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], port)))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// Users other than root cannot bind a port below 1024, and so cannot claim to be root.
#[test]
fn only_programs_of_root_are_admitted_by_default() {
    let fs = open(formatted(64 << 20));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rights = Rights { ports_below: Some(Rights::RESERVED), ..rights(Squash::None) };
    let server = Server::start(fs.clone(), listener, rights, Limits::default()).unwrap();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection is closed");
    if rustix::process::geteuid().is_root() {
        let address = server.address();
        let stream = (600..1024).find_map(|port| connect_from(port, address).ok());
        let stream = stream.expect("a port below 1024 is free");
        assert!(Client::on(stream).root().len() > 8);
    }
    server.stop();
    fs.close().unwrap();
}
