//! Mounts on a Ceph cluster that the tests start (`kedge_ceph`): programs while an OSD dies, hosts
//! that die and are taken over, owners that were fenced, and mistakes of users.
//!
//! A host is a set of namespaces (mounts, network, host name) with a cable to the cluster. Its
//! processes see neither the mounts nor the network addresses of other hosts. The tests run one at
//! a time, because some of them stop the cluster.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod fence;
mod input;
mod load;
mod resize;
mod takeover;

use common::{Place, Run, long, no_fuse, output_of, until};
use kedge_ceph::{Cluster, Layout, USER};
use kedge_sim::backend::{Backend, Mounted};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Seconds after which a blocklist entry without a given time expires; Ceph's default is an hour.
const BLOCKLIST_SECS: u32 = 2;

/// The cluster, for one test at a time. `None`, after a report, if there is no cluster.
#[track_caller]
fn cluster() -> Option<MutexGuard<'static, Cluster>> {
    static CLUSTER: OnceLock<Mutex<Cluster>> = OnceLock::new();
    if no_fuse() || kedge_ceph::is_missing() {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        kedge_base::skip::note("only root can play several hosts");
        return None;
    }
    if kedge_ceph::is_confined() {
        return None;
    }
    let start = || {
        let expire = ("mon_osd_blocklist_default_expire".to_owned(), BLOCKLIST_SECS.to_string());
        let layout = Layout { apart: true, settings: vec![expire], ..Layout::usual() };
        Mutex::new(Cluster::start(layout).unwrap())
    };
    Some(CLUSTER.get_or_init(start).lock())
}

/// The URI of an image of this name, which no other test uses.
fn uri(cluster: &Cluster, name: &str) -> String {
    format!("rbd:rbd/{name}?id={USER}&conf={}", cluster.conf().display())
}

/// A simulated machine made of namespaces. Processes that serve its mounts are killed on drop.
pub struct Host {
    anchor: Child,
    /// The pids of the processes that serve mounts.
    served: Mutex<Vec<Pid>>,
}

impl Host {
    fn new(cluster: &Cluster, name: &str) -> Host {
        static HOSTS: AtomicU32 = AtomicU32::new(2);
        let address = format!("10.77.0.{}", HOSTS.fetch_add(1, Relaxed));
        // The anchor process keeps the namespaces. It ends with the thread that started it, however
        // that thread ends: its `read` waits for a line that is never sent.
        let script = "echo \"$0\" >/proc/sys/kernel/hostname; echo up; read line";
        let mut anchor = Command::new("unshare")
            .args(["--mount", "--net", "--uts", "--propagation", "private"])
            .args(["setpriv", "--pdeathsig", "KILL", "sh", "-c", script, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(anchor.stdout.as_mut().unwrap(), &mut up).unwrap();
        cluster.connect(anchor.id(), &address).unwrap();
        Host { anchor, served: Mutex::default() }
    }

    /// A command that will run on the host.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.anchor.id())).args(["--mount", "--net", "--uts", "--"]);
        command.arg(program).env_remove("KEDGE_LOG").stdin(Stdio::null());
        command
    }

    fn kedge<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Run {
        let mut command = self.command(env!("CARGO_BIN_EXE_kedge"));
        command.args(args);
        let output = output_of(command).unwrap();
        Run {
            code: output.status.code().expect("ends by itself"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Mounts, and records the pid of the serving process.
    #[track_caller]
    fn mount(&self, dir: &Path, uri: &str, words: &[&str]) -> Pid {
        let mut args = vec!["mount"];
        args.extend(words);
        args.extend([uri, dir.to_str().unwrap()]);
        let run = self.kedge(args);
        assert_eq!(run.code, 0, "mount {uri}: {}{}", run.out, run.err);
        let pid = Pid::from_raw(self.info(dir)["mount"]["pid"].as_i64().unwrap() as i32).unwrap();
        self.served.lock().push(pid);
        pid
    }

    fn info(&self, target: &Path) -> serde_json::Value {
        let words = ["info".as_ref(), "--json".as_ref(), target.as_os_str()];
        serde_json::from_str(&self.kedge(words).ok()).unwrap()
    }

    #[track_caller]
    fn unmount(&self, dir: &Path) {
        until("it is no longer in use", || {
            let run = self.kedge(["umount".as_ref(), dir.as_os_str()]);
            assert!(run.code == 0 || run.err.contains("is in use"), "{}", run.err);
            run.code == 0
        });
    }

    #[track_caller]
    fn fsck(&self, uri: &str) {
        let judged = self.kedge(["fsck", uri]);
        assert_eq!(judged.code, 0, "fsck {uri}: {}{}", judged.out, judged.err);
    }

    /// The path at which this process sees a path of the host.
    fn seen(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.anchor.id(), path.display()))
    }

    fn backend(&self, dir: &Path) -> Arc<dyn Backend> {
        Arc::new(Mounted(self.seen(dir)))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for pid in self.served.lock().iter() {
            // Most of these processes have ended, and another process may have the pid.
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            if name.is_ok_and(|name| name.trim() == "kedge")
                && let Err(e) = kill_process(*pid, Signal::KILL)
            {
                eprintln!("process {pid}: {e}");
            }
        }
        drop(self.anchor.stdin.take());
        if let Err(e) = self.anchor.wait() {
            eprintln!("a host does not end: {e}");
        }
    }
}

/// Makes a directory of the place and returns its canonical path.
fn directory(place: &Place, name: &str) -> PathBuf {
    let path = place.path(name).canonicalize().unwrap_or_else(|_| place.path(name));
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Makes the image.
fn mkfs(host: &Host, uri: &str, words: &[&str]) {
    let made = host.kedge(["mkfs"].iter().chain(words).chain(&[uri]));
    assert_eq!(made.code, 0, "mkfs {uri}: {}{}", made.out, made.err);
}

/// Runs a shell script on a host, which must succeed, and returns its output.
#[track_caller]
fn script(host: &Host, text: &str, args: &[&OsStr]) -> String {
    let mut command = host.command("sh");
    command.args(["-euc", text, "script"]).args(args);
    let output = output_of(command).unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}: {}\n{out}\n{err}", output.status);
    out
}
