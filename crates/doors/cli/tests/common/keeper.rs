//! Mounts with a keeper, whose servers are killed.

use super::{Place, tool, until};
use kedge_base::{JoinHandle, spawn_named};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What `kedge info` shows of the keeper of `mnt`.
pub fn keeper(place: &Place) -> serde_json::Value {
    place.info("mnt")["mount"]["keeper"].clone()
}

/// The process that serves `mnt`. While no process serves it, this call waits.
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
    // The server may have died by itself since.
    assert!(matches!(kill_process(pid, signal), Ok(()) | Err(rustix::io::Errno::SRCH)));
    // A thread of the dying server that has not seen the signal yet may serve one more request.
    until("another server serves", || server_of(dir).unwrap() != pid);
}

/// Mounts a new image whose servers die inside of requests, as `KEDGE_DEATHS` says. Returns the
/// file in which they note their deaths.
pub fn mount_dying(place: &Place, words: &[&str], which: &str) -> PathBuf {
    let noted = place.path("deaths");
    fs::write(&noted, "").unwrap();
    let mut command = place.command(env!("CARGO_BIN_EXE_kedge"));
    command.arg("mount").args(words).args(["-o", "keeper", "disk.kedge", "mnt"]);
    command.env("KEDGE_DEATHS", format!("{which},{}", noted.display()));
    tool(command, "kedge");
    noted
}

/// What the keeper's memory shows of the earlier servers.
pub struct History {
    pub life: u64,
    pub deaths: u64,
    pub refused: u64,
    pub last_signal: i32,
    pub pause_last_ms: u64,
}

/// Reads the history. While no process serves the mount, this call waits.
pub fn history(dir: &Path) -> History {
    let mut text = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(dir, "system.kedgefs.info", &mut text[..]).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&text[..len]).unwrap();
    let number = |name: &str| info["mount"]["keeper"][name].as_u64().unwrap();
    History {
        life: number("life"),
        deaths: number("deaths"),
        refused: number("refused"),
        last_signal: number("last_signal") as i32,
        pause_last_ms: number("pause_last_ms"),
    }
}

/// The process that serves a mount, held by a pidfd, so that no later process with its number is
/// meant.
pub struct JustServer {
    pub pid: Pid,
    process: OwnedFd,
}

impl JustServer {
    pub fn of(dir: &Path) -> JustServer {
        loop {
            let pid = server_of(dir).unwrap();
            // Retry if the server has died between the two calls.
            if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
                && server_of(dir).unwrap() == pid
            {
                return JustServer { pid, process };
            }
        }
    }

    /// Sends a signal. An error means that the process is gone.
    pub fn kill(&self, signal: Signal) -> rustix::io::Result<()> {
        pidfd_send_signal(&self.process, signal)
    }

    pub fn is_gone(&self) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }
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

    /// Returns a guard; while it lives, no server is killed.
    pub fn pause(&self) -> MutexGuard<'_, ()> {
        self.pause.lock()
    }

    /// Stops the thread. Returns how many servers it has killed.
    pub fn stop(self) -> u64 {
        self.ended.store(true, SeqCst);
        self.thread.join().expect("each server that is killed is replaced")
    }
}
