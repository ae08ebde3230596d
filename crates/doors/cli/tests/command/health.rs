//! A mount that has failed reports this where operators look: in `info`, in `stats` and in the
//! system's log.

use crate::common::{Place, Run, needs_fuse, output_of, write_and_fsync};
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;

/// A socket that replaces the system's log in one test.
struct Syslog(UnixDatagram);

impl Syslog {
    fn new(place: &Place) -> Syslog {
        let socket = UnixDatagram::bind(place.path("log.sock")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Syslog(socket)
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = [0; 4096];
        while let Ok(n) = self.0.recv(&mut line) {
            lines.push(String::from_utf8_lossy(&line[..n]).into_owned());
        }
        lines
    }
}

fn run(place: &Place, line: &str) -> Run {
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.args(line.split(' ')).env_remove("KEDGE_LOG").env("KEDGE_SYSLOG", place.path("log.sock"));
    let out = output_of(command).unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: out.status.code().unwrap(), out: text(out.stdout), err: text(out.stderr) }
}

#[test]
fn a_mount_that_shut_down_is_visible() {
    needs_fuse!();
    let place = Place::new();
    let syslog = Syslog::new(&place);
    run(&place, "mount --create 64M --faults faults disk.kedge mnt").ok();
    write_and_fsync(&place.path("mnt/kept"), b"kept");
    assert_eq!(place.info("mnt")["state"], "mounted");
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats --json mnt").ok()).unwrap();
    assert_eq!(stats["state"]["shut_down"], false);
    let none = serde_json::json!({ "reads": 0, "writes": 0, "flushes": 0, "discards": 0 });
    assert_eq!(stats["device"]["errors"], none);
    assert_eq!(place.info("mnt")["device_errors"], none);
    assert!(!place.run("stats mnt").ok().contains("SHUT DOWN"));
    assert_eq!(syslog.lines(), [""; 0], "nothing to complain of");

    fs::write(place.path("faults"), "write 5 0 KEDGELOG\n").unwrap();
    for name in ["a", "b", "c", "d", "e", "f"] {
        // The first fsync fails; after it creations fail.
        if let Ok(file) = File::create(place.path("mnt").join(name)) {
            let e = file.sync_all().unwrap_err();
            assert_eq!(e.raw_os_error(), Some(libc::EIO));
        }
    }
    let info = place.info("mnt");
    assert_eq!(info["state"], "shut down");
    assert!(info["shut_down"].as_str().unwrap().contains("write"), "{info}");
    let since = info["shut_down_since"].as_str().unwrap();
    assert!(since.starts_with("20") && since.ends_with('Z'), "{since}");
    let text = place.run("stats mnt").ok();
    assert!(text.starts_with(&format!("SHUT DOWN since {since}: ")), "{text}");
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats --json mnt").ok()).unwrap();
    assert_eq!(stats["state"]["since"], since);
    assert!(stats["fuse"]["failed"]["FSYNC"]["EIO"].as_u64().unwrap() >= 1, "{}", stats["fuse"]);
    let failed = stats["device"]["errors"]["writes"].as_u64().unwrap();
    assert!(failed >= 1 && stats["device"]["errors"]["reads"] == 0, "{}", stats["device"]);
    assert_eq!(info["device_errors"]["writes"], failed);
    let scraped = place.run("stats --prometheus mnt").ok();
    assert!(scraped.contains("\nkedgefs_state_shut_down{mount="));
    assert!(scraped.contains("\n# TYPE kedgefs_device_errors_writes counter\n"), "{scraped}");
    let lines = syslog.lines();
    assert!(
        lines.iter().any(|l| l.starts_with("<27>kedge[") && l.contains("log write not made")),
        "{lines:?}"
    );
    assert!(lines.len() <= 6, "{lines:?}");
    run(&place, "umount mnt").refused(1, &["not closed cleanly"]);
}

#[test]
fn a_full_image_does_not_fill_the_log() {
    needs_fuse!();
    let place = Place::new();
    let syslog = Syslog::new(&place);
    run(&place, "mount --create 24M disk.kedge mnt").ok();
    let mut refused = 0;
    for i in 0..100 {
        let written = fs::write(place.path(&format!("mnt/{i}")), vec![7; 1 << 20]);
        refused += usize::from(written.is_err_and(|e| e.raw_os_error() == Some(libc::ENOSPC)));
    }
    assert!(refused > 80, "{refused} writes were refused");
    let lines = syslog.lines();
    assert!(lines.len() <= 4, "the writers got the errors, so few lines suffice: {lines:?}");
    run(&place, "umount mnt").ok();
}

#[test]
fn a_log_file_takes_the_place_of_the_systems_log() {
    needs_fuse!();
    let place = Place::new();
    let syslog = Syslog::new(&place);
    run(&place, "mount --create 64M --log-file log --faults faults disk.kedge mnt").ok();
    fs::write(place.path("faults"), "write 5 0 KEDGELOG\n").unwrap();
    File::create(place.path("mnt/a")).unwrap().sync_all().unwrap_err();
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("log write not made"), "{log}");
    assert_eq!(syslog.lines(), [""; 0]);
    run(&place, "umount mnt").refused(1, &["not closed cleanly"]);
}
