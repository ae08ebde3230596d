//! The memory of the serving process on the real mount: at most its budget and a fixed overhead,
//! whatever the number of files and the amount of data written.
//!
//! The overhead consists of threads, the C library's heaps, buffers in flight, dirty tree nodes
//! until the next checkpoint, and the state of files besides their pages.
//!
//! `KEDGE_FULL=1` makes a million files instead of 60,000. The figures are the kernel's: present
//! and peak resident memory.

use crate::common::{Place, full, needs_fuse, no_fuse, until};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

const MIB: u64 = 1 << 20;
/// The most memory that a process may need beyond its `cache_size`.
const OVERHEAD: u64 = 128 * MIB;
const SMALL_CACHE: u64 = 64 * MIB;
const DIRS: u32 = 1000;

/// Resident bytes of the process that serves `mnt`: (now, peak).
fn memory(place: &Place) -> (u64, u64) {
    let pid = place.info("mnt")["mount"]["pid"].as_i64().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    (field("VmRSS:"), field("VmHWM:"))
}

#[track_caller]
fn check(place: &Place, when: &str, limit: u64) {
    let (now, most) = memory(place);
    println!("{when}: {} MiB resident, {} MiB at most", now / MIB, most / MIB);
    assert!(most <= limit, "{when}: {} MiB at most, {} are allowed", most / MIB, limit / MIB);
    assert!(now <= most);
}

fn name(number: u32) -> String {
    format!("dir{:04}/a file with some name {number:07}", number % DIRS)
}

/// Lists and stats every entry, as find(1) with -size does.
fn walk(dir: &Path) -> u32 {
    let mut found = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = fs::symlink_metadata(entry.path()).unwrap();
        found += 1;
        if meta.is_dir() {
            found += walk(&entry.path());
        }
    }
    found
}

fn many_files(options: &str, files: u32, limit: u64) {
    let place = Place::new();
    place.run(&format!("mount --create 8G{options} disk.kedge mnt")).ok();
    for dir in 0..DIRS {
        fs::create_dir(place.path(&format!("mnt/dir{dir:04}"))).unwrap();
    }
    for number in 0..files {
        let mut file = File::create_new(place.path("mnt").join(name(number))).unwrap();
        if number % 20 == 0 {
            file.write_all(&number.to_le_bytes()).unwrap();
        }
    }
    let what = format!("{files} files{options}");
    check(&place, &format!("{what}, made"), limit);
    assert_eq!(walk(&place.path("mnt")), files + DIRS);
    check(&place, &format!("{what}, walked"), limit);
    // Continue with a new serving process and with empty kernel caches.
    place.remount("disk.kedge", options);
    assert_eq!(walk(&place.path("mnt")), files + DIRS);
    check(&place, &format!("{what}, walked after a remount"), limit);
    for number in (0..files).step_by(20) {
        assert_eq!(fs::read(place.path("mnt").join(name(number))).unwrap(), number.to_le_bytes());
    }
    check(&place, &format!("{what}, read"), limit);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_million_files_with_a_large_cache() {
    if !no_fuse() {
        // Without KEDGE_FULL there are fewer files than below, and their state fits into this
        // cache.
        let (files, limit) = if full() { (1_000_000, 512 * MIB) } else { (40_000, 256 * MIB) };
        many_files(" --cache-size 256M", files, limit);
    }
}

#[test]
fn a_million_files_with_a_small_cache() {
    if !no_fuse() {
        match full() {
            true => many_files(" --cache-size 64M", 1_000_000, SMALL_CACHE + OVERHEAD),
            // About 48 MiB are used. If each file needed 600 bytes more, the limit would be
            // exceeded.
            false => many_files(" --cache-size 16M", 60_000, 80 * MIB),
        }
    }
}

const STREAM: u64 = 512 * MIB;

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(MIB as usize / 8)
}

fn stream(options: &str, limit: u64) {
    let place = Place::after(&format!("mount --create 2G{options} disk.kedge mnt"));
    let path = place.path("mnt/stream");
    let mut file = File::create_new(&path).unwrap();
    for number in 0..STREAM / MIB {
        file.write_all(&block(number)).unwrap();
    }
    check(&place, &format!("{options}: written"), limit);
    file.sync_all().unwrap();
    check(&place, &format!("{options}: synced"), limit);
    drop(file);
    // Write over the existing data, which takes no new blocks.
    let file = File::options().write(true).open(&path).unwrap();
    for number in 0..STREAM / MIB {
        std::os::unix::fs::FileExt::write_all_at(&file, &block(number), number * MIB).unwrap();
    }
    file.sync_all().unwrap();
    check(&place, &format!("{options}: written over"), limit);
    // Drop the kernel's pages, so that the reads reach the server.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    drop(file);
    let mut file = File::open(&path).unwrap();
    let mut bytes = vec![0; MIB as usize];
    for number in 0..STREAM / MIB {
        file.read_exact(&mut bytes).unwrap();
        assert!(bytes == block(number), "MiB {number} has other bytes");
    }
    drop(file);
    check(&place, &format!("{options}: read"), limit);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_large_file_streams_through_a_small_cache() {
    if !no_fuse() {
        stream(" --cache-size 64M", SMALL_CACHE + OVERHEAD);
    }
}

#[test]
fn a_large_file_streams_through_a_small_cache_below_a_writeback_cache() {
    if !no_fuse() {
        stream(" -o writeback_cache --cache-size 64M", SMALL_CACHE + OVERHEAD);
    }
}

/// A control group that reads more than its memory holds, so that tasks of the machine wait for
/// memory, until the file of the second argument exists. Exit code 77 means that no such group can
/// be made or that the kernel has no PSI.
const SHORT_OF_MEMORY: &str = r#"
import errno, mmap, os, random, sys, time
old, new = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
try:
    open("/proc/pressure/memory").read()
    version_1 = os.path.exists(old + "/memory.limit_in_bytes")
    top, limit = (old, "memory.limit_in_bytes") if version_1 else (new, "memory.max")
    group = f"{top}/kedge-test-{os.getpid()}"
    os.mkdir(group)
except OSError:
    sys.exit(77)
try:
    open(f"{group}/{limit}", "w").write(str(24 << 20))
except OSError:
    os.rmdir(group)
    sys.exit(77)
with open(sys.argv[1], "wb") as file:
    file.write(os.urandom(40 << 20))
    os.fsync(file.fileno())
fd = os.open(sys.argv[1], os.O_RDONLY)
# What is read from now on is the group's.
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
for _ in range(3):
    if os.fork() == 0:
        pages = mmap.mmap(fd, 40 << 20, mmap.MAP_SHARED, mmap.PROT_READ)
        while not os.path.exists(sys.argv[2]):
            for _ in range(1000):
                pages[random.randrange(40 << 20)]
        os._exit(0)
for _ in range(3):
    os.wait()
open(f"{top}/cgroup.procs", "w").write(str(os.getpid()))
# A process that has ended leaves the group a moment later than its parent learns of the end.
for left in reversed(range(6000)):
    try:
        os.rmdir(group)
        break
    except OSError as e:
        if e.errno != errno.EBUSY or left == 0:
            raise
        time.sleep(0.01)
"#;

#[test]
fn a_cache_is_given_back_while_memory_is_short() {
    needs_fuse!();
    let place = Place::after("mount --create 1G --cache-size 512M disk.kedge mnt");
    let bytes = block(7);
    let cache = |key: &str| {
        let stats = place.kedge(["stats", "--json", "mnt"]).ok();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["cache"][key].as_u64().unwrap()
    };
    assert_eq!(cache("pages_max") * 4096, 192 * MIB);
    // Fill the cache again if another program has made memory short meanwhile.
    let mut before = (0, 0);
    until("the cache is full", || {
        for number in 0..160 {
            fs::write(place.path(&format!("mnt/f{number}")), &bytes).unwrap();
        }
        rustix::fs::sync();
        before = (cache("pages") * 4096, memory(&place).0);
        before.0 > 100 * MIB && before.1 > 100 * MIB
    });
    let given_back = cache("times_given_back");
    let enough = place.path("enough");
    let mut hog = place.command("python3");
    hog.args(["-c", SHORT_OF_MEMORY]).arg(place.path("hog")).arg(&enough);
    let mut hog = hog.spawn().unwrap();
    let (mut after, mut ended) = (before, None);
    until("memory is given back", || {
        after = (cache("pages") * 4096, memory(&place).0);
        ended = hog.try_wait().unwrap();
        let is_less = after.0 <= before.0 / 4 * 3 && after.1 <= before.1 / 4 * 3;
        ended.is_some() || cache("times_given_back") > given_back && is_less
    });
    if ended.is_some_and(|status| status.code() == Some(77)) {
        return kedge_base::skip::note("no control group for memory, or no PSI");
    }
    assert_eq!(ended, None, "the hog does not end by itself");
    fs::write(enough, b"").unwrap();
    assert!(hog.wait().unwrap().success());
    println!(
        "{} and {} MiB of pages and in all, then {} and {}",
        before.0 / MIB,
        before.1 / MIB,
        after.0 / MIB,
        after.1 / MIB
    );
    for number in 0..160 {
        assert!(fs::read(place.path(&format!("mnt/f{number}"))).unwrap() == bytes, "f{number}");
    }
    place.unmount_and_check("disk.kedge");
}
