//! The file system on a device of another process, through NBD.
//!
//! 1. The crash oracle across the protocol: random operations, and the server's power fails.
//! 2. nbdkit with its filters: a server that delays, fails, or is killed. Everything acknowledged
//!    survives.
//! 3. Servers that falsely acknowledge flushes and FUA: the same checks must detect them.

use crate::common::seeds;
use kedge_base::{Clock, HANG, Ino, ManualClock};
use kedge_device::sim::{Choice, Manners, NbdServer, SimDevice};
use kedge_device::{Device, FileDevice, Location, MemDevice, OpenOptions};
use kedge_sim::backend::{Backend, InProcess};
use kedge_sim::crash::{History, check_state};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::Model;
use kedge_sim::ops::Executor;
use kedge_sim::rig::{self, Setup, within};
use kedge_sim::writers::{Writers, verify_after};
use kedgefs::{FileSystem, FormatOptions, MountOptions, Owner};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

fn connect(uri: &str) -> Result<Arc<dyn Device>, String> {
    let location = Location::parse(Path::new(uri)).map_err(|e| e.to_string())?;
    kedge_device::open(&location, OpenOptions::default()).map_err(|e| e.to_string())
}

/// Runs random operations through a server. Returns the server's device and the history for the
/// oracle.
fn record(setup: &Setup, seed: u64, manners: Manners) -> Result<(Arc<SimDevice>, History), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let medium = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let server =
        NbdServer::serve(&dir.path().join("s"), medium.clone(), manners).map_err(|e| e.to_string())?;
    let clock = Arc::new(ManualClock::default());
    let fs = FileSystem::open(connect(&server.uri())?, clock.clone(), setup.mount.clone());
    let mut exec = Executor::new(fs.map_err(|e| e.to_string())?);
    let profile = Profile { remounts: 0, offset_max: 64 << 10, write_max: 20 << 10, ..Profile::default() };
    let mut generator = Generator::new(seed, profile);
    let mut model = Model::new();
    let mut history = History::new(model.clone(), setup.promise);
    while history.len() < 40 {
        let op = generator.next(&model);
        let Some(expected) = model.apply(&op) else { continue };
        let outcome = exec.apply(&op);
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
        }
        rig::learn_times(&mut model, &exec.fs, clock.now()).map_err(|e| format!("{op:?}: {e}"))?;
        history.push(op, outcome, expected.effect, model.clone());
        medium.mark(history.len() as u64);
    }
    let _ = exec.fs.shutdown(false);
    assert!(server.requests() > 0, "all went through the protocol");
    Ok((medium, history))
}

/// Lets the server's power fail at random events.
fn crash(setup: &Setup, seed: u64, manners: Manners) -> Result<(), String> {
    let (medium, history) = record(setup, seed, manners)?;
    let recording = medium.recording();
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x9b0d);
    for _ in 0..4 {
        let at = rng.random_range(0..=recording.events.len());
        let choice = if rng.random() { Choice::None } else { Choice::Torn(rng.random()) };
        let done = recording.events[..at].iter().rev().find_map(|event| match event {
            kedge_device::sim::Event::Mark(n) => Some(*n as usize),
            _ => None,
        });
        let done = done.unwrap_or(0);
        let said = |e: String| format!("power fails at event {at}, {choice:?}: {e}");
        let state = recording.state(at, choice);
        rig::fsck(state.fork()).map_err(said)?;
        let device = Arc::new(SimDevice::new(state));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), setup).map_err(said)?;
        check_state(&fs, &history, done, &history.persists_before(done)).map_err(|v| said(v.to_string()))?;
        let _ = fs.shutdown(false);
    }
    Ok(())
}

fn small() -> Setup {
    Setup { image: 64 << 20, log: 8 << 20, ..Setup::default() }
}

#[test]
fn what_is_promised_holds_through_the_protocol() {
    let honest = Manners::default();
    // Flags 5: the server supports flush, but neither FUA nor several connections.
    for seed in seeds(6) {
        let manners = match seed % 3 {
            0 => honest,
            1 => Manners { flags: 5, payload_max: 8192, ..honest },
            _ => Manners { structured: false, ..honest },
        };
        let run = move || crash(&small().switched(seed), seed, manners);
        if let Err(e) = within(HANG, &format!("operations KEDGE_SEED={seed}"), run) {
            panic!("KEDGE_SEED={seed}: {e}");
        }
    }
}

/// The oracle would prove nothing if it missed a server with false acknowledgements.
#[test]
fn the_oracle_catches_servers_that_lie() {
    let honest = Manners::default();
    for manners in [
        Manners { ignores_flush: true, ..honest },
        Manners { ignores_fua: true, ..honest },
        Manners { ignores_fua: true, ignores_flush: true, ..honest },
    ] {
        let caught = (0..40u64)
            .find_map(|seed| within(HANG, "a lying server", move || crash(&small(), seed, manners)).err());
        let caught = caught.unwrap_or_else(|| panic!("{manners:?} was not noticed"));
        // The crash must reveal it, not an earlier error.
        assert!(caught.starts_with("power fails"), "{caught}");
        println!("{manners:?}: {}", caught.lines().next().unwrap_or_default());
    }
}

/// Runs writers until the server closes the connection; they end with EIO. Then the server's power
/// fails, and everything that it acknowledged survives.
fn given_up(seed: u64, manners: Manners) -> Result<(), String> {
    let setup = small();
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let medium = Arc::new(SimDevice::new(rig::format(setup.image, setup.log)?));
    let server =
        NbdServer::serve(&dir.path().join("s"), medium.clone(), manners).map_err(|e| e.to_string())?;
    let device = connect(&format!("{}&timeout=1", server.uri()))?;
    let fs = FileSystem::open(device, Arc::new(ManualClock::default()), setup.mount.clone());
    let backend: Arc<dyn Backend> = Arc::new(InProcess(fs.map_err(|e| format!("open: {e}"))?));
    let writers = Writers::start(&backend, 3, "writer", seed).map_err(|e| format!("start: {e}"))?;
    while !writers.ended() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = writers.stop();
    let errors = ended.errors();
    if errors.len() != 3 || !errors.iter().all(|e| e.contains("os error 5")) {
        return Err(format!("the writers end with {errors:?}"));
    }
    drop(backend);
    drop(server);
    if ended.fsyncs() == 0 {
        return Err("nothing was acknowledged".into());
    }
    let recording = medium.recording();
    for choice in [Choice::None, Choice::Torn(seed)] {
        let state = recording.state(recording.events.len(), choice);
        rig::fsck(state.fork()).map_err(|e| format!("{choice:?}: {e}"))?;
        let device = Arc::new(SimDevice::new(state));
        let fs = rig::open(&device, &Arc::new(ManualClock::default()), &setup)?;
        verify_after(&InProcess(fs), &ended, &ended).map_err(|e| format!("{choice:?}: {e}"))?;
    }
    Ok(())
}

/// The server does so at any point, with many requests in flight.
#[test]
fn a_server_that_breaks_off_or_falls_silent_loses_nothing() {
    for seed in seeds(6) {
        let last = 300 + seed * 137;
        let manners = match seed % 3 {
            0 => Manners { mute_after: last, ..Manners::default() },
            1 => Manners { cut_after: last, ..Manners::default() },
            _ => Manners { forgets: last, ..Manners::default() },
        };
        let run = move || given_up(seed, manners);
        if let Err(e) = within(HANG, &format!("writers KEDGE_SEED={seed}"), run) {
            panic!("KEDGE_SEED={seed} {manners:?}: {e}");
        }
    }
    // The same check detects a server that also acknowledges falsely.
    let lies = Manners { ignores_flush: true, ignores_fua: true, cut_after: 900, ..Manners::default() };
    let caught =
        within(HANG, "a lying server", move || given_up(1, lies)).expect_err("the lies were not noticed");
    assert!(caught.starts_with("None") || caught.starts_with("Torn"), "{caught}");
}

/// An nbdkit process, which is killed on drop.
struct Nbdkit {
    child: Child,
    dir: PathBuf,
}

impl Nbdkit {
    fn start(dir: &Path, words: &str) -> Nbdkit {
        let (image, socket) = (dir.join("image"), dir.join("socket"));
        let _ = std::fs::remove_file(&socket);
        let words = words.replace("IMAGE", image.to_str().unwrap()).replace("DIR", dir.to_str().unwrap());
        let child = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .args(words.split_whitespace())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let server = Nbdkit { child, dir: dir.to_owned() };
        let there = (0..HANG.as_millis() / 10).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            UnixStream::connect(&socket).is_ok()
        });
        assert!(there, "nbdkit {words} listens");
        server
    }

    fn open(&self) -> FileSystem {
        let device = connect(&format!("nbd+unix:///?socket={}", self.dir.join("socket").display())).unwrap();
        FileSystem::open(device, Arc::new(ManualClock::default()), quiet()).unwrap()
    }

    /// Kills the server. Its cache is lost.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        // The process may already have been killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Options with which only fsync makes anything durable.
fn quiet() -> MountOptions {
    MountOptions { commit: Duration::from_secs(3600), cache_size: 16 << 20, ..MountOptions::default() }
}

fn no_nbdkit() -> bool {
    let missing = Command::new("nbdkit").arg("--version").stdout(Stdio::null()).status().is_err();
    if missing {
        kedge_base::skip::note("nbdkit is not installed (apt-get install nbdkit)");
    }
    missing
}

fn make_image(dir: &Path) {
    let options = FormatOptions { log_size: Some(4 << 20), ..FormatOptions::default() };
    let device = FileDevice::create(dir.join("image"), 48 << 20, OpenOptions::default()).unwrap();
    FileSystem::format(device, Arc::new(ManualClock::default()), &options).unwrap();
}

fn bytes(n: u32) -> Vec<u8> {
    (0..5000 + n * 700).flat_map(|i| (i ^ n << 20).to_le_bytes()).collect()
}

/// Creates a file and fsyncs it. Every second file is also overwritten in place.
fn put(fs: &FileSystem, n: u32) -> Result<(), kedgefs::Error> {
    let name = format!("file-{n}");
    let ino = fs.create(Ino::ROOT, name.as_bytes(), 0o644, Owner::default())?.ino;
    let content = bytes(n);
    if n.is_multiple_of(2) {
        fs.write(ino, 0, &vec![0xaa; content.len()])?;
        fs.fsync(ino, false)?;
    }
    let mut done = 0;
    while done < content.len() {
        done += fs.write(ino, done as u64, &content[done..])?;
    }
    fs.fsync(ino, false)
}

/// Checks that the image is clean, and that each acknowledged file is complete.
fn judge(dir: &Path, acknowledged: &[u32]) -> Result<(), String> {
    let bytes_of_image = std::fs::read(dir.join("image")).map_err(|e| e.to_string())?;
    let medium = MemDevice::new(bytes_of_image.len() as u64);
    for (i, block) in
        bytes_of_image.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|b| *b != 0))
    {
        let buf = kedge_base::IoBuf::from_bytes(block);
        medium.write(i as u64 * 4096, &buf, false).map_err(|e| e.to_string())?;
    }
    rig::fsck(medium.fork())?;
    let fs = FileSystem::open(Arc::new(medium), Arc::new(ManualClock::default()), quiet());
    let fs = fs.map_err(|e| format!("open: {e}"))?;
    for &n in acknowledged {
        let said = |e: kedgefs::Error| format!("file-{n}: {e}");
        let found = fs.lookup(Ino::ROOT, format!("file-{n}").as_bytes()).map_err(said)?;
        let want = bytes(n);
        let mut got = vec![0; want.len() + 1];
        let len = fs.read(found.ino, 0, &mut got).map_err(said)?;
        if got[..len] != want {
            return Err(format!("file-{n} has other bytes than were acknowledged"));
        }
    }
    let _ = fs.shutdown(false);
    Ok(())
}

/// Kills the server after 20 files. Everything acknowledged survives.
fn killed(words: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    make_image(dir.path());
    let mut server = Nbdkit::start(dir.path(), words);
    let fs = server.open();
    let acknowledged: Vec<u32> = (0..20).collect();
    acknowledged.iter().for_each(|&n| put(&fs, n).unwrap());
    server.kill();
    // The connection is lost: nothing is acknowledged any more, and no caller waits forever.
    let error = put(&fs, 99).unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
    let _ = fs.shutdown(false);
    drop(fs);
    judge(dir.path(), &acknowledged)
}

#[test]
fn a_killed_server_loses_nothing_that_was_acknowledged() {
    if no_nbdkit() {
        return;
    }
    let slow = "--filter=delay --filter=cache file IMAGE delay-write=2ms delay-read=1ms";
    for words in ["--filter=cache file IMAGE", "--filter=fua --filter=cache file IMAGE", slow, "file IMAGE"] {
        killed(words).unwrap_or_else(|e| panic!("nbdkit {words}: {e}"));
    }
}

/// The check must fail with servers that acknowledge a flush and keep everything in memory.
#[test]
fn a_killed_server_that_lied_is_caught() {
    if no_nbdkit() {
        return;
    }
    for words in
        ["--filter=cache file IMAGE cache=unsafe", "--filter=fua --filter=cache file IMAGE fuamode=discard"]
    {
        let caught = killed(words).expect_err(words);
        println!("nbdkit {words}: {caught}");
    }
}

/// The server begins to fail requests. fsync reports that, and everything acknowledged before
/// survives.
#[test]
fn a_server_that_fails_is_no_lie() {
    if no_nbdkit() {
        return;
    }
    for errno in ["EIO", "ENOSPC", "ESHUTDOWN"] {
        let dir = tempfile::tempdir().unwrap();
        make_image(dir.path());
        let words = format!(
            "--filter=error file IMAGE error-pwrite={errno} error-pwrite-rate=100% \
             error-pwrite-file=DIR/trigger"
        );
        let mut server = Nbdkit::start(dir.path(), &words);
        let fs = server.open();
        let acknowledged: Vec<u32> = (0..6).collect();
        acknowledged.iter().for_each(|&n| put(&fs, n).unwrap());
        std::fs::write(dir.path().join("trigger"), b"").unwrap();
        let error = put(&fs, 7).unwrap_err();
        assert!(matches!(error.errno(), 5 | 28), "{errno}: {error}");
        let _ = fs.shutdown(false);
        drop(fs);
        server.kill();
        judge(dir.path(), &acknowledged).unwrap_or_else(|e| panic!("{errno}: {e}"));
    }
}

/// A failed read is an error for its reader, and for no later call.
#[test]
fn a_server_that_cannot_read_for_a_while_is_told_of() {
    if no_nbdkit() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make_image(dir.path());
    let server = Nbdkit::start(
        dir.path(),
        "--filter=error --filter=delay file IMAGE rdelay=1ms error-pread=EIO error-pread-rate=100% \
         error-pread-file=DIR/trigger",
    );
    let fs = server.open();
    put(&fs, 3).unwrap();
    // After the close nothing is left in memory or in the log.
    fs.close().unwrap();
    drop(fs);
    let fs = server.open();
    let ino = fs.lookup(Ino::ROOT, b"file-3").unwrap().ino;
    let mut got = vec![0; bytes(3).len()];
    std::fs::write(dir.path().join("trigger"), b"").unwrap();
    let error = fs.read(ino, 0, &mut got).unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
    std::fs::remove_file(dir.path().join("trigger")).unwrap();
    assert_eq!(fs.read(ino, 0, &mut got).unwrap(), got.len());
    assert!(got == bytes(3));
    put(&fs, 4).unwrap();
    fs.close().unwrap();
    drop(fs);
    drop(server);
    judge(dir.path(), &[3, 4]).unwrap();
}
