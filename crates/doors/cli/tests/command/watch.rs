//! `kedge stats --listen` queried as by a scraper, and `kedge top` on a terminal.

use crate::common::{Place, kill, needs_fuse, tool, until, write_and_fsync};
use kedge_base::HANG;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

/// A process of `kedge stats --listen`, killed on drop.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(place: &Place, args: &[&str]) -> Server {
        let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
        let mut child =
            command.args(["stats", "--listen"]).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|l| l.strip_suffix("/metrics"));
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        Server { child, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn metrics(&self) -> String {
        let answer = self.ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        body.to_owned()
    }
}

/// Whether the server has closed a connection on which it has sent nothing.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    !stream.peek(&mut [0; 1]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_scraper_gets_the_counters_of_all_mounts() {
    needs_fuse!();
    let place = Place::new();
    for name in ["a", "b"] {
        place.run(&format!("mount --create 16M {name}.kedge mnt-{name}")).ok();
    }
    write_and_fsync(&place.path("mnt-a/file"), b"x");
    let label = |name: &str| format!("{{mount=\"{}\"}}", place.path(name).canonicalize().unwrap().display());
    let (a, b) = (label("mnt-a"), label("mnt-b"));
    let server = Server::start(&place, &["0", "mnt-a", "mnt-b"]);
    assert!(server.address.ip().is_loopback());
    let body = server.metrics();
    for up in [&a, &b] {
        assert!(body.contains(&format!("kedgefs_up{up} 1\n")), "{body}");
    }
    assert_eq!(body.matches("# TYPE kedgefs_log_writes counter\n").count(), 1, "{body}");
    let fsyncs = format!("kedgefs_operations_fsync_count{a} 1\n");
    assert!(body.contains(&fsyncs), "{body}");
    let answer = server.ask("GET / HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("/metrics"), "{answer}");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n", "x".repeat(8 << 10));
    assert!(server.ask(&long[..8 << 10]).starts_with("HTTP/1.1 431 "));
    // Clients that send nothing do not delay the others, and connections beyond the limit are
    // closed.
    let silent: Vec<TcpStream> = (0..8).map(|_| server.connect()).collect();
    assert!(server.metrics().contains("kedgefs_up"));
    drop(silent);
    until("a connection beyond the limit is closed before the first one", || {
        let silent: Vec<TcpStream> = (0..24).map(|_| server.connect()).collect();
        until("one is closed", || silent.iter().any(is_closed));
        // The server closes the silent connections in the order in which it accepted them, when
        // their time limit has passed.
        !is_closed(&silent[0])
    });

    // A dead mount is reported as down, and the others are still reported. Without mount points,
    // all mounts are served.
    let all = Server::start(&place, &["127.0.0.1:0"]);
    until("both are served", || {
        let body = all.metrics();
        [&a, &b].iter().all(|l| body.contains(&format!("kedgefs_up{l} 1\n")))
    });
    kill(&place, "mnt-b");
    for server in [&server, &all] {
        until("connections are free again", || {
            let mut stream = server.connect();
            let asked = stream.write_all(b"HEAD /metrics HTTP/1.1\r\n\r\n");
            asked.is_ok() && stream.read(&mut [0; 9]).is_ok_and(|n| n == 9)
        });
        let body = server.metrics();
        assert!(body.contains(&format!("kedgefs_up{b} 0\n")), "{body}");
        assert!(body.contains(&format!("kedgefs_up{a} 1\n")), "{body}");
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    let place = Place::new();
    place.run("stats --listen here").refused(2, &["--listen here", "ADDRESS:PORT"]);
    place.run("stats --listen 0 --json").refused(2, &["--json"]);
    place.run("stats").refused(2, &["<DIR>"]);
    place.run("stats a b").refused(2, &["one mount point"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    place.run(&format!("stats --listen {address}")).refused(1, &["listen on", "in use"]);
}

#[test]
fn top_for_scripts_and_on_a_terminal() {
    needs_fuse!();
    let place = Place::after("mount --create 16M a.kedge mnt");
    write_and_fsync(&place.path("mnt/file"), b"x");
    let out = place.run("top --once mnt").ok();
    for line in ["KedgeFS on ", "log ", "dirty ", "checkpoint ", "device ", "fsync "] {
        assert!(out.lines().any(|l| l.starts_with(line)), "{line} in {out}");
    }
    assert!(!out.contains('\x1b'), "{out}");
    place.run("top --once gone").refused(1, &["gone"]);
    place.run("top --interval 0 mnt").refused(2, &["--interval"]);

    // script(1) runs `kedge top` on its own terminal. The key `q` ends it after one page.
    let line = format!("stty rows 12 cols 40; {} top mnt; stty -a", env!("CARGO_BIN_EXE_kedge"));
    let mut command = Command::new("sh");
    command.current_dir(place.path("")).env("TERM", "xterm").args([
        "-c",
        "(until grep -q 'KedgeFS on ' shown; do sleep 0.1; done; printf q) | script -qefc \"$0\" shown",
        &line,
    ]);
    let shown = tool(command, "bsdutils");
    let (drawn, after) = shown.split_once("\x1b[?1049l").unwrap_or_else(|| panic!("{shown:?}"));
    assert!(drawn.contains("\x1b[?1049h") && drawn.contains("KedgeFS on "), "{drawn:?}");
    let pictures: Vec<&str> = drawn.split("\x1b[H").skip(1).collect();
    assert!(!pictures.is_empty(), "{drawn:?}");
    for picture in pictures {
        assert!(picture.lines().count() <= 12, "{picture:?}");
        let widths = picture.lines().map(|l| l.replace("\x1b[K", "").replace("\x1b[J", "").chars().count());
        assert!(widths.max().unwrap() <= 40, "{picture:?}");
    }
    assert!(after.contains(" icanon") && after.contains(" echo "), "the terminal is as before: {after}");
}
