//! A program that waits in lseek(2) for stored pages of a mapping, and servers that are stopped
//! during that wait.

use super::io::Mapping;
use super::{Place, until};
use kedge_base::{BLOCK_SIZE, JoinHandle, spawn_named};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const PAGES: usize = 64;

/// A thread that stores into holes of a mapped file of `mnt`, and finds the stored bytes by
/// SEEK_DATA.
pub struct Seeks {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Option<Errno>)>,
}

impl Seeks {
    pub fn start(place: &Place) -> Seeks {
        let file = place.path("mnt/mapped");
        let file = File::options().read(true).write(true).create_new(true).open(file).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let ends = ended.clone();
        let run = move || {
            let mut seeks = 0;
            while !ends.load(SeqCst) {
                if let Err(e) = seek_in_all(&file, &mut seeks) {
                    return (seeks, Some(e));
                }
            }
            (seeks, None)
        };
        Seeks { ended, thread: spawn_named("seeks", run).unwrap() }
    }

    /// Waits until a seek fails because the mount has ended. Returns its error.
    pub fn failed(self) -> Errno {
        until("the program's seek returns", || self.thread.is_finished());
        self.thread.join().unwrap().1.expect("the mount has ended")
    }

    /// Ends the thread, which must have seen no error. Returns the number of its seeks.
    pub fn stop(self) -> u64 {
        self.ended.store(true, SeqCst);
        until("the program's seek returns", || self.thread.is_finished());
        let (seeks, error) = self.thread.join().unwrap();
        assert_eq!(error, None, "after {seeks} seeks");
        seeks
    }
}

fn seek_in_all(file: &File, seeks: &mut u64) -> rustix::io::Result<()> {
    // Make the whole file a hole again.
    rustix::fs::ftruncate(file, 0)?;
    rustix::fs::ftruncate(file, (PAGES * BLOCK_SIZE) as u64)?;
    let mapping = Mapping::new(file, 0, PAGES * BLOCK_SIZE).unwrap();
    for at in (0..PAGES).map(|page| page * BLOCK_SIZE) {
        mapping.write(at, b"stored");
        let data = rustix::fs::seek(file, SeekFrom::Data(at as u64))?;
        assert_eq!(data, at as u64, "what was stored is no hole");
        *seeks += 1;
    }
    Ok(())
}

/// Stops the server while the kernel waits for it inside a notification. The server stays stopped
/// until the caller kills or continues it. Returns the process whose thread waits there.
pub fn stop_in_a_seek(server: Pid) -> Pid {
    let mut waits = None;
    until("the kernel waits in a notification", || {
        kill_process(server, Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        waits = [couriers(server), vec![server]].concat().into_iter().find(|process| {
            let waits = || is_in_the_kernel(*process);
            // Look several times, because a thread that waits for its device waits only shortly.
            waits()
                && (0..5).all(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    waits()
                })
        });
        if waits.is_none() {
            kill_process(server, Signal::CONT).unwrap();
        }
        waits.is_some()
    });
    waits.unwrap()
}

/// A field of the status file of a process or thread in /proc; empty if the process is gone. The
/// file `stat` is no alternative: a reader of `stat` waits for a process that is in execve(2), and
/// that process may wait for the stopped server.
fn status(path: &str, field: &str) -> String {
    let text = fs::read_to_string(format!("{path}/status")).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    value.unwrap_or_default().trim().to_owned()
}

/// The running child processes of a server.
pub fn couriers(server: Pid) -> Vec<Pid> {
    let parent = server.to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let number: i32 = entry.unwrap().file_name().to_str()?.parse().ok()?;
        let path = format!("/proc/{number}");
        let runs = !status(&path, "State:").starts_with('Z');
        (runs && status(&path, "PPid:") == parent).then(|| Pid::from_raw(number)).flatten()
    });
    processes.collect()
}

/// Whether a thread of the process is in uninterruptible sleep.
fn is_in_the_kernel(process: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|thread| status(thread.path().to_str().unwrap(), "State:").starts_with('D'))
}

/// Whether the process and all of its threads have ended, even if the parent has not reaped it yet.
pub fn is_gone(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    threads.is_ok_and(|threads| threads.count() <= 1)
        && status(&format!("/proc/{process}"), "State:").starts_with('Z')
        || !fs::exists(format!("/proc/{process}")).unwrap()
}
