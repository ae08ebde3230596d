//! `kedge crash record --mappings`: programs that store through shared mappings.

use crate::common::{Place, Run, needs_fuse};
use kedge_crash::{Call, Event, Trace};
use std::fs;

const MODELS: [&str; 3] = ["posix", "ext4", "btrfs"];
/// The budget in distinct states. A check takes some milliseconds.
const BUDGET: &str = "200";

/// Records a program in Python that has a mapping of three pages of the file `m`, whose name and
/// size are durable.
fn record(place: &Place, options: &[&str], program: &str) -> Run {
    let start = "import mmap, os\n\
        f = os.open('m', os.O_RDWR | os.O_CREAT)\n\
        os.ftruncate(f, 12288)\n\
        d = os.open('.', os.O_RDONLY)\n\
        os.fsync(f)\n\
        os.fsync(d)\n\
        m = mmap.mmap(f, 12288)\n";
    fs::write(place.path("program.py"), format!("{start}{program}")).unwrap();
    let words = ["crash", "record", "--size", "64M", "--cd", "--timeout", "60s", "--ack", "^saved"];
    let program = place.path("program.py").display().to_string();
    place.kedge(words.into_iter().chain(options.iter().copied()).chain(["--", "python3", &program]))
}

fn explore(place: &Place, model: &str, check: &str) -> (i32, serde_json::Value) {
    let words = ["crash", "explore", "run.kcr", "--json", "--jobs", "2", "--budget", BUDGET];
    let words = words.into_iter().chain(["--max-failures", "1", "--explain", "0s", "--model", model]);
    let run = place.kedge(words.chain(["--check", check]));
    (run.code, serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err)))
}

fn trace(place: &Place) -> Trace {
    kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace
}

/// A log of two slots, each a page. The first byte of the first page is the number of the newest
/// record; it must not reach the disk before the record.
fn ring_log(between: &str) -> String {
    format!(
        "for n in range(1, 5):\n    \
             at = 4096 * (1 + n % 2)\n    \
             m[at:at + 4096] = bytes([n]) * 4096\n    \
             {between}\n    \
             m[0] = n\n    \
             m.flush(0, 4096)\n    \
             print('saved', n, flush=True)\n"
    )
}

/// The record that the number names is complete, and no older than the last promise.
const RING_CHECK: &str = "test $KEDGE_ACKED_COUNT = 0 && exit 0
    n=$(od -An -tu1 -N1 m | tr -d ' ')
    test $n -ge $KEDGE_ACKED_COUNT || exit 1
    test $(od -An -tu1 -v -w1 -j $((4096 * (1 + n % 2))) -N 4096 m | sort -u) = $n";

#[test]
fn a_mapped_log_that_commits_before_its_record_is_durable_is_found() {
    needs_fuse!();
    let place = Place::new();
    // Between the record and the number there is no call, or a call that orders nothing.
    for between in ["pass", "os.write(os.open('other', os.O_WRONLY | os.O_CREAT), b'x')"] {
        record(&place, &["--mappings"], &ring_log(between)).ok();
        for model in MODELS {
            let (code, report) = explore(&place, model, RING_CHECK);
            assert_eq!(code, 1, "{between}, {model}: {report:#}");
        }
    }
    record(&place, &["--mappings"], &ring_log("m.flush(at, 4096)")).ok();
    for model in MODELS {
        let (code, report) = explore(&place, model, RING_CHECK);
        assert_eq!((code, &report["failing"]), (0, &0.into()), "{model}: {report:#}");
    }
}

/// Only the bytes that changed are recorded, each before the next call of the program; and an msync
/// has its range.
#[test]
fn stores_are_recorded_before_the_next_call() {
    needs_fuse!();
    let place = Place::new();
    let program = "o = os.open('other', os.O_WRONLY | os.O_CREAT)\n\
        m[0:3] = b'one'\n\
        os.write(o, b'a')\n\
        m[0:3] = b'two'\n\
        m[8192] = 7\n\
        os.rename('other', 'renamed')\n\
        m[4097] = 8\n\
        m[4100] = 9\n\
        m.flush(4096, 4096)\n\
        m[1] = ord('o')\n\
        os.fsync(f)\n\
        print('saved', flush=True)\n";
    record(&place, &["--mappings"], program).ok();
    let is_wanted = |e: &&Event| e.errno == 0 && !matches!(e.call, Call::Process { .. });
    let trace = trace(&place);
    let events = trace.events.iter().skip(trace.start()).filter(is_wanted);
    let shown = events.map(|e| match &e.call {
        Call::Write { offset, data, mapped: true, .. } => format!("store {offset} {data:?}"),
        Call::Msync { ranges, .. } => format!("msync {ranges:?}"),
        call => call.name().to_owned(),
    });
    let shown: Vec<String> = shown.collect();
    let from = shown.iter().rposition(|call| call == "create").unwrap();
    let wanted = [
        "create",
        "store 0 [111, 110, 101]",
        "write",
        "store 0 [116, 119, 111]",
        "store 8192 [7]",
        "rename",
        "store 4097 [8, 0, 0, 9]",
        "msync [(4096, 8192)]",
        "store 1 [111]",
        "fsync",
        "mark",
        "end",
    ];
    assert_eq!(shown[from..], wanted.map(str::to_owned));
}

/// A word is set and cleared between two calls of the program. Without the option no crash state
/// has the word set.
#[test]
fn a_word_that_is_set_for_a_while_is_in_a_crash_state() {
    needs_fuse!();
    let place = Place::new();
    let program = "m[0] = 1\n\
        o = os.open('other', os.O_WRONLY | os.O_CREAT)\n\
        os.write(o, b'x')\n\
        os.fsync(o)\n\
        m[0] = 0\n\
        os.fsync(f)\n";
    let check = "test \"$(head -c 1 m | od -An -tu1 | tr -d ' ')\" != 1";
    let run = record(&place, &[], program);
    assert_eq!(explore(&place, "ext4", check).0, 0, "{}", run.err);
    let run = record(&place, &["--mappings"], program);
    assert_eq!(run.code, 0, "{}", run.err);
    let (code, report) = explore(&place, "ext4", check);
    assert_eq!(code, 1, "{report:#}");
    // The recorder suggests the option where it would help.
    let stores = "m[0] = 1\n";
    assert!(record(&place, &[], stores).err.contains("--mappings"));
    assert!(!record(&place, &["--mappings"], stores).err.contains("mapped"));
}

/// An msync does not make a page outside its range durable, even if that page is recorded already.
#[test]
fn an_msync_of_other_pages_is_no_promise() {
    needs_fuse!();
    let place = Place::new();
    let check = "test -z \"$KEDGE_ACKED\" || test \"$(head -c 1 m)\" = 1";
    for (flush, code) in [("m.flush(4096, 4096)", 1), ("m.flush(0, 4096)", 0), ("m.flush()", 0)] {
        let program = format!(
            "m[0] = ord('1')\n\
             os.write(os.open('other', os.O_WRONLY | os.O_CREAT), b'x')\n\
             m[4096] = 1\n\
             {flush}\n\
             print('saved', flush=True)\n"
        );
        record(&place, &["--mappings"], &program).ok();
        for model in MODELS {
            let (found, report) = explore(&place, model, check);
            assert_eq!(found, code, "{flush}, {model}: {report:#}");
        }
    }
}

/// The recorder opens mapped files by inode number. The program sees no trace of this, and a
/// removed file releases its space.
#[test]
fn the_recorder_leaves_no_trace_in_the_directory() {
    needs_fuse!();
    let place = Place::new();
    let program = "import subprocess\n\
        assert os.listdir('.') == ['m'], os.listdir('.')\n\
        assert os.stat('.').st_nlink == 2\n\
        for name in ['.kedge-mapped', '.kedge-mapped/7']:\n    \
            for call in [os.mkdir, os.unlink, os.rmdir]:\n        \
                try:\n            \
                    call(name)\n            \
                    assert False, name\n        \
                except OSError:\n            \
                    pass\n\
        for n in range(20):\n    \
            big = os.open('big', os.O_RDWR | os.O_CREAT)\n    \
            os.ftruncate(big, 16 << 20)\n    \
            b = mmap.mmap(big, 16 << 20)\n    \
            b[:] = bytes([n + 1]) * (16 << 20)\n    \
            os.write(f, b'x')\n    \
            b.close()\n    \
            os.close(big)\n    \
            os.unlink('big')\n\
        print('saved', flush=True)\n";
    let run = record(&place, &["--mappings"], program);
    assert_eq!(run.ok(), "saved\n");
}

const MANY_THREADS_C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILES = 2, BORN = 6, ROUNDS = 10, MAPPED = 4 * 4096 };
static int born;

static void *work(void *arg) {
    long me = (long)arg;
    unsigned seed = me + 1 + 1000 * born;
    char shared[32], own[32], moved[32];
    snprintf(shared, sizeof shared, "shared%ld", me % FILES);
    snprintf(own, sizeof own, "own%ld", me);
    snprintf(moved, sizeof moved, "moved%ld", me);
    int fd = open(shared, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, 16 * 4096)) return "open";
    char *map = mmap(0, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return "mmap";
    for (int n = 0; n < ROUNDS; n++) {
        /* Each thread has a byte of each page, so the result does not depend on the order. */
        for (int page = 0; page < 4; page++) map[page * 4096 + me] = born * ROUNDS + n + 1;
        int failed = 0, other;
        switch (rand_r(&seed) % 9) {
        case 0: failed = fsync(fd); break;
        case 1: failed = msync(map + 4096, 4096, MS_SYNC); break;
        case 2: failed = pwrite(fd, &(char){n}, 1, 64 + me) != 1; break;
        /* Beyond the mapping, so that no store meets the end of the file. */
        case 3: failed = ftruncate(fd, (8 + rand_r(&seed) % 8) * 4096); break;
        case 4:
            other = open(own, O_RDWR | O_CREAT | O_TRUNC, 0644);
            failed = other < 0 || write(other, own, 4) != 4 || close(other) || rename(own, moved);
            break;
        case 5:
            failed = munmap(map, MAPPED);
            map = mmap(0, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            failed |= map == MAP_FAILED;
            break;
        case 6: failed = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 6 * 4096, 4096); break;
        case 7: failed = fdatasync(fd); break;
        default: failed = msync(map, MAPPED, MS_SYNC); break;
        }
        if (failed) return "a call";
    }
    return munmap(map, MAPPED) || close(fd) ? "close" : 0;
}

/* The first call of a new thread finds others of its process in munmap. */
int main(int argc, char **argv) {
    int count = atoi(argv[1]);
    pthread_t threads[count];
    void *failed = 0;
    for (born = 0; born < BORN; born++) {
        for (long n = 0; n < count; n++)
            if (pthread_create(&threads[n], 0, work, (void *)n)) return 2;
        for (int n = 0; n < count; n++) {
            void *result;
            pthread_join(threads[n], &result);
            if (result) failed = result;
        }
    }
    if (failed) { perror(failed); return 1; }
    return 0;
}
"#;

/// Threads make every call for which the recorder holds pages back, while other threads write these
/// pages. No thread waits forever, and the last state of the recording is what the program left.
fn many_threads_end(threads: &str, options: &[&str]) {
    let place = Place::new();
    fs::write(place.path("many.c"), MANY_THREADS_C).unwrap();
    let mut cc = place.command("cc");
    cc.args(["-O1", "-pthread", "-o", "many", "many.c"]);
    crate::common::tool(cc, "gcc");
    let many = place.path("many").display().to_string();
    let left = place.path("left").display().to_string();
    let script = format!("{many} {threads} && sync . && cp -a . {left}");
    let words = ["crash", "record", "--size", "64M", "--cd", "--timeout", "120s"];
    let words = words.into_iter().chain(options.iter().copied());
    let run = place.kedge(words.chain(["--", "sh", "-ec", &script]));
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let trace = trace(&place);
    let has_ranges = trace.events.iter().any(|e| matches!(e.call, Call::Msync { .. }));
    assert_eq!(has_ranges, options.contains(&"--mappings"));
    let is_many = |e: &Event| matches!(&e.call, Call::Process { command, .. } if command.contains("many "));
    assert!(trace.events.iter().any(is_many), "the command line is recorded");
    place.run(&format!("crash replay run.kcr --state {} --keep found", trace.events.len())).ok();
    let mut diff = place.command("diff");
    let output = diff.args(["-r", "left", "found"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn many_threads_store_and_change_the_same_files() {
    needs_fuse!();
    many_threads_end("8", &["--mappings"]);
}

#[test]
fn many_threads_with_mappings_end_without_the_option_too() {
    needs_fuse!();
    many_threads_end("8", &[]);
}

#[test]
fn more_threads_than_may_collect_end() {
    needs_fuse!();
    many_threads_end("24", &["--mappings"]);
}
