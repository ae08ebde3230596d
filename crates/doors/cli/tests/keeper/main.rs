//! `mount -o keeper`: the serving process is killed again and again, and no program notices.
//!
//! Programs of this process write, create with O_EXCL, rename, link, remove, truncate, set times,
//! fsync, and read files whose names were removed. They compare each result with the expected one.
//! `KEDGE_KEEPER_DEATHS=10000` kills that many servers; `KEDGE_SEED` repeats the programs' choices.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod loads;
mod memory;
mod postgres;
mod program;
mod state;
mod trouble;
mod upgrade;
mod whole;

use common::keeper::{Killer, keeper, kill_server, mount_dying, server};
use common::seeks::{Seeks, is_gone, stop_in_a_seek};
use common::{Place, needs_fuse, until};
use kedge_base::{Clock, HANG, SystemClock, spawn_named};
use kedge_fuse::keep::INJECTS;
use kedge_sim::rig::{seed_from_env, within};
use program::{Program, difference};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const DEATHS: u64 = 85;
const PROGRAMS: u64 = 3;

/// The number of deaths in `KEDGE_KEEPER_DEATHS`, if it is set.
fn deaths_of() -> Option<u64> {
    std::env::var("KEDGE_KEEPER_DEATHS").ok().map(|n| n.parse().expect("a number of deaths"))
}

fn deaths_wanted() -> u64 {
    deaths_of().unwrap_or(DEATHS)
}

/// Runs programs on the mount while `event` is called `events` times, each time after a pause of up
/// to `pause_max`. Then unmounts and checks everything.
fn beside_programs(place: &Place, seed: u64, events: u64, pause_max: Duration, mut event: impl FnMut(u64)) {
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
    let pause_max = pause_max.as_micros() as u64;
    for n in 1..=events {
        std::thread::sleep(Duration::from_micros(rng.random_range(0..pause_max)));
        assert!(programs.iter().all(|p| !p.is_finished()), "a program has noticed event {n}");
        event(n);
    }
    ended.store(true, SeqCst);
    let programs: Vec<Program> = programs.into_iter().map(|p| p.join().expect("no error")).collect();
    for program in &programs {
        program.compare_all().unwrap();
    }
    println!("{} operations, keeper: {}", operations.load(SeqCst), keeper(place));
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

fn kill_again_and_again(place: &Place, noted: &Path, seed: u64) {
    let wanted = deaths_wanted();
    beside_programs(place, seed, wanted, Duration::from_millis(60), |death| {
        kill_server(place, Signal::KILL);
        if death == wanted {
            let inside = fs::read_to_string(noted).unwrap().lines().count() as u64;
            println!("{inside} servers died inside of requests");
            assert!(inside > 0 || !INJECTS, "servers die inside of requests, too");
            let deaths = keeper(place)["deaths"].as_u64().unwrap();
            assert!((wanted..=wanted + inside).contains(&deaths), "{deaths} deaths");
            assert!(keeper(place)["redone"].as_u64().unwrap() > wanted, "changes were made again");
        }
    });
}

#[test]
fn programs_do_not_notice_deaths_of_the_server() {
    needs_fuse!();
    let seed = seed_from_env().unwrap_or(1);
    println!("KEDGE_SEED={seed}");
    let place = Place::new();
    let noted = mount_dying(&place, &["--create", "512M"], &seed.to_string());
    within(HANG * (1 + deaths_wanted() as u32 / 2000), "deaths of the server", move || {
        kill_again_and_again(&place, &noted, seed);
    });
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

/// While the stack of a panicking request unwinds, neither its worker nor a thread that replies for
/// it sends a reply.
#[test]
fn a_panic_in_a_request_is_a_death_that_no_program_notices() {
    needs_fuse!();
    if !INJECTS {
        return kedge_base::skip::note("servers of this build die inside of no request by themselves");
    }
    for which in ["READ/Received", "FSYNC/Received", "MKNOD/Made"] {
        let place = Place::new();
        let noted = mount_dying(&place, &["--create", "64M"], which);
        fs::write(place.path("mnt/a"), "told").unwrap();
        let file = File::open(place.path("mnt/a")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.sync_all().unwrap();
        drop(file);
        assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told", "{which}");
        assert_eq!(keeper(&place)["deaths"], 1, "{which}");
        assert_eq!(keeper(&place)["last_signal"], 6, "{which}");
        assert_eq!(fs::read_to_string(noted).unwrap().lines().count(), 1, "{which}");
        place.unmount_and_check("disk.kedge");
    }
}

/// A change whose record kills its server, in each attempt: the next servers die while they make it
/// again, before they serve.
#[test]
fn a_change_that_kills_each_server_ends_the_mount() {
    needs_fuse!();
    if !INJECTS {
        return kedge_base::skip::note("servers of this build die inside of no request by themselves");
    }
    const LIMIT: Duration = Duration::from_secs(30);
    let place = Place::new();
    let noted = mount_dying(&place, &["--create", "64M"], "MKDIR/Marked*");
    fs::write(place.path("mnt/a"), "kept").unwrap();
    File::open(place.path("mnt/a")).unwrap().sync_all().unwrap();
    let keeper = parent_of(server(&place));
    let (dir, (done, made)) = (place.path("mnt/dir"), std::sync::mpsc::channel());
    let caller = spawn_named("caller", move || done.send(fs::create_dir(dir)).unwrap()).unwrap();
    let made = made.recv_timeout(LIMIT);
    if made.is_err() {
        // The mkdir would wait forever, and with it the end of this process.
        kill_process(keeper, Signal::KILL).unwrap();
    }
    caller.join().unwrap();
    made.expect("mkdir returns").expect_err("the directory is never made");
    until("the mount has ended", || kedge_fuse::mount_at(&place.path("mnt")).is_none());
    // The server that served, and five that died before they served.
    assert_eq!(fs::read_to_string(noted).unwrap(), "MKDIR Marked panic\n".repeat(6));
    until("the image is free", || place.run("mount -o nokeeper disk.kedge mnt").code == 0);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"kept");
    assert!(!place.path("mnt/dir").exists());
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

/// Runs a script on the mount while servers are killed. Returns its output.
fn script_beside_deaths(place: &Place, script: &str) -> String {
    let mut command = place.command("sh");
    command.args(["-ec", script]);
    let killer = Killer::start(place, Duration::from_millis(300));
    let output = common::output_of(command).unwrap();
    killer.stop();
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

fn parent_of(process: Pid) -> Pid {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim();
    Pid::from_raw(parent.parse().unwrap()).unwrap()
}

/// Before a seek in a mapped file the kernel writes the stored pages, for which it needs a server.
/// Each server is killed while the kernel waits for it.
#[test]
fn a_seek_in_a_mapped_file_does_not_notice() {
    const DEATHS: u64 = 20;
    needs_fuse!();
    let place = Place::after("mount --create 128M -o keeper disk.kedge mnt");
    let seeks = Seeks::start(&place);
    for _ in 0..DEATHS {
        let server = server(&place);
        stop_in_a_seek(server);
        kill_process(server, Signal::KILL).unwrap();
        until("the server is gone", || is_gone(server));
    }
    println!("{} seeks, keeper: {}", seeks.stop(), keeper(&place));
    assert_eq!(keeper(&place)["deaths"], DEATHS);
    place.unmount_and_check("disk.kedge");
}

/// The process that waits in the kernel for pages to be written also holds the connection open.
#[test]
fn a_dead_keeper_ends_the_mount_beside_a_seek() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o keeper disk.kedge mnt");
    let seeks = Seeks::start(&place);
    let server = server(&place);
    stop_in_a_seek(server);
    kill_process(parent_of(server), Signal::KILL).unwrap();
    println!("{}", seeks.failed());
    common::until_dead(&place, "mnt");
    until("the image is free", || place.run("mount -o nokeeper disk.kedge mnt").code == 0);
    place.unmount_and_check("disk.kedge");
}

/// A handover does not wait for the stored pages. The next server writes them.
#[test]
fn a_handover_beside_seeks_is_not_noticed() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o keeper disk.kedge mnt");
    let seeks = Seeks::start(&place);
    for _ in 0..10 {
        place.run("upgrade-server mnt").ok();
    }
    println!("{} seeks, keeper: {}", seeks.stop(), keeper(&place));
    place.unmount_and_check("disk.kedge");
}

/// Programs compute on all processors, so a thread of SCHED_IDLE may wait seconds for one. Neither
/// the end of a server nor the start of the next one waits for such a thread.
#[test]
fn the_companion_delays_no_server_on_a_busy_machine() {
    const DEATHS: usize = 9;
    const WAIT_MAX: Duration = Duration::from_millis(1500);
    needs_fuse!(root: "only root may give a thread the ordinary policy again");
    let place = Place::after("mount --create 128M -o keeper,placement=on disk.kedge mnt");
    let stats = place.run("stats mnt --json").ok();
    assert!(stats.contains("\"companion\""), "there is a placement");
    let ended = Arc::new(AtomicBool::new(false));
    let processors = std::thread::available_parallelism().unwrap().get();
    let busy: Vec<_> = (0..4 * processors)
        .map(|_| {
            let ended = ended.clone();
            let spin = move || {
                while !ended.load(SeqCst) {
                    std::hint::spin_loop();
                }
            };
            spawn_named("busy", spin).unwrap()
        })
        .collect();
    let clock = SystemClock::default();
    let mut waits: Vec<_> = (0..DEATHS)
        .map(|n| {
            fs::write(place.path(&format!("mnt/{n}")), "before").unwrap();
            std::thread::sleep(Duration::from_millis(300));
            let server = server(&place);
            let begun = clock.monotonic();
            kill_process(server, Signal::KILL).unwrap();
            until("the server is gone", || is_gone(server));
            fs::write(place.path(&format!("mnt/{n}")), "after").unwrap();
            clock.since(begun)
        })
        .collect();
    ended.store(true, SeqCst);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    waits.sort();
    println!("{waits:?}, keeper: {}", keeper(&place));
    assert!(waits[DEATHS / 2] < WAIT_MAX, "{waits:?}");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_dead_keeper_ends_the_mount() {
    needs_fuse!();
    let place = Place::after("mount --create 128M -o keeper disk.kedge mnt");
    fs::write(place.path("mnt/a"), "kept").unwrap();
    File::open(place.path("mnt/a")).unwrap().sync_all().unwrap();
    kill_process(parent_of(server(&place)), Signal::KILL).unwrap();
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
}
