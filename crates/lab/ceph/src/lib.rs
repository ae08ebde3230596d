//! A Ceph cluster on this machine, for tests: one monitor and a few OSDs, no manager, a pool `rbd`,
//! and the users `admin` and `fs`; `fs` has the capabilities that docs/DISTRIBUTED.md requires.
//!
//! All files of the cluster are in one directory. A shell, the *keeper*, waits for the end of this
//! process, then kills the daemons and removes the directory. So nothing is left behind when a test
//! panics or is killed.
//!
//! A cluster can have a network namespace of its own, in which the keeper runs. The cluster's
//! address there is [`ADDRESS`]. [`Cluster::connect`] connects the namespaces of simulated hosts to
//! it.

#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The cluster's address in its own network.
pub const ADDRESS: &str = "10.77.0.1";
/// The Ceph user that mounts file systems, without the prefix `client.`.
pub const USER: &str = "fs";

/// The pool that every cluster has.
pub const POOL: &str = "rbd";
const MON: &str = "mon.a";
const PORT: u16 = 3300;
const PROGRAMS: &[&str] =
    &["ceph-mon", "ceph-osd", "ceph", "rbd", "ceph-authtool", "monmaptool", "ip", "nsenter", "unshare"];
/// The script of the keeper; `$1` is the cluster's directory. It waits until its standard input
/// ends. It kills a process only if that is a Ceph daemon, since a number in a pid file may have
/// been reused.
const KEEPER: &str = r#"
cat >/dev/null
for file in "$1"/*.pid; do
  pid=$(cat "$file") || continue
  case $(cat "/proc/$pid/comm") in ceph-*) kill -9 "$pid" ;; esac
done
for try in 1 2 3 4 5; do rm -rf "$1" && exit; sleep 0.2; done
"#;
/// Limit in seconds for a command of Ceph.
const COMMAND_SECS: &str = "60";

/// Where the OSDs keep their data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Store {
    /// In memory: the data is lost when the OSD is killed. A restarted OSD fetches it from other
    /// OSDs.
    Memory,
    /// In files, as in production.
    Disk,
}

#[derive(Clone, Debug)]
pub struct Layout {
    /// Number of OSDs. Each of them has a copy of each object.
    pub osds: usize,
    pub store: Store,
    /// Whether the cluster has a network namespace of its own, which needs root.
    pub apart: bool,
    /// Further settings of the monitor and the OSDs: names and values.
    pub settings: Vec<(String, String)>,
}

impl Layout {
    /// Two OSDs that keep data in memory, or with `KEDGE_LONG=1` three that write files.
    pub fn usual() -> Layout {
        let long = std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1");
        let (osds, store) = if long { (3, Store::Disk) } else { (2, Store::Memory) };
        Layout { osds, store, apart: false, settings: Vec::new() }
    }
}

pub struct Cluster {
    dir: PathBuf,
    layout: Layout,
    /// The keeper runs as long as its standard input is open.
    keeper: Child,
    daemons: Mutex<BTreeMap<String, Child>>,
}

/// Returns whether a program of Ceph is not installed, and then notes that the calling test is
/// skipped.
#[track_caller]
pub fn is_missing() -> bool {
    let missing = missing();
    if !missing.is_empty() {
        let packages = "apt-get install ceph-mon ceph-osd ceph-common iproute2";
        kedge_base::skip::note(&format!("no Ceph here ({} is missing; {packages})", missing.join(", ")));
    }
    !missing.is_empty()
}

/// A script that tries what tests with separate hosts need: a UTS and a network namespace, and a
/// veth pair.
const APART: &str = "echo probe >/proc/sys/kernel/hostname
ip link set lo up
ip link add kedge0 type veth peer name kedge1";

/// Returns whether this machine allows no network namespaces, as many containers do and without
/// root, and then notes that the calling test is skipped.
#[track_caller]
pub fn is_confined() -> bool {
    let why = confinement(APART);
    if let Some(why) = &why {
        kedge_base::skip::note(&format!("no separate hosts can be simulated here: {why}"));
    }
    why.is_some()
}

/// Runs a script in namespaces of its own. Returns the reason if it fails.
fn confinement(script: &str) -> Option<String> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--uts", "--propagation", "private", "sh", "-euc", script]);
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())),
        Err(e) => Some(format!("start unshare: {e}")),
    }
}

/// The needed programs that are not installed.
pub fn missing() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    PROGRAMS.iter().copied().filter(|program| !there(program)).collect()
}

impl Cluster {
    pub fn start(layout: Layout) -> Result<Cluster> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("kedge-ceph-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        let mut keeper = match layout.apart {
            true => Command::new("unshare"),
            false => Command::new("sh"),
        };
        if layout.apart {
            keeper.args(["--net", "sh"]);
        }
        let keeper = keeper
            .args(["-c", KEEPER, "keeper"])
            .arg(&dir)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start a shell")?;
        let cluster = Cluster { dir, layout, keeper, daemons: Mutex::default() };
        cluster.set_up()?;
        Ok(cluster)
    }

    /// Path of the configuration file, for programs that use the cluster.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    fn set_up(&self) -> Result<()> {
        for name in ["log", "run"] {
            fs::create_dir(self.dir.join(name)).with_context(|| format!("make {name}"))?;
        }
        let port = match self.layout.apart {
            true => self.make_network()?,
            false => free_port()?,
        };
        let address = if self.layout.apart { ADDRESS } else { "127.0.0.1" };
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").context("a random number")?;
        self.append_conf(&self.settings(id.trim(), address, port))?;
        let (keys, map) = (self.path("keyring"), self.path("monmap"));
        run(self.command("ceph-authtool").args([
            "-C",
            &keys,
            "--gen-key",
            "-n",
            "mon.",
            "--cap",
            "mon",
            "allow *",
        ]))?;
        let rbd = format!("profile rbd pool={POOL}");
        for (user, mon, osd) in [("admin", "allow *", "allow *"), (USER, "profile rbd", &*rbd)] {
            let name = format!("client.{user}");
            let caps = ["--cap", "mon", mon, "--cap", "osd", osd];
            run(self.command("ceph-authtool").args([&*keys, "--gen-key", "-n", &name]).args(caps))?;
        }
        let place = format!("[v2:{address}:{port}]");
        let made = ["--create", "--fsid", id.trim(), "--addv", "a", &place, &map];
        run(self.command("monmaptool").args(made))?;
        run(self.ceph_program("ceph-mon").args(["--mkfs", "-i", "a", "--monmap", &map, "--keyring", &keys]))?;
        self.start_daemon(MON)?;
        for number in 0..self.layout.osds {
            self.make_osd(number)?;
        }
        self.ceph(&["osd", "pool", "create", POOL, "8", "8", "replicated"])?;
        if self.layout.osds == 1 {
            self.ceph(&["osd", "pool", "set", POOL, "size", "1", "--yes-i-really-mean-it"])?;
        }
        // Waits until the pool serves requests.
        self.rbd(&["pool", "init", POOL]).map(drop)
    }

    fn settings(&self, id: &str, address: &str, port: u16) -> String {
        let (dir, osds) = (self.dir.display(), self.layout.osds);
        let store = if self.layout.store == Store::Memory { "memstore" } else { "bluestore" };
        let mut text = format!(
            "[global]
fsid = {id}
mon_host = [v2:{address}:{port}/0]
ms_bind_msgr1 = false
keyring = {dir}/keyring
run_dir = {dir}/run
admin_socket =
log_file = {dir}/log/$name.log
pid_file =
crash_dir = {dir}/log
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = {osds}
osd_pool_default_min_size = {}
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
[mon]
public_addr = {address}
mon_data = {dir}/$name
mon_cluster_log_file = {dir}/log/cluster.log
mon_osd_reporter_subtree_level = osd
mon_osd_min_down_reporters = 1
mon_data_avail_warn = 1
mon_data_avail_crit = 0
paxos_propose_interval = 0.1
[osd]
public_addr = {address}
cluster_addr = {address}
osd_data = {dir}/$name
osd_objectstore = {store}
osd_heartbeat_interval = 1
osd_heartbeat_grace = 6
osd_memory_target = 939524096
bluestore_block_size = 4294967296
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
memstore_device_bytes = 4294967296
osd_op_num_threads_per_shard_ssd = 1
osd_op_num_shards_ssd = 2
osd_class_update_on_start = false
",
            (osds - 1).max(1)
        );
        text.push_str("[global]\n");
        for (name, value) in &self.layout.settings {
            writeln!(text, "{name} = {value}").expect("a String takes all");
        }
        text
    }

    fn append_conf(&self, text: &str) -> Result<()> {
        let old = fs::read_to_string(self.conf()).unwrap_or_default();
        fs::write(self.conf(), old + text).context("write ceph.conf")
    }

    fn make_osd(&self, number: usize) -> Result<()> {
        let name = format!("osd.{number}");
        fs::create_dir(self.dir.join(&name)).with_context(|| format!("make {name}"))?;
        let (uuid, keys) = (self.path(&format!("{name}/uuid")), self.path(&format!("{name}/keyring")));
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").context("a random number")?;
        fs::write(&uuid, id.trim()).context("write the OSD's name")?;
        run(self.command("ceph-authtool").args(["-C", &keys, "--gen-key", "-n", &name]))?;
        let key = run(self.command("ceph-authtool").args(["-p", "-n", &name, &keys]))?;
        let secrets = self.dir.join("secrets");
        fs::write(&secrets, format!("{{\"cephx_secret\":\"{}\"}}", key.trim())).context("write a key")?;
        let mut new = self.ceph_command();
        let given = run(new.args(["osd", "new", id.trim(), "-i"]).arg(&secrets))?;
        ensure!(given.trim() == number.to_string(), "the monitor calls {name} {given}");
        self.append_conf(&format!("[{name}]\nkeyring = {keys}\n"))?;
        self.make_store(number)?;
        self.start_daemon(&name)
    }

    fn make_store(&self, number: usize) -> Result<()> {
        let uuid =
            fs::read_to_string(self.dir.join(format!("osd.{number}/uuid"))).context("the OSD's name")?;
        let mut make = self.ceph_program("ceph-osd");
        run(make.args(["-i", &number.to_string(), "--mkfs", "--osd-uuid", &uuid])).map(drop)
    }

    fn start_daemon(&self, name: &str) -> Result<()> {
        let (program, id) = name.split_once('.').context("a name has a kind and an id")?;
        let output =
            File::create(self.dir.join(format!("log/{name}.out"))).context("a file for its output")?;
        let errors = output.try_clone().context("a file for its errors")?;
        let child = self
            .ceph_program(&format!("ceph-{program}"))
            .args(["-i", id, "-f"])
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let noted = fs::write(self.pid_file(name), child.id().to_string());
        self.daemons.lock().insert(name.to_owned(), child);
        noted.with_context(|| format!("note the number of {name}"))
    }

    /// Names of the OSDs: `osd.0` and so on.
    pub fn osds(&self) -> Vec<String> {
        (0..self.layout.osds).map(|number| format!("osd.{number}")).collect()
    }

    /// Names of all daemons: `mon.a` and the OSDs.
    pub fn names(&self) -> Vec<String> {
        [MON.to_owned()].into_iter().chain(self.osds()).collect()
    }

    /// Kills a daemon. An OSD that keeps data in memory loses it.
    pub fn kill(&self, name: &str) -> Result<()> {
        let Some(mut child) = self.daemons.lock().remove(name) else { bail!("{name} does not run") };
        child.kill().with_context(|| format!("kill {name}"))?;
        child.wait().with_context(|| format!("wait for {name}"))?;
        fs::remove_file(self.pid_file(name)).with_context(|| format!("forget {name}"))
    }

    /// Starts a daemon that was killed. An OSD that lost its data starts empty.
    pub fn revive(&self, name: &str) -> Result<()> {
        if let (Some(number), Store::Memory) = (name.strip_prefix("osd."), self.layout.store) {
            self.make_store(number.parse().context("the number of an OSD")?)?;
        }
        self.start_daemon(name)
    }

    /// Stops all daemons, as if their machines hung.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        for (name, child) in &*self.daemons.lock() {
            let pid = Pid::from_raw(child.id() as i32).context("a process has a number")?;
            kill_process(pid, signal).with_context(|| format!("signal {name}"))?;
        }
        Ok(())
    }

    /// Runs the `ceph` command as administrator and returns its output.
    pub fn ceph(&self, words: &[&str]) -> Result<String> {
        run(self.ceph_command().args(words))
    }

    /// Runs the `rbd` command as administrator and returns its output.
    pub fn rbd(&self, words: &[&str]) -> Result<String> {
        let mut command = self.command("timeout");
        run(command.args([COMMAND_SECS, "rbd", "-c"]).arg(self.conf()).args(words))
    }

    fn ceph_command(&self) -> Command {
        let mut command = self.command("timeout");
        command.args([COMMAND_SECS, "ceph", "--connect-timeout", COMMAND_SECS, "-c"]).arg(self.conf());
        command
    }

    fn ceph_program(&self, name: &str) -> Command {
        let mut command = self.command(name);
        command.arg("-c").arg(self.conf());
        command
    }

    /// A command that runs in the cluster's network.
    pub fn command(&self, program: &str) -> Command {
        if !self.layout.apart {
            return Command::new(program);
        }
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg(program);
        command
    }

    fn make_network(&self) -> Result<u16> {
        // The keeper may not have entered its namespace yet.
        let ours = fs::read_link("/proc/self/ns/net").context("this network")?;
        let theirs = format!("/proc/{}/ns/net", self.keeper.id());
        let apart = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            fs::read_link(&theirs).is_ok_and(|name| name != ours)
        });
        ensure!(apart, "cannot make a network namespace");
        run(self.command("ip").args(["link", "set", "lo", "up"]))?;
        run(self.command("ip").args(["addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"]))?;
        Ok(PORT)
    }

    /// Connects the network namespace of process `pid` to the cluster's network namespace. In that
    /// of the process the interface is `eth0` and has `address`.
    pub fn connect(&self, pid: u32, address: &str) -> Result<()> {
        let (here, there) = (format!("to{pid}"), pid.to_string());
        let ip = |words: &[&str]| run(self.command("ip").args(words));
        ip(&["link", "add", &here, "type", "veth", "peer", "name", "eth0", "netns", &there])?;
        ip(&["addr", "add", ADDRESS, "peer", address, "dev", &here])?;
        ip(&["link", "set", &here, "up"])?;
        let net = format!("--net=/proc/{pid}/ns/net");
        let ip = |words: &[&str]| run(Command::new("nsenter").args([&*net, "ip"]).args(words));
        ip(&["addr", "add", address, "peer", ADDRESS, "dev", "eth0"])?;
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "set", "eth0", "up"]).map(drop)
    }

    fn path(&self, name: &str) -> String {
        // The path of the temporary directory is UTF-8 on every system that runs the tests.
        self.dir.join(name).to_string_lossy().into_owned()
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pid"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if let Err(e) = self.keeper.wait() {
            eprintln!("the keeper of {}: {e}", self.dir.display());
        }
        // The keeper has killed the daemons.
        for (name, mut child) in std::mem::take(&mut *self.daemons.lock()) {
            if let Err(e) = child.wait() {
                eprintln!("{name}: {e}");
            }
        }
    }
}

/// Returns a free port. If another process takes it before the monitor does, the monitor fails.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a port")?;
    Ok(listener.local_addr().context("its address")?.port())
}

fn run(command: &mut Command) -> Result<String> {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {line}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{line}: {}: {}", output.status, text(&output.stderr).trim());
    Ok(text(&output.stdout))
}

#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
