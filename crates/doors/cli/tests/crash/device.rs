//! `kedge crash record --device`: programs that write to a block device, and a file system of the
//! kernel on one.

use crate::common::{Place, Run, needs_fuse};
use std::fs;
use std::process::Command;

/// Ends a test where there are no loop devices.
macro_rules! needs_loop {
    () => {
        needs_fuse!();
        if let Some(why) = kedge_crash::loops::missing() {
            return kedge_base::skip::note(&why);
        }
    };
}

fn record(place: &Place, options: &[&str], command: &[&str]) -> Run {
    let words = ["crash", "record", "--ack", "^saved", "-o", "run.kcr", "--device"];
    place.kedge(words.iter().chain(options).chain(&["--"]).chain(command).copied())
}

fn explore(place: &Place, model: &str, options: &[&str], check: &str) -> (i32, serde_json::Value) {
    let words = ["crash", "explore", "run.kcr", "--json", "--model", model, "--check", check];
    let run = place.kedge(words.iter().chain(options).copied());
    (run.code, serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err)))
}

/// Writes blocks without the page cache. After each block it writes the head, which holds the
/// number of blocks.
const PROGRAM: &str = r#"
import mmap, os, sys
f = os.open(os.environ["KEDGE_CRASH_DEVICE"], os.O_RDWR | os.O_DIRECT)
def put(at, size, byte):
    page = mmap.mmap(-1, size)
    page.write(byte * size)
    assert os.pwrite(f, page, at) == size
for n in range(1, 4):
    put(4096 * n, 4096, b"%d" % n)
    if "flush" in sys.argv:
        os.fsync(f)
    put(0, 512, b"%d" % n)
    os.fsync(f)
    print("saved", n, flush=True)
"#;

/// Checks that the device has all blocks that the head counts, and all that were promised.
const CHECK: &str = r#"
block() { dd if="$KEDGE_CRASH_DEVICE" bs=512 skip=$1 count=$2 status=none | tr '\0' 0; }
head=$(block 0 1 | tr -s 0-9)
case $head in [0123]) ;; *) echo the head is garbage; exit 1 ;; esac
n=1
while [ $n -le $head ]; do
    test "$(block $((8 * n)) 8 | tr -s 0-9)" = $n || { echo block $n of $head is not there; exit 1; }
    n=$((n + 1))
done
test $head -ge $KEDGE_ACKED_COUNT || { echo a promised block is not there; exit 1; }
"#;

fn place_with_programs() -> Place {
    let place = Place::new();
    fs::write(place.path("program.py"), PROGRAM).unwrap();
    fs::write(place.path("check.sh"), CHECK).unwrap();
    place
}

#[test]
fn a_head_written_before_its_data_is_flushed_is_found() {
    needs_loop!();
    let place = place_with_programs();
    let check = format!("sh {}", place.path("check.sh").display());
    let run = record(&place, &["1M"], &["python3", "program.py"]);
    assert_eq!((run.code, run.out.lines().count()), (0, 3), "{}", run.err);
    let (code, report) = explore(&place, "disk", &[], &check);
    assert_eq!(code, 1, "{report:#}");
    let causes = report["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{report:#}");
    let sentence = causes[0]["sentence"].as_str().unwrap();
    // The report names the whole write or a part of its page.
    assert!(sentence.contains("can lose ") && sentence.contains("write(4096 bytes at "), "{sentence}");
    assert!(sentence.contains("flush before #"), "{sentence}");
    assert_eq!(
        (&causes[0]["fixes"][0]["call"], &causes[0]["fixes"][0]["failing"]),
        (&"flush".into(), &0.into())
    );

    // The kept state can be examined: the device is a file in its directory.
    let state = causes[0]["state"].as_str().unwrap();
    let replay = ["crash", "replay", "run.kcr", "--state", state, "--keep", "kept", "--check", &check];
    let replay = place.kedge(replay);
    assert!(replay.code == 1 && replay.out.contains("is not there"), "{}", replay.out);
    assert_eq!(fs::metadata(place.path("kept/device")).unwrap().len(), 1 << 20);
}

#[test]
fn a_head_written_after_a_flush_is_accused_by_no_disk_that_keeps_sectors_whole() {
    needs_loop!();
    let place = place_with_programs();
    let check = format!("sh {}", place.path("check.sh").display());
    record(&place, &["1M"], &["python3", "program.py", "flush"]).ok();
    for (model, device) in [("disk", &[][..]), ("disk-4k", &[]), ("disk", &["--loop"])] {
        let (code, report) = explore(&place, model, device, &check);
        assert_eq!((code, &report["failing"]), (0, &0.into()), "{model}: {report:#}");
        assert_eq!(report["complete"], true, "{model}: {report:#}");
        assert!(report["states"].as_u64().unwrap() > 5, "{model}: {report:#}");
    }
    // Garbage in the head is found, because the head has no checksum.
    let (code, report) = explore(&place, "disk-garbage", &[], &check);
    assert_eq!(code, 1, "{report:#}");
    // The device was blank at the start, so states whose head is garbage before the first promise
    // are counted separately.
    assert!(report["failing_before_first_promise"].as_u64().unwrap() > 0, "{report:#}");
    let sentence = report["causes"][0]["sentence"].as_str().unwrap();
    assert!(sentence.contains("garbage") && sentence.contains("No flush prevents it"), "{sentence}");
}

/// Like [`PROGRAM`], with a checksum in the head. The heads are written to the first page or, with
/// the argument 2, to the first two pages in turn.
const SUMS: &str = r#"
import mmap, os, sys, zlib
f = os.open(os.environ["KEDGE_CRASH_DEVICE"], os.O_RDWR | os.O_DIRECT)
def put(at, data):
    page = mmap.mmap(-1, len(data))
    page.write(data)
    assert os.pwrite(f, page, at) == len(data)
    os.fsync(f)
for n in range(1, 4):
    count = b"%d" % n
    put(4096 * (1 + n), count * 4096)
    put(4096 * (n % int(sys.argv[1])), (b"%s %d" % (count, zlib.crc32(count))).ljust(512, b"\0"))
    print("saved", n, flush=True)
"#;

const SUMS_CHECK: &str = r#"
import os, zlib
device = open(os.environ["KEDGE_CRASH_DEVICE"], "rb").read()
def head(at):
    words = device[at:at + 512].rstrip(b"\0").split(b" ")
    is_whole = len(words) == 2 and words[1] == b"%d" % zlib.crc32(words[0])
    return int(words[0]) if is_whole else 0
newest = max(head(0), head(4096))
assert newest >= int(os.environ["KEDGE_ACKED_COUNT"]), "a promised head is not there"
for n in range(1, newest + 1):
    assert device[4096 * (1 + n):4096 * (2 + n)] == b"%d" % n * 4096, f"block {n} is not there"
"#;

#[test]
fn heads_with_checksums_in_two_places_survive_garbage_and_one_head_does_not() {
    needs_loop!();
    let place = Place::new();
    fs::write(place.path("sums.py"), SUMS).unwrap();
    fs::write(place.path("check.py"), SUMS_CHECK).unwrap();
    let check = format!("python3 {}", place.path("check.py").display());
    for (heads, code) in [("1", 1), ("2", 0)] {
        record(&place, &["1M"], &["python3", "sums.py", heads]).ok();
        let (found, report) = explore(&place, "disk-garbage", &["--jobs", "2", "--explain", "0"], &check);
        assert_eq!((found, &report["complete"]), (code, &true.into()), "{heads}: {report:#}");
        assert!(report["states"].as_u64().unwrap() > 5, "{heads}: {report:#}");
    }
}

/// Mounts ext4 on the device, makes files, and promises each file after its fsync.
const LOAD: &str = "mkdir m; mount -t ext4 -o noatime,$OPTION \"$KEDGE_CRASH_DEVICE\" m; cd m; \
    for n in 1 2; do echo $n > f$n; sync f$n; sync .; echo saved $n; done; mv f1 g; cd ..; umount m";

/// Mounts the device, looks for the promised files, and checks the file system.
const FSCK: &str = "set -e; mkdir m; mount -t ext4 -o noatime \"$KEDGE_CRASH_DEVICE\" m; \
    n=1; while [ $n -le $KEDGE_ACKED_COUNT ]; do \
    test -s m/f$n || { test $n = 1 && test -s m/g; } || { echo f$n is lost; exit 1; }; n=$((n + 1)); done; \
    umount m; e2fsck -fn \"$KEDGE_CRASH_DEVICE\" > out 2>&1 || { cat out; exit 1; }";

/// With barriers ext4 flushes the device before it relies on the order of writes. Without barriers
/// it does not, and a device that loses writes then loses promised files.
#[test]
fn ext4_keeps_its_promises_with_barriers_and_loses_files_without() {
    needs_loop!();
    let made = |place: &Place| {
        fs::File::create(place.path("base")).unwrap().set_len(16 << 20).unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        let mkfs = mkfs.args(["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        mkfs.arg(place.path("base")).status()
    };
    let place = Place::new();
    match made(&place) {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(e) => return kedge_base::skip::note(&format!("mkfs.ext4 (package e2fsprogs): {e}")),
    }
    let device = ["16M", "--from", "base"];
    for (option, code) in [("barrier", 0), ("nobarrier", 1)] {
        let load = format!("OPTION={option}; {LOAD}");
        record(&place, &device, &["sh", "-ec", &load]).ok();
        let limits = ["--loop", "--budget", "120", "--explain", "0"];
        let (found, report) = explore(&place, "disk-4k", &limits, FSCK);
        assert_eq!(found, code, "{option}: {report:#}");
        assert!(report["states"].as_u64().unwrap() >= 100, "{option}: {report:#}");
        if code == 1 {
            let failing = report["failing"].as_u64().unwrap();
            assert!(failing >= 10 && report["failing_before_first_promise"] == 0, "{report:#}");
        }
        fs::remove_dir(place.path("m")).unwrap();
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(place.path("").to_str().unwrap()), "what the command mounted is gone: {mounts}");
}

#[test]
fn what_cannot_be_done_with_a_device_is_refused() {
    needs_fuse!();
    let place = place_with_programs();
    place.run("crash record --device 1M --cd -o run.kcr -- true").refused(2, &["--device", "--cd"]);
    place.run("crash record -o run.kcr -- sh -c : ").ok();
    let mut files =
        place.kedge(["crash", "record", "-o", "files.kcr", "--", "sh", "-c", "> \"$KEDGE_DIR/f\""]);
    assert_eq!(files.code, 0, "{}", files.err);
    for (words, said) in [("--model disk", "model of devices"), ("--loop", "the recording of a device")] {
        files = place.run(&format!("crash explore files.kcr --check true {words}"));
        files.refused(2, &[said]);
    }
    needs_loop!();
    place.run("crash record --device 1000 -o run.kcr -- true").refused(1, &["multiple of 4096"]);
    fs::write(place.path("large"), vec![1; 8192]).unwrap();
    place
        .run("crash record --device 4096 --from large -o run.kcr -- true")
        .refused(1, &["large", "larger than the device"]);
    record(&place, &["1M"], &["python3", "program.py"]).ok();
    for (words, said) in [
        ("--check true --model posix", "disk-garbage"),
        ("--check-files", "--check"),
        ("--checker json", "--check"),
        ("--check true --again 1", "--again"),
    ] {
        place.run(&format!("crash explore run.kcr {words}")).refused(2, &[said]);
    }
    let attached = Command::new("losetup").arg("-a").output().unwrap();
    let attached = String::from_utf8_lossy(&attached.stdout).into_owned();
    assert!(!attached.contains(place.path("").to_str().unwrap()), "no device is left: {attached}");
}
