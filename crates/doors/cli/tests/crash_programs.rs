//! `kedge crash` for programs that make their calls in other ways: through io_uring, from many
//! threads, in a container. A planted bug of each kind is found, and the program without the bug is
//! not accused.

#![allow(clippy::unwrap_used)]

mod common;
use common::{Place, Run, needs_fuse};
use kedge_crash::{Call, Event};
use std::collections::BTreeSet;
use std::fs;

const MODELS: [&str; 2] = ["posix", "ext4"];
/// The budget in distinct states. A check takes some milliseconds.
const BUDGET: &str = "100";

/// Records a command that runs in the directory.
fn record(place: &Place, options: &[&str], command: &[&str]) -> Run {
    let words = ["crash", "record", "--size", "64M", "--cd", "--timeout", "60s", "--ack", "^saved"];
    place.kedge(words.iter().chain(options).chain(&["--"]).chain(command).copied())
}

fn explore(place: &Place, model: &str, check: &str) -> (i32, serde_json::Value) {
    let words = ["crash", "explore", "run.kcr", "--json", "--jobs", "2", "--budget", BUDGET];
    let words = words.into_iter().chain(["--max-failures", "1", "--model", model, "--check", check]);
    let run = place.kedge(words);
    (run.code, serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err)))
}

/// The calls that the program made, without notes of the recorder.
fn calls(place: &Place) -> Vec<Event> {
    let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
    let start = trace.start();
    trace.events.into_iter().skip(start).filter(|e| e.errno == 0 && !e.call.is_note()).collect()
}

/// Asserts that a check fails under each model, and that the report names this call as a fix.
#[track_caller]
fn is_found(place: &Place, check: &str, call: &str) {
    for model in MODELS {
        let (code, report) = explore(place, model, check);
        assert_eq!(code, 1, "{model}: {report:#}");
        let causes = report["causes"].as_array().unwrap();
        let fixes = causes.iter().flat_map(|cause| cause["fixes"].as_array().unwrap());
        let fixes: Vec<&str> = fixes.filter_map(|fix| fix["call"].as_str()).collect();
        assert!(fixes.contains(&call), "{model}: {call} is not in {fixes:?}: {report:#}");
    }
}

#[track_caller]
fn is_not_accused(place: &Place, check: &str) {
    for model in MODELS {
        let (code, report) = explore(place, model, check);
        assert_eq!((code, &report["failing"]), (0, &0.into()), "{model}: {report:#}");
        assert!(report["states"].as_u64().unwrap() > 10, "{model}: {report:#}");
    }
}

fn compile(place: &Place, name: &str, text: &str) -> String {
    fs::write(place.path(&format!("{name}.c")), text).unwrap();
    let mut cc = place.command("cc");
    cc.args(["-O1", "-g", "-pthread", "-o", name, &format!("{name}.c")]);
    common::tool(cc, "gcc");
    place.path(name).display().to_string()
}

/// Saves a file three times: write, fsync, rename and the directory's fsync are one chain of linked
/// requests in a ring. With an argument the chain lacks the first fsync.
const RING_C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct io_uring_params params;
static char *sq, *cq;
static struct io_uring_sqe *entries;
static unsigned count;

static struct io_uring_sqe *next(int opcode, int fd) {
    struct io_uring_sqe *entry = &entries[count++];
    memset(entry, 0, sizeof *entry);
    entry->opcode = opcode;
    entry->fd = fd;
    entry->flags = IOSQE_IO_LINK;
    return entry;
}

/* Submits the chain and waits for all of it. */
static int run(int ring) {
    unsigned *tail = (unsigned *)(sq + params.sq_off.tail), mask = params.sq_entries - 1;
    unsigned *head = (unsigned *)(cq + params.cq_off.head);
    entries[count - 1].flags = 0;
    for (unsigned n = 0; n < count; n++) ((unsigned *)(sq + params.sq_off.array))[(*tail + n) & mask] = n;
    __atomic_store_n(tail, *tail + count, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, count, count, IORING_ENTER_GETEVENTS, 0, 0) != (long)count) return 1;
    struct io_uring_cqe *done = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
    for (; count > 0; count--, __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE))
        if (done[*head & (params.cq_entries - 1)].res < 0) return 1;
    return 0;
}

int main(int argc, char **argv) {
    int ring = syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0) return 77;
    size_t size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    size_t array = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    sq = cq = mmap(0, size > array ? size : array, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(0, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (!(params.features & IORING_FEAT_SINGLE_MMAP) || sq == MAP_FAILED || entries == MAP_FAILED) return 2;
    int dir = open(".", O_RDONLY);
    for (char n = '1'; n <= '3'; n++) {
        int file = open("doc.tmp", O_WRONLY | O_CREAT | O_TRUNC, 0644);
        struct io_uring_sqe *entry = next(IORING_OP_WRITE, file);
        entry->addr = (uintptr_t)&n;
        entry->len = 1;
        if (argc == 1) next(IORING_OP_FSYNC, file);
        entry = next(IORING_OP_RENAMEAT, AT_FDCWD);
        entry->addr = (uintptr_t) "doc.tmp";
        entry->len = AT_FDCWD;
        entry->addr2 = (uintptr_t) "doc";
        next(IORING_OP_FSYNC, dir);
        if (file < 0 || run(ring) || close(file)) { perror("the ring"); return 1; }
        printf("saved %c\n", n);
        fflush(stdout);
    }
    return 0;
}
"#;

#[test]
fn a_missing_fsync_in_a_ring_is_found_and_a_whole_chain_is_not_accused() {
    needs_fuse!();
    let place = Place::new();
    let ring = compile(&place, "ring", RING_C);
    let check =
        "n=$(cat doc | tr '\\0' 0); test $KEDGE_ACKED_COUNT = 0 || test \"$n\" -ge $KEDGE_ACKED_COUNT";
    let run = record(&place, &["--backtrace"], &[&ring]);
    if run.code == 77 {
        return kedge_base::skip::note("io_uring is off: sysctl kernel.io_uring_disabled=0");
    }
    assert_eq!(run.out, "saved 1\nsaved 2\nsaved 3\n", "{}", run.err);
    is_not_accused(&place, check);
    // The kernel's threads make the calls, in the program's name. They have no stack, so no caller
    // is named.
    let calls = calls(&place);
    let named = |name: &str| calls.iter().filter(|e| e.call.name() == name).collect::<Vec<_>>();
    for (name, count) in [("write", 3), ("fsync", 6), ("rename", 3)] {
        assert_eq!(named(name).len(), count, "{name}: {calls:?}");
    }
    let program = named("create")[0].pid;
    assert!(calls.iter().all(|e| e.pid == program), "{calls:?}");
    assert!(named("rename").iter().all(|e| e.stack.is_empty()), "{calls:?}");

    record(&place, &[], &[&ring, "without"]).ok();
    is_found(&place, check, "fsync(\"doc.tmp\")");
}

/// Each of 64 threads writes a file of its own, makes the file and its name durable, and promises
/// it, all at the same time. With an argument, the thread of this number leaves its fsync out.
const THREADS_C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 64 };
static pthread_barrier_t start;
static long wrong = -1;
static int dir;

static void *work(void *arg) {
    long me = (long)arg;
    char name[16], line[16];
    snprintf(name, sizeof name, "f%ld", me);
    int length = snprintf(line, sizeof line, "saved %ld\n", me);
    pthread_barrier_wait(&start);
    int file = open(name, O_WRONLY | O_CREAT, 0644);
    if (file < 0 || write(file, "whole\n", 6) != 6) return "write";
    if (me != wrong && fsync(file)) return "fsync";
    if (fsync(dir) || write(1, line, length) != length || close(file)) return "promise";
    return 0;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc > 1) wrong = atol(argv[1]);
    dir = open(".", O_RDONLY);
    if (dir < 0 || pthread_barrier_init(&start, 0, THREADS)) return 2;
    for (long n = 0; n < THREADS; n++)
        if (pthread_create(&threads[n], 0, work, (void *)n)) return 2;
    for (int n = 0; n < THREADS; n++) {
        void *failed;
        pthread_join(threads[n], &failed);
        if (failed) { perror(failed); return 1; }
    }
    return 0;
}
"#;

#[test]
fn one_thread_of_64_that_forgets_its_fsync_is_found() {
    needs_fuse!();
    let place = Place::new();
    let program = compile(&place, "threads", THREADS_C);
    let check = "files=$(echo \"$KEDGE_ACKED\" | sed -n 's/saved /f/p'); test -z \"$files\" || \
        test $(cat $files | grep -cx whole) = $KEDGE_ACKED_COUNT";
    let run = record(&place, &[], &[&program]);
    assert_eq!((run.code, run.out.lines().count()), (0, 64), "{}", run.err);
    is_not_accused(&place, check);
    let writes = calls(&place).into_iter().filter(|e| matches!(e.call, Call::Write { .. }));
    assert_eq!(writes.map(|e| e.tid).collect::<BTreeSet<_>>().len(), 64, "each thread has made a write");

    record(&place, &[], &[&program, "37"]).ok();
    is_found(&place, check, "fsync(\"f37\")");
}

/// In a container the directory, the user and the processes have other names and numbers.
#[test]
fn a_program_in_a_container_is_recorded_like_any_other() {
    needs_fuse!();
    let place = Place::new();
    let sandbox = "exec bwrap --unshare-all --ro-bind / / --bind \"$KEDGE_DIR\" /mnt --dev /dev --proc /proc \
        --chdir /mnt env -i sh -ec";
    let save = |sync: &str| {
        let save = format!("echo $n > doc.tmp; {sync}; mv doc.tmp doc; sync .; echo saved $n");
        // In the container the user is root, and the shell is the first or second process.
        format!("{sandbox} 'test $$ -lt 9; for n in 1 2 3; do {save}; done; echo all > .kedge-mark'")
    };
    let check = "n=$(cat doc | tr '\\0' 0); test $KEDGE_ACKED_COUNT = 0 || \
        test $n -ge $(echo \"$KEDGE_ACKED\" | grep -c saved)";
    let run = record(&place, &[], &["sh", "-c", &save("sync doc.tmp")]);
    assert_eq!(run.out, "saved 1\nsaved 2\nsaved 3\n", "{}", run.err);
    assert!(run.err.contains("4 marks"), "{}", run.err);
    is_not_accused(&place, check);
    // The recording has the numbers that the processes have on this machine.
    assert!(calls(&place).iter().all(|e| e.pid >= 9), "{:?}", calls(&place));

    record(&place, &[], &["sh", "-c", &save(":")]).ok();
    is_found(&place, check, "fsync(\"doc.tmp\")");
}
