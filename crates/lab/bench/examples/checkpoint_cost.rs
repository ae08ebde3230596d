//! The cost of checkpoints, in counts that do not depend on the load of the machine: the figures of
//! docs/rfcs/0009-steady-checkpoint.md.
//!
//! 32 threads create files as fs_mark does, on a device in memory that serves requests in sequence,
//! each at a fixed cost. An fsync is charged with the bytes, other than log writes, that the device
//! wrote between its call and its return: these are the delay that a checkpoint causes.
//!
//! ```text
//! cargo run --profile soak -p kedge-bench --example checkpoint_cost -- \
//!     MODE LOG_MIB FILES OPTIONS [SLICE_MIB]
//! ```
//! MODE: fs_mark's -S, of 0, 1, 3 and 5. FILES: of all threads. OPTIONS: as of a mount. SLICE_MIB:
//! request a checkpoint each time this much was logged, as an engine of many small cuts would.

use kedge_base::lock::{Mutex, Rank};
use kedge_base::{BLOCK_SIZE, Clock, IoBuf, Result, SystemClock, spawn_named};
use kedge_device::{Completion, CompletionSink, Device, DeviceStats, Geometry, MemDevice, Op, Request};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Owner, Switches};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const THREADS: u64 = 32;
const DIRS: u64 = 16;
const FILES_PER_TURN: u64 = 256;
const MIB: u64 = 1 << 20;

/// Cost of a write, added cost of a flush or a durable write, and cost of a MiB.
const WRITE: Duration = Duration::from_micros(20);
const FLUSH: Duration = Duration::from_micros(200);
const PER_MIB: Duration = Duration::from_millis(2);

/// Serves one request at a time.
struct Modelled {
    memory: MemDevice,
    clock: SystemClock,
    free_at: Mutex<Duration>,
    /// Bytes of ordinary (not FUA) writes: those of checkpoints and of writeback.
    plain: AtomicU64,
    /// The same since the last durable write began, and the maximum.
    run: AtomicU64,
    run_max: AtomicU64,
}

impl Modelled {
    fn serve(&self, cost: Duration) {
        let done = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(self.clock.monotonic()) + cost;
            *free_at
        };
        std::thread::sleep(done.saturating_sub(self.clock.monotonic()));
    }

    /// The cost of a write.
    fn began(&self, bytes: u64, fua: bool) -> Duration {
        if fua {
            self.run.store(0, Relaxed);
        } else {
            let run = self.run.fetch_add(bytes, Relaxed) + bytes;
            self.run_max.fetch_max(run, Relaxed);
        }
        let flush = if fua { FLUSH } else { Duration::ZERO };
        WRITE + flush + PER_MIB.mul_f64(bytes as f64 / MIB as f64)
    }

    fn store(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        if !fua {
            self.plain.fetch_add(buf.len() as u64, Relaxed);
        }
        self.memory.write(offset, buf, fua)
    }
}

impl Device for Modelled {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    /// A whole batch is queued at once: later requests wait for all of it.
    fn submit(&self, batch: Vec<Request>, sink: Arc<dyn CompletionSink>) {
        let cost = batch.iter().map(|request| match &request.op {
            Op::Write { buf, fua } => self.began(buf.len() as u64, *fua),
            Op::Flush => FLUSH,
            _ => Duration::ZERO,
        });
        self.serve(cost.sum());
        for Request { tag, offset, mut op } in batch {
            let result = match &mut op {
                Op::Read(buf) => self.memory.read(offset, buf),
                Op::Write { buf, fua } => self.store(offset, buf, *fua),
                Op::Flush => self.memory.flush(),
                Op::Discard { len } => self.discard(offset, *len),
                Op::WriteZeroes { len } => self.write_zeroes(offset, *len),
            };
            sink.complete(Completion { tag, op, result });
        }
    }

    fn read(&self, offset: u64, buf: &mut IoBuf) -> Result<()> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &IoBuf, fua: bool) -> Result<()> {
        self.serve(self.began(buf.len() as u64, fua));
        self.store(offset, buf, fua)
    }

    fn flush(&self) -> Result<()> {
        self.serve(FLUSH);
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.write_zeroes(offset, len)
    }

    fn stats(&self) -> &DeviceStats {
        self.memory.stats()
    }

    fn name(&self) -> &str {
        "model"
    }
}

/// State shared by the threads.
struct Load {
    fs: FileSystem,
    device: Arc<Modelled>,
    dirs: Vec<Ino>,
    mode: u64,
    each: u64,
    over: AtomicBool,
}

impl Load {
    /// Returns the charge of each fsync.
    fn files(&self, thread: u64) -> Vec<u64> {
        let mut charges = Vec::new();
        let mut fsync = |file| {
            let before = self.device.plain.load(Relaxed);
            self.fs.fsync(file, false).expect("fsync");
            charges.push(self.device.plain.load(Relaxed) - before);
        };
        let mut files = Vec::new();
        for i in 0..self.each {
            let dir = self.dirs[(i / FILES_PER_TURN % DIRS) as usize];
            let name = format!("{thread:02x}~{i:08x}");
            let file = self.fs.create(dir, name.as_bytes(), 0o644, Owner::default()).expect("create").ino;
            assert_eq!(self.fs.write(file, 0, &[0x6b; 4096]).expect("write"), 4096);
            match self.mode {
                0 => {}
                1 => fsync(file),
                _ => files.push(file),
            }
        }
        if self.mode == 3 {
            files.reverse();
        }
        files.into_iter().for_each(fsync);
        charges
    }

    /// Samples the fill of the log in percent, and requests checkpoints.
    fn watch(&self, slice: Option<u64>) -> (u64, u64) {
        let (mut most, mut sum, mut looks, mut last) = (0, 0, 0, 0);
        while !self.over.load(Relaxed) {
            let stats = self.stats();
            let get = |path| count(&stats, path);
            let used = get("/log/used_bytes") * 100 / get("/log/ring_bytes");
            (most, sum, looks) = (most.max(used), sum + used, looks + 1);
            let head = get("/log/head_lsn");
            if slice.is_some_and(|slice| head >= last + slice) {
                last = head;
                self.fs.checkpoint().expect("checkpoint");
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        (most, sum / looks.max(1))
    }

    fn stats(&self) -> Value {
        serde_json::from_str(&self.fs.stats_json()).expect("stats are JSON")
    }
}

fn count(stats: &Value, path: &str) -> u64 {
    stats.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no counter {path}"))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<u64>().ok());
    let (Some(mode), Some(log_mib), Some(files), Some(options)) =
        (number(0), number(1), number(2), args.get(3))
    else {
        eprintln!("usage: checkpoint_cost MODE LOG_MIB FILES OPTIONS [SLICE_MIB]");
        std::process::exit(2);
    };
    let slice = number(4).map(|mib| mib * MIB);
    let size = (log_mib + files * 3 * BLOCK_SIZE as u64 / MIB + 512) * MIB;
    let device = Arc::new(Modelled {
        memory: MemDevice::new(size),
        clock: SystemClock::default(),
        free_at: Mutex::new(Rank::Leaf, Duration::ZERO),
        plain: AtomicU64::new(0),
        run: AtomicU64::new(0),
        run_max: AtomicU64::new(0),
    });
    let format = FormatOptions { log_size: Some(log_mib * MIB), ..FormatOptions::default() };
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(device.clone(), clock.clone(), &format).expect("format");
    let mut mount = MountOptions::default();
    options.parse::<Switches>().expect("options").apply(&mut mount);
    let fs = FileSystem::open(device.clone(), clock, mount).expect("open");
    let dirs = (0..DIRS)
        .map(|i| fs.mkdir(Ino::ROOT, format!("{i:02x}").as_bytes(), 0o755, Owner::default()))
        .map(|dir| dir.expect("mkdir").ino)
        .collect();
    let (each, over) = (files / THREADS, AtomicBool::new(false));
    let load = Arc::new(Load { fs, device, dirs, mode, each, over });
    let start = load.stats();
    load.device.run_max.store(0, Relaxed);
    let watch = {
        let load = load.clone();
        spawn_named("watch", move || load.watch(slice)).expect("a thread")
    };
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            let load = load.clone();
            spawn_named("files", move || load.files(i)).expect("a thread")
        })
        .collect();
    let charges = threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect();
    load.over.store(true, Relaxed);
    let fill = watch.join().expect("no panic");
    report(&args, &load, &start, charges, fill);
    load.fs.close().expect("close");
}

fn report(args: &[String], load: &Load, start: &Value, mut charges: Vec<u64>, fill: (u64, u64)) {
    let end = load.stats();
    let since = |path: &str| count(&end, path) - count(start, path);
    charges.sort_unstable();
    let at = |q: f64| charges.get((charges.len() as f64 * q) as usize).or(charges.last()).copied();
    let kib = |bytes: Option<u64>| bytes.map_or("-".into(), |b| (b >> 10).to_string());
    let (log, nodes) = (since("/log/bytes_appended"), since("/checkpoint/nodes_written"));
    let checkpoints = since("/transactions/checkpoints");
    let inner = since("/checkpoint/inner_nodes_written");
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!("S{} log {} MiB, {} files, {} {}", args[0], args[1], args[2], args[3], args[4..].join(" "));
    println!("  wraps {:.1}, checkpoints {checkpoints}", log as f64 / count(&end, "/log/ring_bytes") as f64);
    println!(
        "  MiB appended {:.1}, log written {:.1}, data {:.1}, checkpoint {:.1}, device {:.1}: {:.3} per byte appended",
        mib(log),
        mib(since("/log/bytes_written")),
        mib(since("/data/write_bytes")),
        mib(since("/checkpoint/bytes_written")),
        mib(since("/device/write_bytes")),
        since("/device/write_bytes") as f64 / log as f64
    );
    println!(
        "  nodes {nodes} ({inner} inner), {:.1} and {:.1} inner for each checkpoint",
        nodes as f64 / checkpoints.max(1) as f64,
        inner as f64 / checkpoints.max(1) as f64
    );
    println!(
        "  log used: at most {} %, {} % on average; longest run of other writes {} KiB",
        fill.0,
        fill.1,
        load.device.run_max.load(Relaxed) >> 10
    );
    println!(
        "  KiB of other writes in an fsync: 50 % {}, 99 % {}, 99.9 % {}, longest {} ({} fsyncs)",
        kib(at(0.5)),
        kib(at(0.99)),
        kib(at(0.999)),
        kib(charges.last().copied()),
        charges.len()
    );
    println!(
        "  waits for log space {} of {} ms, slowed down {}, at most {} KiB reserved",
        since("/transactions/log_space_stalls"),
        since("/transactions/log_space_stall_ns") / 1_000_000,
        since("/checkpoint/throttle_ns/count"),
        count(&end, "/log/reserved_bytes_max") >> 10
    );
}
