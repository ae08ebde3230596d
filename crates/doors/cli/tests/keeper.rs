//! `mount -o keeper`: the serving process is killed again and again, and no program notices.
//!
//! Programs of this process write, create with O_EXCL, rename, link, remove, truncate, set times,
//! fsync, and read files whose name is gone, and compare each result with what they know.
//! `KEDGE_KEEPER_DEATHS=10000` kills that many servers; `KEDGE_SEED` repeats the programs' choices.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, needs_fuse, until};
use kedge_base::{HANG, spawn_named};
use kedge_sim::rig::{seed_from_env, within};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const DEATHS: u64 = 100;
const PROGRAMS: u64 = 3;

fn deaths_wanted() -> u64 {
    std::env::var("KEDGE_KEEPER_DEATHS").map_or(DEATHS, |n| n.parse().expect("a number of deaths"))
}

/// A program in a directory of its own, and what it knows of it.
struct Program {
    dir: PathBuf,
    files: BTreeMap<String, Vec<u8>>,
    /// Open files without a name.
    nameless: Vec<(File, Vec<u8>)>,
    rng: SmallRng,
    made: u64,
}

impl Program {
    fn new(dir: PathBuf, seed: u64) -> Program {
        fs::create_dir(&dir).unwrap();
        let (files, nameless) = (BTreeMap::new(), Vec::new());
        Program { dir, files, nameless, rng: SmallRng::seed_from_u64(seed), made: 0 }
    }

    fn any(&mut self) -> Option<String> {
        let count = self.files.len();
        (count > 0).then(|| self.files.keys().nth(self.rng.random_range(0..count)).unwrap().clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// One operation. Every error and every difference is a failure.
    fn step(&mut self) -> io::Result<()> {
        let bytes = vec![self.rng.random::<u8>(); self.rng.random_range(1..20_000)];
        let at = self.rng.random_range(0..30_000u64);
        let name = match self.any() {
            Some(name) if self.files.len() > 30 || self.rng.random_bool(0.8) => name,
            _ => {
                self.made += 1;
                let name = format!("f{}", self.made);
                let file = OpenOptions::new().write(true).create_new(true).open(self.path(&name))?;
                file.write_all_at(&bytes, 0)?;
                self.files.insert(name, bytes);
                return Ok(());
            }
        };
        let path = self.path(&name);
        match self.rng.random_range(0..12) {
            0..=3 => {
                OpenOptions::new().write(true).open(&path)?.write_all_at(&bytes, at)?;
                put(self.files.get_mut(&name).unwrap(), at as usize, &bytes);
            }
            4 => {
                let file = OpenOptions::new().write(true).open(&path)?;
                file.set_len(at)?;
                self.files.get_mut(&name).unwrap().resize(at as usize, 0);
                file.sync_data()?;
            }
            5 => {
                self.made += 1;
                let new = format!("r{}", self.made);
                fs::rename(&path, self.path(&new))?;
                let bytes = self.files.remove(&name).unwrap();
                self.files.insert(new, bytes);
            }
            6 => {
                let over = self.any().unwrap();
                fs::rename(&path, self.path(&over))?;
                let bytes = self.files.remove(&name).unwrap();
                self.files.insert(over, bytes);
            }
            7 => {
                let file = OpenOptions::new().read(true).write(true).open(&path)?;
                fs::remove_file(&path)?;
                let known = self.files.remove(&name).unwrap();
                self.nameless.push((file, known));
                if self.nameless.len() > 4 {
                    self.nameless.remove(0);
                }
            }
            8 => {
                fs::remove_file(&path)?;
                self.files.remove(&name);
                assert_eq!(fs::metadata(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
            }
            9 => File::open(&path)?.sync_all()?,
            10 => {
                let dir = self.path("d");
                fs::create_dir(&dir)?;
                fs::hard_link(&path, dir.join("link"))?;
                assert_eq!(fs::metadata(&path)?.nlink(), 2, "{name}");
                fs::remove_file(dir.join("link"))?;
                fs::remove_dir(&dir)?;
            }
            _ => {
                if let Some((file, known)) = self.nameless.last_mut() {
                    file.write_all_at(&bytes, at)?;
                    put(known, at as usize, &bytes);
                }
            }
        }
        self.compare_one()
    }

    fn compare_one(&mut self) -> io::Result<()> {
        if let Some(name) = self.any() {
            let found = fs::read(self.path(&name))?;
            assert!(found == self.files[&name], "{name}: {}", difference(&found, &self.files[&name]));
        }
        for (file, known) in &self.nameless {
            let mut found = vec![0; known.len() + 1];
            let len = file.read_at(&mut found, 0)?;
            found.truncate(len);
            assert!(found == *known, "a file without a name: {}", difference(&found, known));
        }
        Ok(())
    }

    fn compare_all(&self) -> io::Result<()> {
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.push(entry?.file_name().into_string().unwrap());
        }
        names.sort();
        assert_eq!(names, self.files.keys().cloned().collect::<Vec<_>>());
        for (name, known) in &self.files {
            let found = fs::read(self.path(name))?;
            assert!(found == *known, "{name}: {}", difference(&found, known));
        }
        Ok(())
    }
}

fn put(known: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if known.len() < end {
        known.resize(end, 0);
    }
    known[at..end].copy_from_slice(bytes);
}

fn difference(found: &[u8], known: &[u8]) -> String {
    let at = found.iter().zip(known).position(|(a, b)| a != b);
    format!("{} and {} bytes, first difference at {at:?}", found.len(), known.len())
}

fn keeper(place: &Place) -> serde_json::Value {
    place.info("mnt")["mount"]["keeper"].clone()
}

/// The process that serves. The answer waits for one.
fn server(place: &Place) -> Pid {
    let mut text = [0; 16];
    let len = rustix::fs::getxattr(place.path("mnt"), "system.kedgefs.pid", &mut text).unwrap();
    Pid::from_raw(std::str::from_utf8(&text[..len]).unwrap().parse().unwrap()).unwrap()
}

/// Kills the server, and waits until another one serves.
fn kill_server(place: &Place, signal: Signal) {
    let pid = server(place);
    kill_process(pid, signal).unwrap();
    // The last request may be served by a thread that has not seen the signal.
    until("another server serves", || server(place) != pid);
}

fn kill_again_and_again(place: &Place, seed: u64) {
    let (ended, operations) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let programs: Vec<_> = (0..PROGRAMS)
        .map(|n| {
            let mut program = Program::new(place.path(&format!("mnt/p{n}")), seed + n);
            let (ended, operations) = (ended.clone(), operations.clone());
            let run = move || {
                while !ended.load(SeqCst) {
                    program.step().unwrap();
                    operations.fetch_add(1, SeqCst);
                }
                program
            };
            spawn_named("program", run).unwrap()
        })
        .collect();
    let mut rng = SmallRng::seed_from_u64(seed);
    let wanted = deaths_wanted();
    for death in 1..=wanted {
        std::thread::sleep(Duration::from_micros(rng.random_range(0..60_000)));
        assert!(programs.iter().all(|p| !p.is_finished()), "a program has noticed death {death}");
        kill_server(place, if death % 10 == 0 { Signal::ABORT } else { Signal::KILL });
    }
    ended.store(true, SeqCst);
    let programs: Vec<Program> = programs.into_iter().map(|p| p.join().expect("no error")).collect();
    for program in &programs {
        program.compare_all().unwrap();
    }
    assert_eq!(keeper(place)["deaths"].as_u64(), Some(wanted));
    println!("{} operations, keeper: {}", operations.load(SeqCst), keeper(place));
    assert!(keeper(place)["redone"].as_u64().unwrap() > wanted, "changes were made again");
    let dirs: Vec<_> = programs.iter().map(|p| p.dir.clone()).collect();
    let known: Vec<_> = programs.into_iter().map(|p| p.files).collect();
    place.unmount_and_check("disk.kedge");
    place.run("mount disk.kedge mnt").ok();
    for (dir, files) in dirs.iter().zip(known) {
        for (name, known) in files {
            let found = fs::read(dir.join(&name)).unwrap();
            assert!(found == known, "{name} after an unmount: {}", difference(&found, &known));
        }
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn programs_do_not_notice_deaths_of_the_server() {
    needs_fuse!();
    let seed = seed_from_env().unwrap_or(1);
    println!("KEDGE_SEED={seed}");
    let place = Place::after("mount --create 512M -o keeper disk.kedge mnt");
    within(HANG, "deaths of the server", move || kill_again_and_again(&place, seed));
}

#[test]
fn a_plain_mount_has_a_keeper_too() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o keeper,fuse disk.kedge mnt");
    fs::write(place.path("mnt/a"), "told").unwrap();
    kill_server(&place, Signal::KILL);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    assert_eq!(keeper(&place)["deaths"], 1);
    place.unmount_and_check("disk.kedge");
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        kedge_base::skip::note(&format!("{program} is not installed"));
    }
    found
}

/// Runs a script on the mount while servers are killed.
fn script_beside_deaths(place: &Place, script: &str) -> String {
    let ended = Arc::new(AtomicBool::new(false));
    let mut command = place.command("sh");
    command.args(["-ec", script]);
    let running = {
        let ended = ended.clone();
        let run = move || {
            let output = common::output_of(command).unwrap();
            ended.store(true, SeqCst);
            output
        };
        spawn_named("script", run).unwrap()
    };
    while !ended.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(300));
        kill_server(place, Signal::KILL);
    }
    let output = running.join().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {err}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn git_and_tar_do_not_notice() {
    needs_fuse!();
    if !has("git") || !has("tar") {
        return;
    }
    let place = Place::after("mount --create 512M -o keeper disk.kedge mnt");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let script = format!(
        "tar -C {0} -cf mnt/src.tar .; mkdir mnt/repo; tar -C mnt/repo -xf mnt/src.tar; diff -r {0} mnt/repo
         cd mnt/repo; git init -q .; git add .; git -c user.name=n -c user.email=e commit -qm one
         rm -rf manual; git checkout -q -- .; git fsck --strict; git status --porcelain; cd ..; diff -r -x .git {0} repo",
        source.display()
    );
    let said = script_beside_deaths(&place, &script);
    println!("{said}keeper: {}", keeper(&place));
    place.unmount_and_check("disk.kedge");
}

#[test]
fn sqlite_does_not_notice() {
    needs_fuse!();
    if !has("sqlite3") {
        return;
    }
    let place = Place::after("mount --create 256M -o keeper disk.kedge mnt");
    let script = "sqlite3 mnt/db 'PRAGMA journal_mode=WAL; CREATE TABLE t(n);' >/dev/null
         for n in $(seq 1 60); do sqlite3 mnt/db \"INSERT INTO t VALUES($n)\"; done
         sqlite3 mnt/db 'SELECT count(*), sum(n) FROM t; PRAGMA integrity_check'";
    assert_eq!(script_beside_deaths(&place, script), "60|1830\nok\n");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_dead_keeper_ends_the_mount() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "kept").unwrap();
    File::open(place.path("mnt/a")).unwrap().sync_all().unwrap();
    let server = place.info("mnt")["mount"]["pid"].as_i64().unwrap();
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim();
    kill_process(Pid::from_raw(parent.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    common::until_dead(&place, "mnt");
    until("the image is free", || place.run("mount -o nokeeper disk.kedge mnt").code == 0);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"kept");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn what_cannot_have_a_keeper_is_refused() {
    needs_fuse!();
    let place = Place::after("mkfs --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount -o keeper,ro disk.kedge mnt").refused(2, &["keeper", "ro"]);
    place.run("mount -o keeper,volatile disk.kedge mnt").refused(2, &["keeper", "volatile"]);
    place.run("mount -o keeper,writeback_cache disk.kedge mnt").refused(2, &["writeback_cache"]);
    place.run("mount -o keeper --daemon x disk.kedge mnt").refused(2, &["--daemon"]);
    place.run("mount --foreground --kept=1,x disk.kedge mnt").refused(2, &["descriptors"]);
    place.run("mount --foreground --kept=900,901 disk.kedge mnt").refused(1, &["connection"]);
    place.run("mount -o keeper disk.kedge mnt").ok();
    // A freeze would end with its server, and options too.
    place.run("freeze mnt").refused(1, &["not supported"]);
    place.unmount_and_check("disk.kedge");
}
