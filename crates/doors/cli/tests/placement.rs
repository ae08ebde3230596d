//! The worker that serves on its client's processor: with clients that move, with a server whose
//! processors change, and on a processor that other programs use. No request may fail or hang.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, needs_fuse, no_fuse, not_root, pid, until, write_and_fsync};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

fn placement(place: &Place) -> serde_json::Value {
    let stats: serde_json::Value = serde_json::from_str(&place.run("stats mnt --json").ok()).unwrap();
    stats["fuse"]["placement"].clone()
}

fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn one(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// The threads of the server.
fn threads(server: Pid) -> impl Iterator<Item = Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.as_raw_nonzero())).unwrap();
    tasks.map(|task| Pid::from_raw(task.unwrap().file_name().to_str().unwrap().parse().unwrap()).unwrap())
}

/// Lets one test run at a time, because one of the tests keeps all processors busy.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// A program that makes files, reads them back and removes every second one, until it is stopped.
struct Client {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Client {
    fn start(dir: PathBuf, processor: Option<usize>) -> Client {
        fs::create_dir(&dir).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = kedge_base::spawn_named("client", move || {
            if let Some(processor) = processor {
                sched_setaffinity(None, &one(processor)).unwrap();
            }
            let mut made = 0;
            while !stopped.load(SeqCst) {
                make(&dir, made);
                made += 1;
            }
            made
        });
        Client { stop, thread: thread.unwrap() }
    }

    /// Stops the program. Returns how many files it made.
    fn end(self) -> u32 {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

fn make(dir: &Path, number: u32) {
    let path = dir.join(number.to_string());
    fs::write(&path, number.to_string()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), number.to_string());
    if number.is_multiple_of(2) {
        fs::remove_file(&path).unwrap();
    }
}

fn judge(place: &Place, dir: &str, made: u32) {
    assert_eq!(fs::read_dir(place.path("mnt").join(dir)).unwrap().count() as u32, made / 2, "{dir}");
}

#[test]
fn the_server_follows_a_client_from_processor_to_processor() {
    let cpus = processors();
    if no_fuse() || cpus.len() < 2 {
        return;
    }
    let _alone = alone();
    let place = Place::after("mount --create 64M -o placement=on disk.kedge mnt");
    let dir = place.path("mnt/d");
    fs::create_dir(&dir).unwrap();
    let count = |what: &str| placement(&place)[what].as_u64().unwrap();
    // On a busy processor the companion, the worker on its client's processor, rests, each time for
    // longer. Then it need not follow.
    let mut moves = 0;
    for (round, cpu) in [cpus[0], cpus[1], cpus[0]].into_iter().enumerate() {
        let rests = count("starved");
        let starved = || count("starved") > rests;
        let client = Client::start(dir.join(round.to_string()), Some(cpu));
        let mut now = moves;
        until("the companion follows its client, or gets no processor", || {
            now = count("moves");
            now > moves || starved()
        });
        moves = now;
        until("it is where the client is, or gets no processor", || {
            placement(&place)["processor"] == cpu || starved()
        });
        until("the statistics say so", || {
            place.run("stats mnt").ok().contains("placement    on the client's processor") || starved()
        });
        if starved() {
            println!("processor {cpu} is busy, so the companion rests");
        }
        let made = client.end();
        judge(&place, &format!("d/{round}"), made);
    }
    place.unmount_and_check("disk.kedge");
}

/// The server's worker is bound to one processor, which the server then may no longer use.
#[test]
fn a_server_that_is_given_other_processors_uses_them() {
    let cpus = processors();
    if no_fuse() || cpus.len() < 2 || not_root("taskset of a daemon that root started") {
        return;
    }
    let _alone = alone();
    let place = Place::after("mount --create 64M -o placement=on disk.kedge mnt");
    let server = pid(&place, "mnt");
    let client = Client::start(place.path("mnt/d"), Some(cpus[0]));
    until("the companion is with its client", || placement(&place)["processor"] == cpus[0]);
    // Bind every thread of the server, as `taskset -a -p` does.
    threads(server).for_each(|thread| sched_setaffinity(Some(thread), &one(cpus[1])).unwrap());
    write_and_fsync(&place.path("mnt/after"), b"served");
    let made = client.end();
    let second = Client::start(place.path("mnt/e"), Some(cpus[0]));
    for number in 0..500 {
        make(&place.path("mnt"), number);
    }
    for thread in threads(server) {
        let set = sched_getaffinity(Some(thread)).unwrap();
        assert!(!set.is_set(cpus[0]), "thread {thread:?} uses the processor that was taken from the server");
    }
    let more = second.end();
    judge(&place, "d", made);
    judge(&place, "e", more);
    place.unmount_and_check("disk.kedge");
}

/// A program computes on each processor. The companion then gets little processor time, and other
/// workers serve.
#[test]
fn a_busy_processor_stops_no_request() {
    needs_fuse!();
    let _alone = alone();
    let place = Place::after("mount --create 64M -o placement=on disk.kedge mnt");
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = processors()
        .into_iter()
        .map(|cpu| {
            let stop = stop.clone();
            let thread = kedge_base::spawn_named("busy", move || {
                sched_setaffinity(None, &one(cpu)).unwrap();
                while !stop.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
            thread.unwrap()
        })
        .collect();
    fs::create_dir(place.path("mnt/d")).unwrap();
    let mut made = 0;
    until("the companion leaves the busy processor", || {
        for _ in 0..20 {
            make(&place.path("mnt/d"), made);
            made += 1;
        }
        placement(&place)["starved"].as_u64().unwrap() > 0
    });
    write_and_fsync(&place.path("mnt/durable"), b"served");
    stop.store(true, SeqCst);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    judge(&place, "d", made);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn the_option_is_checked_and_shown() {
    needs_fuse!();
    let _alone = alone();
    let place = Place::after("mkfs --size 64M disk.kedge");
    fs::create_dir(place.path("mnt")).unwrap();
    place.run("mount -o placement=often disk.kedge mnt").refused(2, &["placement=often", "off, auto, on"]);
    place.run("mount -o placement=off disk.kedge mnt").ok();
    assert_eq!(place.info("mnt")["mount"]["options"]["placement"], "off");
    assert_eq!(placement(&place), serde_json::Value::Null);
    place.run("remount -o placement=on mnt").refused(2, &["placement"]);
    place.unmount();
    place.run("mount disk.kedge mnt").ok();
    assert_eq!(place.info("mnt")["mount"]["options"]["placement"], "auto");
    place.unmount();
}
