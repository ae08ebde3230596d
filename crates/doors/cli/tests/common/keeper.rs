//! Mounts with a keeper, whose servers are killed.

use super::{Place, until};
use kedge_base::{JoinHandle, spawn_named};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What the mount `mnt` shows of its keeper.
pub fn keeper(place: &Place) -> serde_json::Value {
    place.info("mnt")["mount"]["keeper"].clone()
}

/// The process that serves `mnt`. The reply waits for one.
pub fn server(place: &Place) -> Pid {
    server_of(&place.path("mnt")).unwrap()
}

fn server_of(dir: &Path) -> rustix::io::Result<Pid> {
    let mut text = [0; 16];
    let len = rustix::fs::getxattr(dir, "system.kedgefs.pid", &mut text)?;
    Ok(Pid::from_raw(std::str::from_utf8(&text[..len]).unwrap().parse().unwrap()).unwrap())
}

/// Kills the server, and waits until another one serves.
pub fn kill_server(place: &Place, signal: Signal) {
    kill_server_of(&place.path("mnt"), signal);
}

fn kill_server_of(dir: &Path, signal: Signal) {
    let pid = server_of(dir).unwrap();
    kill_process(pid, signal).unwrap();
    // The last request may be served by a thread that has not seen the signal.
    until("another server serves", || server_of(dir).unwrap() != pid);
}

/// A thread that kills the servers of `mnt` again and again.
pub struct Killer {
    ended: Arc<AtomicBool>,
    pause: Arc<Mutex<()>>,
    thread: JoinHandle<u64>,
}

impl Killer {
    pub fn start(place: &Place, every: Duration) -> Killer {
        let (ended, pause) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(())));
        let (ends, paused, dir): (_, _, PathBuf) = (ended.clone(), pause.clone(), place.path("mnt"));
        let kill = move || {
            let mut deaths = 0;
            while !ends.load(SeqCst) {
                std::thread::sleep(every);
                let _running = paused.lock();
                kill_server_of(&dir, Signal::KILL);
                deaths += 1;
            }
            deaths
        };
        Killer { ended, pause, thread: spawn_named("killer", kill).unwrap() }
    }

    /// No server is killed while the guard lives.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.pause.lock()
    }

    /// Returns how many servers were killed.
    pub fn stop(self) -> u64 {
        self.ended.store(true, SeqCst);
        self.thread.join().expect("each server that is killed is replaced")
    }
}
