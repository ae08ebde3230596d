//! Crafted images, checked under a limit of memory.
//!
//! Each image is checked in a child process with a limit of 1 GiB of memory. So an absurd
//! allocation ends in an abort, which the parent sees, and the parent can kill a child that hangs.
//! The parent continues after the image at which a child died.
//!
//! `KEDGE_HOSTILE_IMAGES` sets the number of images (10,000 before a release), `KEDGE_SEED` the
//! first seed. Each seed makes one image. To check one image again, give its seed and the number 1.

use kedge_base::{BLOCK_SIZE, Clock, HANG, SystemClock};
use kedge_format::item::FILE_SIZE_MAX;
use kedge_format::superblock::{COUNTER_MAX, OPEN_MAX, Superblock};
use kedge_format::{INO_MAX, InodeCore, Key};
use kedge_sim::fuzz::damage::open;
use kedge_sim::fuzz::hostile::{image, judge, with_edits, with_slot};
use kedge_sim::ops::OWNER;
use kedge_sim::rig::{panic_text, seed_from_env};
use kedgefs::Ino;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

/// Number of images of an ordinary run. A long run (`KEDGE_LONG=1`) checks three times as many.
const IMAGES: u64 = 100;
/// Limit in bytes of the memory that all mounts and checks of an image use together.
const MEMORY: u64 = 1 << 30;
/// Limit of failures that are printed, since one fault fails on many images.
const FAILURES_MAX: usize = 40;
const CHILD: &str = "KEDGE_HOSTILE_CHILD";

/// Number of panics on all threads, including the engine's own, which no test catches.
static PANICS: AtomicU64 = AtomicU64::new(0);

#[test]
fn hostile_images_neither_harm_the_process_nor_divide_fsck_and_mount() {
    if let Ok(range) = std::env::var(CHILD) {
        return child(&range);
    }
    let usual = if std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1") { 3 * IMAGES } else { IMAGES };
    let images = std::env::var("KEDGE_HOSTILE_IMAGES").map_or(usual, |n| n.parse().expect("a number"));
    let first = seed_from_env().unwrap_or(1);
    let (mut next, end) = (first, first + images);
    let mut failures = Vec::new();
    let mut counts = Counts::default();
    while next < end && failures.len() < FAILURES_MAX {
        next = watch(next, end, &mut failures, &mut counts);
    }
    println!("{} hostile images from seed {first} on: {counts:?}", next - first);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert_eq!(counts.judged, images);
    if images >= IMAGES {
        // Images that everything accepts, or that nothing accepts, would test little.
        let enough = images / 20;
        let Counts { opens, clean, repaired, .. } = counts;
        assert!(opens > enough && clean > enough && repaired > enough, "{counts:?}");
        assert!(clean < images - enough, "{counts:?}");
    }
}

#[derive(Default, Debug)]
struct Counts {
    judged: u64,
    opens: u64,
    clean: u64,
    preened: u64,
    repaired: u64,
}

/// Watches a child that checks the images from `from` on. Returns the image at which to continue.
fn watch(from: u64, end: u64, failures: &mut Vec<String>, counts: &mut Counts) -> u64 {
    let test = "hostile_images_neither_harm_the_process_nor_divide_fsck_and_mount";
    let mut child = Command::new(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, format!("{from} {end}"))
        // All threads use one malloc arena, since the limit counts what each arena reserves.
        .env("MALLOC_ARENA_MAX", "2")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child starts");
    let (lines, errors) = (lines_of(child.stdout.take()), lines_of(child.stderr.take()));
    let mut at = from;
    let ending = loop {
        match lines.recv_timeout(HANG) {
            Ok(line) => {
                let mut words = line.splitn(3, ' ');
                match (words.next(), words.next().and_then(|n| n.parse::<u64>().ok()), words.next()) {
                    (Some("begin"), Some(seed), _) => at = seed,
                    (Some("done"), Some(_), Some(verdict)) => counts.add(verdict),
                    (Some("failed"), Some(seed), Some(why)) => {
                        counts.judged += 1;
                        failures.push(format!("KEDGE_SEED={seed}: {}", why.replace('\u{1}', "\n    ")));
                        if failures.len() >= FAILURES_MAX {
                            break "has failed too often";
                        }
                    }
                    (Some("end"), ..) => {
                        let status = child.wait().expect("a child can be waited for");
                        assert!(status.success(), "the child says that it is done, and ends with {status}");
                        return end;
                    }
                    _ => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => break "does not end",
            Err(RecvTimeoutError::Disconnected) => break "has died",
        }
    };
    stop(&mut child);
    // The indented lines of a backtrace are left out.
    let said: Vec<String> = errors.try_iter().filter(|line| !line.starts_with(' ')).collect();
    let said = said[said.len().saturating_sub(8)..].join("\n    ");
    failures.push(format!("KEDGE_SEED={at}: the process {ending}\n    {said}\n    {:?}", image(at).lies));
    counts.judged += 1;
    at + 1
}

impl Counts {
    fn add(&mut self, verdict: &str) {
        self.judged += 1;
        for (count, bit) in
            [&mut self.opens, &mut self.clean, &mut self.preened, &mut self.repaired].into_iter().zip(0..)
        {
            *count += u64::from(verdict.as_bytes().get(bit) == Some(&b'1'));
        }
    }
}

fn stop(child: &mut Child) {
    // The child may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

fn lines_of(stream: Option<impl std::io::Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = channel();
    let stream = BufReader::new(stream.expect("the stream is piped"));
    kedge_base::spawn_named("lines", move || {
        for line in stream.split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    })
    .expect("a test can start a thread");
    receive
}

/// Checks images and reports each on one line of standard output.
fn child(range: &str) {
    let (from, end) = range.split_once(' ').expect("two numbers");
    let (from, end): (u64, u64) = (from.parse().expect("a number"), end.parse().expect("a number"));
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::Data, limit).expect("a limit may be lowered");
    let tell = |line: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{line}").and_then(|()| out.flush()).expect("the parent listens");
    };
    let clock = SystemClock::default();
    for seed in from..end {
        tell(format!("begin {seed}"));
        let (panics, started) = (PANICS.load(Ordering::SeqCst), clock.monotonic());
        let hostile = image(seed);
        let judged = catch_unwind(AssertUnwindSafe(|| judge(&hostile.medium)));
        let panicked = PANICS.load(Ordering::SeqCst) != panics;
        let failed = |why: String| {
            let why = format!("{why}\n{:?}", hostile.lies).replace('\n', "\u{1}");
            tell(format!("failed {seed} {why}"));
        };
        match judged {
            Err(panic) => failed(format!("panic: {}", panic_text(&*panic))),
            Ok(_) if panicked => failed("a thread of the engine panicked".into()),
            Ok(Err(why)) => failed(why),
            Ok(Ok(verdict)) => {
                let bit = |b: bool| if b { '1' } else { '0' };
                let bits: String = [verdict.opens, verdict.clean, verdict.preened, verdict.repaired]
                    .map(bit)
                    .iter()
                    .collect();
                let took = clock.since(started).as_millis();
                tell(format!("done {seed} {bits} {took} ms"));
            }
        }
    }
    tell("end".into());
}

/// Twenty-five bytes of the log named 2^54 bytes that are to be zeroed. Mount and fsck listed all
/// their blocks and exhausted the memory, which killed all mounts of the process.
#[test]
fn few_bytes_of_log_do_not_name_many_blocks() {
    for len in [4097u64, 1 << 30, 1 << 54, u64::MAX >> 1] {
        // First a patch gives the file its maximum size.
        let mut edits = vec![1];
        edits.extend_from_slice(&3u64.to_le_bytes());
        edits.extend_from_slice(&(1u32 << 5).to_le_bytes());
        edits.extend_from_slice(&FILE_SIZE_MAX.to_le_bytes());
        edits.push(7);
        for n in [3, 0, len] {
            edits.extend_from_slice(&u64::to_le_bytes(n));
        }
        let medium = with_edits(2, &edits);
        let e = open(medium.fork()).err().expect("such an edit is refused").to_string();
        assert!(e.contains("malformed record"), "{len} bytes: {e}");
        let verdict = judge(&medium).expect("fsck and mount agree");
        assert!(!verdict.clean && verdict.repaired, "{verdict:?}");
    }
}

/// `fsck -y` kept inodes with the largest numbers, which have no successor, and wrote a superblock
/// that could not be read.
#[test]
fn a_repaired_image_has_a_next_inode_number() {
    for ino in [INO_MAX + 1, COUNTER_MAX - 1, COUNTER_MAX, 1 << 63, u64::MAX - 1, u64::MAX] {
        // A file without a name: as an item, and as a patch in the log.
        let mut put = vec![2];
        put.extend_from_slice(&Key { ino, kind: 1, offset: 0 }.encode());
        put.extend_from_slice(&(InodeCore::SIZE as u16).to_le_bytes());
        put.extend_from_slice(&InodeCore { mode: 0o100_644, ..InodeCore::default() }.encode());
        let mut patch = vec![1];
        patch.extend_from_slice(&ino.to_le_bytes());
        patch.extend_from_slice(&(1u32 << 31 | 1).to_le_bytes());
        patch.extend_from_slice(&0o100_644u32.to_le_bytes());
        for edit in [put, patch] {
            let verdict = judge(&with_edits(1, &edit)).unwrap_or_else(|e| panic!("inode {ino}: {e}"));
            assert!(!verdict.clean && verdict.repaired, "inode {ino}: {verdict:?}");
        }
    }
}

/// A counter near its maximum was accepted. Then the mount wrote a superblock that no mount
/// accepts.
#[test]
fn counters_near_their_end_are_used_up_for_fsck_and_mount_alike() {
    type Counter = fn(&mut Superblock, u64);
    let counters: [(bool, Counter); 4] = [
        (false, |sb, n| sb.checkpoint.generation.0 = n),
        (true, |sb, n| sb.checkpoint.next_ino = Ino(n)),
        (false, |sb, n| sb.checkpoint.epoch.0 = n),
        (true, |sb, n| {
            sb.checkpoint.tail_lsn.0 = n / 4096 * 4096;
            sb.checkpoint.checkpoint_lsn = sb.checkpoint.tail_lsn;
            sb.checkpoint.clean = true;
        }),
    ];
    for (repairable, set) in counters {
        for n in [OPEN_MAX + 4096, COUNTER_MAX - 4096, COUNTER_MAX, COUNTER_MAX + 4096, u64::MAX] {
            let medium = with_slot(|sb| set(sb, n));
            let verdict = judge(&medium).unwrap_or_else(|e| panic!("{n}: {e}"));
            // Above the maximum the slot is not valid, and the other slot's checkpoint is older.
            if n <= COUNTER_MAX {
                assert!(!verdict.opens && !verdict.clean, "{n}: {verdict:?}");
                assert_eq!(verdict.repaired, repairable, "{n}: {verdict:?}");
            }
        }
    }
}

/// A directory has a size that implies 2^63 - 3 entries: the next power of two overflows.
#[test]
fn an_absurd_directory_size_does_not_stop_a_create() {
    let mut edit = vec![1];
    edit.extend_from_slice(&Ino::ROOT.0.to_le_bytes());
    edit.extend_from_slice(&(1u32 << 5).to_le_bytes());
    edit.extend_from_slice(&(i64::MAX as u64 - 2).to_le_bytes());
    let fs = open(with_edits(1, &edit)).expect("a size is no reason to refuse");
    fs.create(Ino::ROOT, b"one more", 0o644, OWNER).expect("there is room");
}

/// Proves that the child's limit works. Otherwise no test would detect an absurd allocation.
#[test]
fn the_limit_of_memory_is_one() {
    if std::env::var(CHILD).is_ok() {
        let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
        setrlimit(Resource::Data, limit).expect("a limit may be lowered");
        let mut bytes: Vec<u8> = Vec::new();
        let refused = bytes.try_reserve_exact(MEMORY as usize + BLOCK_SIZE).is_err();
        assert!(refused, "an allocation above the limit succeeded");
        println!("refused");
        return;
    }
    let output = Command::new(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", "the_limit_of_memory_is_one", "--nocapture"])
        .env(CHILD, "")
        .output()
        .expect("a child runs");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("refused"));
}
