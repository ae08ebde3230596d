//! What the transport costs: common sequences against the file system in memory, in microseconds and in requests, for
//! the choices that [`FuseOptions`] leaves open. `cargo bench -p kedge-fuse --bench requests`

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

fn main() {
    let base = both().into_iter().next().expect("FUSE is wanted");
    let off = |f: fn(&mut FuseOptions)| {
        let mut options = base.clone();
        f(&mut options);
        options
    };
    for (name, options) in [
        ("defaults", base.clone()),
        ("no writeback cache", off(|o| o.writeback_cache = false)),
        ("opens and releases", off(|o| o.no_open = false)),
        ("kernel kills privileges", off(|o| o.handle_killpriv = false)),
        ("one channel", off(|o| o.clone_channels = false)),
        ("2 workers", off(|o| o.workers = Some(2))),
        ("plain fuse", off(|o| o.privileged = Some(false))),
        ("plain fuse, opens", off(|o| (o.privileged, o.no_open) = (Some(false), false))),
    ] {
        println!("{name}");
        run(&options);
    }
}

fn run(options: &FuseOptions) {
    let m = Mounted::new(options);
    let clock = SystemClock::default();
    let file = |i: usize| m.path(&format!("d{}/f{i}", i % DIRS));
    for d in 0..DIRS {
        fs::create_dir(m.path(&format!("d{d}"))).expect("mkdir");
    }
    fs::write(m.path("x"), "").expect("write");
    File::open(m.path("x")).expect("open");
    let measure = |what: &str, count: usize, body: &mut dyn FnMut()| {
        let (before, start) = (m.control("system.kedgefs.stats"), clock.monotonic());
        body();
        let took = clock.monotonic() - start;
        let after = m.control("system.kedgefs.stats");
        let per = |n: u64| format!("{:.2}", n as f64 / count as f64);
        let requests: Vec<String> = counts(&after)
            .into_iter()
            .map(|(op, n)| (op, n - counts(&before).iter().find(|(o, _)| *o == op).map_or(0, |(_, n)| *n)))
            .filter(|(_, n)| *n * 100 > count as u64)
            .map(|(op, n)| format!("{op} {}", per(n)))
            .collect();
        println!("  {what:<22} {:7.1} us  {}", took.as_secs_f64() * 1e6 / count as f64, requests.join(", "));
    };
    measure("create+write+close", FILES, &mut || {
        for i in 0..FILES {
            File::create(file(i)).and_then(|mut f| f.write_all(&[1; 4096])).expect("create");
        }
    });
    measure("open+read+close", FILES, &mut || {
        for i in 0..FILES {
            fs::read(file(i)).expect("read");
        }
    });
    if fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        measure("cold walk", FILES, &mut || {
            for d in 0..DIRS {
                for entry in fs::read_dir(m.path(&format!("d{d}"))).expect("readdir") {
                    entry.and_then(|e| e.metadata()).expect("stat");
                }
            }
        });
    }
    let mut f = File::create(m.path("w")).expect("create");
    measure("write 4 KiB", 20_000, &mut || {
        for _ in 0..20_000 {
            f.write_all(&[1; 4096]).expect("write");
        }
    });
    measure("fsync after write", 2000, &mut || {
        for _ in 0..2000 {
            f.write_all(&[1; 100]).and_then(|()| f.sync_all()).expect("fsync");
        }
    });
    measure("unlink", FILES, &mut || {
        for i in 0..FILES {
            fs::remove_file(file(i)).expect("unlink");
        }
    });
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
