//! `kedge freeze` and `kedge thaw` of a mount: changes wait, reads go on, and a copy of the image
//! is clean.

use crate::common::{Place, is_running, kill, needs_fuse, no_fuse, output_of, pid, until, write_and_fsync};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// More writers than the server has workers.
const WRITERS: usize = 12;

/// A freeze with a time limit, because after a failed test all waiting programs and the mount would
/// hang forever.
const FREEZE: &str = "freeze --for 600 mnt";

/// The size of the buffer from which the writers take their bytes, in bytes.
const SOURCE_BYTES: usize = 1 << 16;

/// How many of a writer's newest files stay. The writer removes older ones, so that the image does
/// not become full on a fast machine.
const KEPT: &str = "200";

/// One of several programs that make files one after another, each durable before the next, and
/// report each file. It is a separate process, because the process that makes the snapshot must not
/// write: a child that it starts closes its copies of open files, and with `writeback_cache` a
/// close waits for the writes of the file.
struct Writer {
    /// The number of durable files.
    done: Arc<AtomicUsize>,
    program: Child,
    listener: JoinHandle<()>,
}

impl Writer {
    const SCRIPT: &str = r#"n=0
        while [ ! -e stop ]; do
            dd if=source iflag=skip_bytes skip=$((n % 4096)) bs=$((8 + n * 613 % 7200)) count=1 \
                of="$1/$n" conv=fsync status=none || exit 1
            [ $n -lt $2 ] || rm "$1/$((n - $2))" || exit 1
            n=$((n + 1))
            echo $n
        done"#;

    fn start(place: &Place, dir: &str) -> Writer {
        let mut command = place.command("sh");
        command.args(["-c", Writer::SCRIPT, "sh", dir, KEPT]).stdout(Stdio::piped());
        let mut program = command.spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        let listener = kedge_base::spawn_named("listener", move || {
            lines.for_each(|line| counted.store(line.unwrap().parse().unwrap(), SeqCst));
        });
        Writer { done, program, listener: listener.unwrap() }
    }

    fn done(&self) -> usize {
        self.done.load(SeqCst)
    }

    fn end(mut self) {
        assert!(self.program.wait().unwrap().success());
        self.listener.join().unwrap();
    }
}

fn source() -> Vec<u8> {
    (0..SOURCE_BYTES).map(|i| (i * i / 7 + i) as u8).collect()
}

/// The contents of file number `n` of a writer.
fn content(n: usize) -> Vec<u8> {
    source()[n % 4096..][..8 + n * 613 % 7200].to_vec()
}

/// Asserts that the copy of a frozen image is clean, and mounts without replay.
#[track_caller]
fn assert_clean(place: &Place, image: &str) {
    let said = place.run(&format!("fsck {image}")).ok();
    assert!(said.trim_end().ends_with("clean"), "{said}");
    assert_eq!(place.info(image)["clean"], true);
}

#[test]
fn copies_under_load_are_clean_and_complete() {
    if !no_fuse() {
        copies_under_load("");
    }
}

#[test]
fn copies_under_load_of_a_writeback_cache_are_clean_and_complete() {
    if !no_fuse() {
        copies_under_load(" -o writeback_cache");
    }
}

fn copies_under_load(options: &str) {
    let place = Place::after(&format!("mount --create 64M disk.kedge mnt{options}"));
    fs::write(place.path("source"), source()).unwrap();
    let writers: Vec<Writer> = (0..WRITERS)
        .map(|i| {
            let dir = format!("mnt/{i}");
            fs::create_dir(place.path(&dir)).unwrap();
            Writer::start(&place, &dir)
        })
        .collect();
    let total = || writers.iter().map(Writer::done).sum::<usize>();
    until("there is a load", || total() > 2 * WRITERS);
    fs::create_dir(place.path("copy")).unwrap();
    for round in 0..2 {
        let done: Vec<usize> = writers.iter().map(Writer::done).collect();
        // Open the files before the freeze: a waiting writer holds the kernel's lock of its
        // directory, so the lookup of a name that is not cached would wait for the thaw.
        let mut files = Vec::new();
        for (i, writer) in writers.iter().enumerate().filter(|(i, _)| done[*i] > 0) {
            files.push(open_newest(writer, &place.path(&format!("mnt/{i}"))));
        }
        place.run(FREEZE).ok();
        assert_frozen(&place);
        // All writers wait, and readers do not.
        let image = fs::read(place.path("disk.kedge")).unwrap();
        for (n, mut file) in files {
            let mut found = Vec::new();
            file.read_to_end(&mut found).unwrap();
            assert_eq!(found, content(n));
        }
        fs::write(place.path("copy.kedge"), &image).unwrap();
        assert!(fs::read(place.path("disk.kedge")).unwrap() == image, "it has changed");
        place.run("thaw mnt").ok();
        place.run("thaw mnt").refused(1, &["mnt is not frozen"]);
        assert_clean(&place, "copy.kedge");
        place.run("mount -o ro copy.kedge copy").ok();
        for (i, done) in done.iter().enumerate() {
            assert_complete(&place.path(&format!("copy/{i}")), *done, round);
        }
        place.run("umount copy").ok();
        let before = total();
        until("the writers go on", || total() > before + 2 * WRITERS);
    }
    fs::write(place.path("stop"), b"").unwrap();
    writers.into_iter().for_each(Writer::end);
    place.unmount_and_check("disk.kedge");
}

/// Opens the newest file that a writer has reported, and returns its number too.
fn open_newest(writer: &Writer, dir: &Path) -> (usize, fs::File) {
    loop {
        let n = writer.done() - 1;
        match fs::File::open(dir.join(n.to_string())) {
            Ok(file) => return (n, file),
            // The writer has removed this file, as it has made enough newer ones since.
            Err(e) => assert_eq!((e.kind(), writer.done() > n + 1), (ErrorKind::NotFound, true)),
        }
    }
}

/// Asserts that the copy of a writer's directory has all files from its oldest one to number
/// `done`, which the writer had reported, and perhaps newer ones. Each file has its contents,
/// except the newest if the writer was just making it.
#[track_caller]
fn assert_complete(dir: &Path, done: usize, round: usize) {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut numbers: Vec<usize> = names.map(|name| name.to_str().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "round {round}: {numbers:?}");
    let Some(newest) = numbers.pop() else {
        return assert_eq!(done, 0, "round {round}");
    };
    assert!(newest + 1 >= done, "round {round}: {newest} of {done}");
    let is_made = newest < done;
    for n in numbers.into_iter().chain(is_made.then_some(newest)) {
        let path = dir.join(n.to_string());
        assert_eq!(fs::read(&path).unwrap(), content(n), "round {round}: {}", path.display());
    }
}

/// Asserts that every command reports the freeze.
fn assert_frozen(place: &Place) {
    let info = place.info("mnt");
    assert_eq!(info["state"], "frozen");
    let since = info["frozen_since"].as_str().unwrap();
    assert!(since.starts_with("20") && since.ends_with('Z'), "{since}");
    assert!(place.run("stats mnt").ok().starts_with(&format!("FROZEN since {since}")));
    assert!(place.run("top --once mnt").ok().contains("FROZEN since"));
    place.run("freeze mnt").refused(1, &["mnt is frozen already"]);
}

/// The bytes of the parked requests.
fn parked(place: &Place) -> u64 {
    let text = place.run("stats --json mnt").ok();
    let stats: serde_json::Value = serde_json::from_str(&text).unwrap();
    stats["fuse"]["parked_bytes"].as_u64().unwrap()
}

/// A program that waits for the thaw can be killed, and its change is not made. A signal that does
/// not kill has no effect.
#[test]
fn a_program_that_waits_can_be_killed() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    write_and_fsync(&place.path("mnt/file"), b"before");
    for dir in ["mnt/a", "mnt/b"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    place.run(FREEZE).ok();
    let waits = |script: &str| {
        let before = parked(&place);
        let child = place.command("sh").args(["-c", script]).spawn().unwrap();
        until("it waits", || parked(&place) > before);
        child
    };
    let ended_by = |child: &mut Child| {
        let mut status = None;
        until("it has ended", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().signal()
    };
    let process = |child: &Child| Pid::from_raw(child.id() as i32).unwrap();
    // The shell itself makes the changes. Each is in another directory, because a waiting change
    // holds its directory's lock.
    let mut create = waits("trap : USR1; echo killed > mnt/a/new");
    let mut write = waits("echo killed 1<> mnt/file");
    let mut spared = waits("trap : USR1; echo spared > mnt/b/spared");
    for child in [&create, &spared] {
        kill_process(process(child), Signal::USR1).unwrap();
    }
    let all = parked(&place);
    std::thread::sleep(Duration::from_millis(300)); // several checks of the callers
    assert_eq!(parked(&place), all, "a signal that does not kill has ended a change");
    for child in [&mut create, &mut write] {
        kill_process(process(child), Signal::KILL).unwrap();
        assert_eq!(ended_by(child), Some(Signal::KILL.as_raw()));
    }
    until("nothing is left of the killed", || parked(&place) < all);
    assert!(spared.try_wait().unwrap().is_none());
    place.run("thaw mnt").ok();
    assert_eq!(ended_by(&mut spared), None);
    assert_eq!(fs::read(place.path("mnt/b/spared")).unwrap(), b"spared\n");
    assert!(!place.path("mnt/a/new").exists());
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"before");
    assert_eq!(parked(&place), 0);
    place.unmount_and_check("disk.kedge");
}

/// A waiting change holds the kernel's locks of its directory and its file. Neither the thaw nor
/// reading the mount's state needs them.
#[test]
fn a_thaw_needs_nothing_that_a_waiting_change_holds() {
    needs_fuse!();
    let place = Place::after("mount --create 64M disk.kedge mnt");
    place.run(FREEZE).ok();
    let path = place.path("mnt/in-the-root");
    let create = kedge_base::spawn_named("create", move || File::create(path).map(drop)).unwrap();
    until("a change waits", || parked(&place) > 0);
    assert!(!create.is_finished());
    place.run("thaw mnt").ok();
    create.join().unwrap().unwrap();
    place.run("freeze --for 1 mnt").ok();
    File::create(place.path("mnt/a-second-later")).unwrap();
    assert_eq!(place.info("mnt")["state"], "mounted");
    place.unmount_and_check("disk.kedge");
}

/// The options of the file system cannot change while it is frozen. The kernel can change those of
/// its mount, and the thaw still works.
#[test]
fn a_remount_of_a_frozen_mount() {
    needs_fuse!(root: "only root may make a mount read-only");
    let place = Place::after("mount --create 64M disk.kedge mnt");
    fs::write(place.path("mnt/a"), b"before").unwrap();
    place.run(FREEZE).ok();
    let frozen = bytes(&place.path("disk.kedge"));
    place.run("remount -o commit=17 mnt").refused(1, &["remount mnt", "it is frozen"]);
    place.run("remount -o ro mnt").ok();
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"before");
    assert_eq!(place.info("mnt")["state"], "frozen");
    assert!(bytes(&place.path("disk.kedge")) == frozen);
    place.run("thaw mnt").ok();
    let refused = fs::write(place.path("mnt/a"), b"refused").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    place.run("remount -o rw,commit=17 mnt").ok();
    fs::write(place.path("mnt/a"), b"after").unwrap();
    place.unmount_and_check("disk.kedge");
}

/// The kernel does not pass FIFREEZE to a FUSE server.
#[test]
fn fsfreeze_is_refused_by_the_kernel() {
    needs_fuse!(root: "FIFREEZE wants root");
    let place = Place::after("mount --create 64M disk.kedge mnt");
    for flag in ["-f", "-u"] {
        let mut command = place.command("fsfreeze");
        command.args([flag, "mnt"]);
        let out = output_of(command).unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let expected = if flag == "-f" { "Operation not supported" } else { "Invalid argument" };
        assert!(!out.status.success() && said.contains(expected), "{flag}: {said}");
    }
    assert_eq!(place.info("mnt")["state"], "mounted");
    fs::write(place.path("mnt/a"), b"goes on").unwrap();
    place.unmount_and_check("disk.kedge");
    place.run("freeze mnt").refused(1, &["mnt is not a mount of KedgeFS"]);
    place.run("thaw mnt").refused(1, &["mnt is not a mount of KedgeFS"]);
}

fn bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// The end of the process and the end of the mount leave a frozen image unchanged.
#[test]
fn a_frozen_image_stays_as_it_is_whatever_ends_the_mount() {
    needs_fuse!();
    for end in ["kill -9", "SIGTERM", "umount"] {
        let place = Place::after("mount --create 64M disk.kedge mnt");
        write_and_fsync(&place.path("mnt/fsynced"), b"rides in the log");
        fs::write(place.path("mnt/written"), vec![7; 3 << 20]).unwrap();
        place.run(FREEZE).ok();
        let frozen = bytes(&place.path("disk.kedge"));
        match end {
            "kill -9" => {
                kill(&place, "mnt");
                // umount reports the dead mount and detaches it.
                place.run("umount mnt").refused(1, &["the serving process had died"]);
            }
            "SIGTERM" => {
                let server = pid(&place, "mnt");
                kill_process(server, Signal::TERM).unwrap();
                until("the process has ended", || !is_running(server.as_raw_nonzero().get()));
            }
            _ => place.unmount(),
        }
        assert!(bytes(&place.path("disk.kedge")) == frozen, "{end}");
        assert_clean(&place, "disk.kedge");
        place.run("mount disk.kedge mnt").ok();
        assert_eq!(place.info("mnt")["recovery"]["clean"], true, "{end}");
        assert_eq!(fs::read(place.path("mnt/fsynced")).unwrap(), b"rides in the log");
        assert_eq!(fs::read(place.path("mnt/written")).unwrap(), vec![7; 3 << 20]);
        place.unmount_and_check("disk.kedge");
    }
}
