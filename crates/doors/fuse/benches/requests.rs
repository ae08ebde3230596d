//! Measures the cost of the transport: common sequences on the file system in memory, in
//! microseconds and in requests, for different [`FuseOptions`]. `cargo bench -p kedge-fuse --bench
//! requests [-- CHOICE]`

#[path = "../tests/memfs/mod.rs"]
mod memfs;
#[path = "../tests/mounted/mod.rs"]
mod mounted;

use kedge_base::{Clock, SystemClock};
use kedge_fuse::FuseOptions;
use mounted::{Mounted, both};
use std::fs::{self, File};
use std::io::Write;

const FILES: usize = 4000;
const DIRS: usize = 40;
const WRITES: usize = 20_000;
const FSYNCS: usize = 2000;
const ROUNDS: usize = 5;

fn main() {
    let base = both().into_iter().next().expect("FUSE is wanted");
    let off = |f: fn(&mut FuseOptions)| {
        let mut options = base.clone();
        f(&mut options);
        options
    };
    let choices = [
        ("defaults", base.clone()),
        ("writeback cache", off(|o| o.writeback_cache = true)),
        ("opens and releases", off(|o| o.no_open = false)),
        ("kernel kills privileges", off(|o| o.handle_killpriv = false)),
        ("one channel", off(|o| o.clone_channels = false)),
        ("2 workers", off(|o| o.workers = Some(2))),
        ("3 workers", off(|o| o.workers = Some(3))),
        ("plain fuse", off(|o| o.privileged = Some(false))),
        ("plain fuse, opens", off(|o| (o.privileged, o.no_open) = (Some(false), false))),
    ];
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let choices: Vec<_> = choices.into_iter().filter(|(name, _)| name.contains(&wanted)).collect();
    let mut best: Vec<Vec<Measured>> = choices.iter().map(|_| Vec::new()).collect();
    // The choices alternate, and the best round counts, because the load of the machine varies.
    for _ in 0..ROUNDS {
        for ((_, options), best) in choices.iter().zip(&mut best) {
            let round = run(options);
            if best.is_empty() {
                *best = round;
            } else {
                for (best, now) in best.iter_mut().zip(round).filter(|(best, now)| now.micros < best.micros) {
                    *best = now;
                }
            }
        }
    }
    for ((name, _), best) in choices.iter().zip(&best) {
        println!("{name}");
        for m in best {
            println!("  {:<22} {:7.1} us  {}", m.what, m.micros, m.requests);
        }
    }
}

/// The result of one sequence, per file or write.
struct Measured {
    what: &'static str,
    micros: f64,
    requests: String,
}

fn measure(m: &Mounted, what: &'static str, count: usize, mut body: impl FnMut()) -> Measured {
    let clock = SystemClock::default();
    let (before, start) = (m.control("system.kedgefs.stats"), clock.monotonic());
    body();
    let took = clock.since(start);
    let after = m.control("system.kedgefs.stats");
    let requests: Vec<String> = counts(&after)
        .into_iter()
        .map(|(op, n)| (op, n - counts(&before).iter().find(|(o, _)| *o == op).map_or(0, |(_, n)| *n)))
        .filter(|(_, n)| *n * 100 > count as u64)
        .map(|(op, n)| format!("{op} {:.2}", n as f64 / count as f64))
        .collect();
    Measured { what, micros: took.as_secs_f64() * 1e6 / count as f64, requests: requests.join(", ") }
}

fn run(options: &FuseOptions) -> Vec<Measured> {
    let m = Mounted::new(options);
    let file = |i: usize| m.path(&format!("d{}/f{i}", i % DIRS));
    for d in 0..DIRS {
        fs::create_dir(m.path(&format!("d{d}"))).expect("mkdir");
    }
    fs::write(m.path("x"), "").expect("write");
    File::open(m.path("x")).expect("open");
    let mut results = Vec::new();
    results.push(measure(&m, "create+write+close", FILES, || {
        for i in 0..FILES {
            File::create(file(i)).and_then(|mut f| f.write_all(&[1; 4096])).expect("create");
        }
    }));
    results.push(measure(&m, "open+read+close", FILES, || {
        for i in 0..FILES {
            fs::read(file(i)).expect("read");
        }
    }));
    if fs::write("/proc/sys/vm/drop_caches", "2").is_ok() {
        results.push(measure(&m, "cold walk", FILES, || {
            for d in 0..DIRS {
                for entry in fs::read_dir(m.path(&format!("d{d}"))).expect("readdir") {
                    let stat = entry.and_then(|e| Ok(rustix::fs::stat(e.path())?));
                    stat.expect("stat");
                }
            }
        }));
    }
    let mut f = File::create(m.path("w")).expect("create");
    results.push(measure(&m, "write 4 KiB", WRITES, || {
        for _ in 0..WRITES {
            f.write_all(&[1; 4096]).expect("write");
        }
    }));
    results.push(measure(&m, "fsync after write", FSYNCS, || {
        for _ in 0..FSYNCS {
            f.write_all(&[1; 100]).and_then(|()| f.sync_all()).expect("fsync");
        }
    }));
    results.push(measure(&m, "create on 4 threads", FILES, || {
        std::thread::scope(|scope| {
            for t in 0..4 {
                let m = &m;
                scope.spawn(move || {
                    for i in 0..FILES / 4 {
                        let path = m.path(&format!("d{t}/t{i}"));
                        File::create(path).and_then(|mut f| f.write_all(&[1; 4096])).expect("create");
                    }
                });
            }
        });
    }));
    results.push(measure(&m, "unlink", FILES, || {
        for i in 0..FILES {
            fs::remove_file(file(i)).expect("unlink");
        }
    }));
    results
}

fn counts(stats: &str) -> Vec<(&str, u64)> {
    let requests =
        stats.split("\"requests\":{").nth(1).and_then(|s| s.split('}').next()).expect("request counters");
    requests
        .split(',')
        .filter_map(|pair| pair.split_once(':'))
        .map(|(op, n)| (op.trim_matches('"'), n.parse().expect("a number")))
        .collect()
}
