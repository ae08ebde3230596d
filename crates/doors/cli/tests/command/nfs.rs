//! `kedge serve nfs` as a process: its start, its end, its death. The protocol is tested in
//! `kedge-nfs`.

#[path = "../../../nfs/tests/common/mod.rs"]
pub mod client;
use crate::common::{Place, not_root, output_of, until};
use client::{Client, FILE_SYNC, STALE, UNSTABLE, mode};
use kedge_base::{pause, spawn_named};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A running server and the address at which it listens. Killed on drop.
struct Served {
    child: Child,
    address: SocketAddr,
    line: String,
}

impl Served {
    fn start(place: &Place, more: &[&str]) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
        command.current_dir(place.path(".")).args(["serve", "nfs", "--any-port", "--listen", "0"]).args(more);
        let mut child = command.arg("disk.kedge").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split("mountport=").nth(1).and_then(|rest| rest.split(' ').next());
        let port: u16 = port.unwrap_or_else(|| panic!("no port in {line:?}")).parse().unwrap();
        Served { child, address: ([127, 0, 0, 1], port).into(), line }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Ends the server with SIGTERM. Returns its exit code.
    fn end(mut self) -> i32 {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code().expect("ends by itself")
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    fn client(&self) -> Client {
        Client::of(self.address, 0, 0, &[])
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Errors do not matter: usually the server has ended already.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn image() -> Place {
    Place::after("mkfs --size 128M disk.kedge")
}

#[test]
fn a_signal_ends_it_and_all_is_on_the_image() {
    let place = image();
    let served = Served::start(&place, &[]);
    assert!(served.line.starts_with("disk.kedge is served; mount -t nfs -o "), "{}", served.line);
    let mut c = served.client();
    let root = c.root();
    let (file, _) = c.create(&root, "f", &mode(0o600)).unwrap();
    c.write(&file, 0, b"not committed", UNSTABLE).unwrap();
    place.run("fsck disk.kedge").refused(8, &["in use by another process"]);
    assert_eq!(served.end(), 0);
    assert_eq!(place.run("cat disk.kedge:/f").ok(), "not committed");
    let info: serde_json::Value = serde_json::from_str(&place.run("info --json disk.kedge").ok()).unwrap();
    assert_eq!(info["state"], "clean");
    place.run("fsck -f disk.kedge").ok();
    // A handle of the last process is valid in the next one.
    let served = Served::start(&place, &[]);
    let mut c = served.client();
    assert_eq!(c.read(&file, 0, 100).unwrap().0, b"not committed");
    assert_eq!(c.remove(&root, "f"), 0);
    assert_eq!(c.getattr(&file), Err(STALE));
    assert_eq!(served.end(), 0);
}

#[test]
fn wrong_words_are_refused() {
    let place = image();
    place.run("serve nfs -o volatile disk.kedge").refused(2, &["volatile", "durable"]);
    place.run("serve nfs -o nosuid disk.kedge").refused(2, &["client's mount"]);
    place.run("serve nfs -o foo disk.kedge").refused(2, &["foo"]);
    place.run("serve nfs --listen 0 -o tree=none disk.kedge").refused(2, &["tree=none", "no such path"]);
    place.run("serve nfs --listen here disk.kedge").refused(2, &["--listen here"]);
    place.run("serve nfs --anonymous 5 disk.kedge").refused(2, &["UID:GID"]);
    place.run("serve nfs --squash some disk.kedge").refused(2, &["some"]);
    place.run("serve nfs --listen 0 none.kedge").refused(1, &["none.kedge"]);
    let served = Served::start(&place, &[]);
    let port = served.address.port();
    place.run(&format!("serve nfs --listen {port} disk.kedge")).refused(1, &["listen on", "in use"]);
    assert_eq!(served.end(), 0);
}

/// As in a container, where all users may use ports below 1024.
#[test]
fn ports_that_all_users_may_use_show_no_kernel() {
    if not_root("only root makes network namespaces") {
        return;
    }
    let place = image();
    fs::create_dir(place.path("mnt")).unwrap();
    let serve = |start: u32, then: &str| {
        let script = format!(
            "set -e; ip link set lo up; echo {start} > /proc/sys/net/ipv4/ip_unprivileged_port_start; {then}"
        );
        let mut command = place.command("unshare");
        command.args(["-n", "sh", "-c", &script]).env("K", env!("CARGO_BIN_EXE_kedge"));
        let out = output_of(command).unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    for command in ["serve nfs", "mount --nfs 2049"] {
        let at = if command.starts_with("mount") { "mnt" } else { "" };
        let (code, _, errors) = serve(0, &format!("exec timeout 20 $K {command} disk.kedge {at}"));
        assert_eq!(code, Some(1), "{command}: {errors}");
        let words = ["net.ipv4.ip_unprivileged_port_start", "from 0 on", "--any-port"];
        assert!(words.iter().all(|word| errors.contains(word)), "{command}: {errors}");
    }
    // A refused connection is closed, an admitted one waits for a request.
    let connect = "
        $K serve nfs --listen 2049 disk.kedge > ready & server=$!
        until grep -q served ready; do sleep 0.05; done
        for port in 690 900; do
            python3 -c 'import socket, sys
s = socket.create_connection((\"127.0.0.1\", 2049), 2, (\"127.0.0.1\", int(sys.argv[1])))
try: print(sys.argv[1], \"refused\" if s.recv(1) == b\"\" else \"?\")
except TimeoutError: print(sys.argv[1], \"admitted\")
except ConnectionResetError: print(sys.argv[1], \"refused\")' $port
        done
        kill $server; wait $server";
    assert_eq!(serve(700, connect).1, "690 admitted\n900 refused\n");
    assert_eq!(serve(1024, connect).1, "690 admitted\n900 admitted\n");
}

#[test]
fn options_reach_the_image_and_the_users() {
    let place = image();
    let served = Served::start(&place, &["--squash", "all", "--anonymous", "7:8"]);
    let mut c = served.client();
    let root = c.root();
    // The owner of the root directory is the user that runs this test, perhaps root. Other users
    // may not create files in it.
    if c.getattr(&root).unwrap().uid != 7 {
        assert_eq!(c.create(&root, "f", &mode(0o600)).err(), Some(client::ACCES));
    }
    assert_eq!(served.end(), 0);
    place.run("snapshot create disk.kedge:/ disk.kedge:/monday").ok();
    let served = Served::start(&place, &["-o", "tree=monday"]);
    let mut c = served.client();
    let root = c.root();
    assert_eq!(c.mount("/monday").err(), Some(client::NOENT));
    assert_eq!(c.mkdir(&root, "d", &mode(0o700)).err(), Some(client::ROFS));
    assert_eq!(served.end(), 0);
    let served = Served::start(&place, &["-o", "ro"]);
    let mut c = served.client();
    assert_eq!(c.mkdir(&root, "d", &mode(0o700)).err(), Some(client::ROFS));
    assert_eq!(served.end(), 0);
}

/// The contents that the server has promised to be durable, by name.
type Promised = Mutex<BTreeMap<String, Vec<u8>>>;

/// Writes files until the server is dead, alternately with FILE_SYNC and with COMMIT.
fn write_until_dead(address: SocketAddr, writer: String, promised: &Promised) {
    let Ok(mut c) = Client::connect(address) else { return };
    let root = match c.mount("/") {
        Ok(root) => root,
        Err(status) => panic!("mount: {status}"),
    };
    for n in 0u32.. {
        let name = format!("{writer}-{n}");
        let bytes: Vec<u8> = (0..1 + n * 911 % 30_000).map(|at| (at * 31 + n) as u8).collect();
        let written = (|| {
            let (file, _) = c.try_create(&root, &name, 1, &mode(0o600))?.unwrap();
            if n.is_multiple_of(2) {
                c.try_write(&file, 0, &bytes, FILE_SYNC)?.unwrap();
            } else {
                let written = c.try_write(&file, 0, &bytes, UNSTABLE)?.unwrap();
                assert_eq!(c.try_commit(&file)?.unwrap(), written.verifier);
            }
            std::io::Result::Ok(())
        })();
        if written.is_err() {
            return;
        }
        promised.lock().insert(name, bytes);
    }
}

/// The server is killed under load, again and again. With `--volatile` unflushed writes are lost,
/// as in a power failure.
#[test]
fn sigkill_loses_nothing_that_was_promised() {
    let place = image();
    let promised = Arc::new(Promised::default());
    let mut verifiers = Vec::new();
    for round in 0..6 {
        let served = Served::start(&place, &["--volatile"]);
        let mut c = served.client();
        let root = c.root();
        for (name, bytes) in &*promised.lock() {
            let (file, _) = c.lookup(&root, name).unwrap();
            assert!(c.read(&file, 0, 40_000).unwrap().0 == *bytes, "{name} before round {round}");
        }
        let (probe, _) = c.create(&root, "probe", &mode(0o600)).unwrap();
        verifiers.push(c.commit(&probe).unwrap());
        let writers: Vec<_> = (0..6)
            .map(|writer| {
                let (address, promised) = (served.address, promised.clone());
                let name = format!("r{round}-w{writer}");
                spawn_named("writer", move || write_until_dead(address, name, &promised)).unwrap()
            })
            .collect();
        let enough = promised.lock().len() + 60;
        until("enough files are written", || promised.lock().len() >= enough);
        pause(Duration::from_millis(round * 3));
        served.kill();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
    let served = Served::start(&place, &[]);
    let mut c = served.client();
    let root = c.root();
    for (name, bytes) in &*promised.lock() {
        let (file, _) = c.lookup(&root, name).unwrap();
        assert!(c.read(&file, 0, 40_000).unwrap().0 == *bytes, "{name} at the end");
    }
    assert_eq!(served.end(), 0);
    place.run("fsck -f disk.kedge").ok();
    verifiers.sort_unstable();
    verifiers.dedup();
    assert_eq!(verifiers.len(), 6, "each start has its own verifier");
}
