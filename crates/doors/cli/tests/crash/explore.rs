//! `kedge crash` as a user runs it: programs recorded on a real mount, their crash states explored,
//! bad input.

use crate::common::{Place, Run, needs_fuse, tool};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// Records a shell script that runs in the directory.
fn record(place: &Place, options: &[&str], script: &str) -> Run {
    let words = ["crash", "record", "--size", "64M", "--cd", "-o", "run.kcr"];
    place.kedge(words.into_iter().chain(options.iter().copied()).chain(["--", "sh", "-ec", script]))
}

fn explore(place: &Place, model: &str, check: &str) -> (i32, serde_json::Value) {
    let words = ["crash", "explore", "run.kcr", "--json", "--jobs", "2", "--model", model, "--check", check];
    let run = place.kedge(words);
    (run.code, serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err)))
}

const SAVE: &str = "echo new > doc.tmp; sync doc.tmp; mv doc.tmp doc; ";
const CHECK: &str = "grep -qx new doc || { test -z \"$KEDGE_ACKED\" && grep -qx old doc; }";

fn place_with_old_doc() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("from")).unwrap();
    fs::write(place.path("from/doc"), "old\n").unwrap();
    place
}

#[test]
fn a_missing_sync_of_the_directory_is_found_named_and_mended() {
    needs_fuse!();
    let place = place_with_old_doc();
    let wrong = format!("{SAVE} echo saved");
    assert_eq!(record(&place, &["--from", "from", "--ack", "^saved$"], &wrong).ok(), "saved\n");
    for model in ["posix", "ext4", "xfs", "btrfs", "kedgefs"] {
        let (code, report) = explore(&place, model, CHECK);
        assert_eq!(code, 1, "{model}: {report:#}");
        let cause = &report["causes"][0];
        let sentence = cause["sentence"].as_str().unwrap();
        assert!(sentence.contains("rename(\"doc.tmp\", \"doc\")"), "{model}: {sentence}");
        assert_eq!(cause["fixes"][0]["call"], "fsync(\".\")", "{model}: {sentence}");
        assert_eq!(cause["fixes"][0]["failing"], 0, "{model}: {sentence}");

        // The state can be reproduced, and fails again.
        let state = cause["state"].as_str().unwrap();
        let words = ["crash", "replay", "run.kcr", "--model", model, "--state", state, "--check", CHECK];
        let again = place.kedge(words.into_iter().chain(["--keep", &format!("kept-{model}")]));
        assert_eq!(again.code, 1, "{}{}", again.out, again.err);
        assert!(again.out.contains("lost") && again.out.contains("rename"), "{}", again.out);
        assert_eq!(fs::read_to_string(place.path(&format!("kept-{model}/doc"))).unwrap(), "old\n");
    }

    record(&place, &["--from", "from", "--ack", "^saved$"], &format!("{SAVE} sync .; echo saved")).ok();
    for model in ["posix", "ext4", "xfs", "btrfs", "kedgefs"] {
        let (code, report) = explore(&place, model, CHECK);
        assert_eq!((code, &report["failing"]), (0, &0.into()), "{model}: {report:#}");
        assert_eq!(report["complete"], true, "{model}: {report:#}");
    }
}

#[test]
fn files_are_judged_without_a_program() {
    needs_fuse!();
    let place = place_with_old_doc();
    let kedge = env!("CARGO_BIN_EXE_kedge");
    for (script, code) in [
        (format!("{SAVE} sync .; {kedge} crash mark 'it is saved'"), 0),
        (format!("{SAVE} echo it is saved > .kedge-mark"), 1),
        ("echo new > doc; sync doc".to_owned(), 1),
    ] {
        record(&place, &["--from", "from"], &script).ok();
        let run = place.run("crash explore run.kcr --check-files --junit junit.xml --html page.html");
        assert_eq!(run.code, code, "{script}: {}{}", run.out, run.err);
        let junit = fs::read_to_string(place.path("junit.xml")).unwrap();
        assert_eq!(junit.contains("<failure"), code == 1, "{junit}");
        assert!(fs::read_to_string(place.path("page.html")).unwrap().contains("</html>"));
    }
}

/// The final state of a recording with many kinds of calls equals the directory that the program
/// left.
#[test]
fn what_is_recorded_is_what_was_done() {
    needs_fuse!();
    let place = place_with_old_doc();
    let script = "mkdir -p a/b; echo one > a/b/f; ln a/b/f hard; ln -s a/b soft; mv a/b/f a/g; echo more >> hard; \
        head -c 3000000 /dev/urandom > big; dd if=/dev/urandom of=big bs=1000 seek=7 count=9 conv=notrunc status=none; \
        truncate -s 2500001 big; fallocate -p -o 4096 -l 100000 big; chmod 600 hard; mkdir gone; rmdir gone; \
        cp big other; rm other; mv doc a/b; dd if=/dev/zero of=a/b/d bs=5000 count=2 oflag=dsync status=none; \
        test \"$(ls -A | tr '\\n' ' ')\" = 'a big hard soft '; ! rm -f .kedge-mark; \
        cp -a . \"$OLDPWD/left\"";
    record(&place, &["--from", "from"], &format!("export OLDPWD={}; {script}", place.path("").display()))
        .ok();
    let run = place.run("crash explore run.kcr --check true --json --budget 2");
    assert_eq!(run.code, 0, "{}", run.err);
    let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
    let names: Vec<&str> = trace.events.iter().map(|e| e.call.name()).collect();
    for name in [
        "create",
        "mkdir",
        "symlink",
        "link",
        "rename",
        "write",
        "truncate",
        "fallocate",
        "chmod",
        "rmdir",
        "O_DSYNC",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert!(trace.events.iter().skip(trace.start()).filter(|e| !e.call.is_note()).all(|e| e.pid != 0));
    place.run(&format!("crash replay run.kcr --state {} --keep found", trace.events.len())).ok();
    let mut diff = place.command("diff");
    let output = diff.args(["-r", "--no-dereference", "left", "found"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    for name in ["hard", "a/b/d", "big"] {
        use std::os::unix::fs::MetadataExt;
        let [one, other] = ["left", "found"].map(|d| fs::symlink_metadata(place.path(d).join(name)).unwrap());
        assert_eq!(
            (one.mode(), one.len(), one.nlink()),
            (other.mode(), other.len(), other.nlink()),
            "{name}"
        );
    }
}

/// A program that stores through a mapping, with or without msync before its promise.
fn stores_by_mapping(msync: &str) -> String {
    let program = "import mmap, os\n\
        f = os.open(\"m\", os.O_RDWR | os.O_CREAT)\n\
        os.ftruncate(f, 8192)\n\
        os.fsync(f)\n\
        os.fsync(os.open(\".\", os.O_RDONLY))\n\
        m = mmap.mmap(f, 8192)\n\
        m[4096:4099] = b\"one\"\n";
    format!("python3 -c '{program}{msync}print(\"stored\", flush=True)'")
}

#[test]
fn stores_through_a_mapping_are_recorded_when_the_kernel_writes_them() {
    needs_fuse!();
    let place = Place::new();
    let check = "test -z \"$KEDGE_ACKED\" || test \"$(tail -c 4096 m | head -c 3)\" = one";
    record(&place, &["--ack", "^stored"], &stores_by_mapping("m.flush()\n")).ok();
    let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
    let of = |name: &str| trace.events.iter().position(|e| e.call.name() == name);
    let stored = of("mapped write").expect("msync writes the page");
    let kedge_crash::trace::Call::Write { offset, data, .. } = &trace.events[stored].call else { panic!() };
    assert_eq!((*offset, &data[..3], trace.events[stored].pid), (4096, &b"one"[..], 0));
    assert!(stored < of("mark").unwrap(), "before the promise");
    let is_msync = |e: &kedge_crash::trace::Event| matches!(e.call.name(), "fsync" | "fdatasync");
    assert!(trace.events[stored..of("mark").unwrap()].iter().any(is_msync), "msync is a persistence call");
    for model in ["kedgefs", "ext4", "posix"] {
        let (code, report) = explore(&place, model, check);
        assert_eq!((code, &report["failing"]), (0, &0.into()), "{model}: {report:#}");
    }

    record(&place, &["--ack", "^stored"], &stores_by_mapping("")).ok();
    for model in ["kedgefs", "ext4", "posix"] {
        let (code, report) = explore(&place, model, check);
        assert_eq!(code, 1, "{model}: a promise before msync: {report:#}");
    }
}

#[test]
fn commands_that_fail_hang_or_leave_something_behind() {
    needs_fuse!();
    let place = Place::new();
    assert_eq!(record(&place, &[], "echo x > f; exit 7").code, 7);
    assert_eq!(record(&place, &[], "echo x > f; kill -9 $$").code, 137);
    let hung = record(&place, &["--timeout", "500ms"], "echo x > f; sleep 1000 & sleep 1000");
    assert_eq!(hung.code, 137, "{}", hung.err);
    assert!(hung.err.contains("its time was over"), "{}", hung.err);
    let pid = place.path("pid");
    let left = record(
        &place,
        &[],
        &format!("echo x > f; sleep 1000 > /dev/null 2>&1 & echo $! > {}", pid.display()),
    );
    let pid = Pid::from_raw(fs::read_to_string(pid).unwrap().trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert_eq!(left.code, 0, "{}", left.err);
    assert!(left.err.contains("still used the directory") && left.err.contains("sleep"), "{}", left.err);
    // Each of these runs left a recording.
    place.run("crash explore run.kcr --check true").ok();
    place
        .run("crash record -o run.kcr -- /no/such/command")
        .refused(1, &["/no/such/command", "cannot be started"]);
    place.run("crash record -o no/where.kcr -- true").refused(1, &["no/where.kcr"]);
    place
        .run("crash record -o run.kcr --from nowhere -- true")
        .refused(1, &["nowhere", "could not be copied"]);
    record(&place, &[], "echo elsewhere > /dev/null").ok();
    place.run("crash explore run.kcr --check true").refused(3, &["holds no change of a file", "KEDGE_DIR"]);
}

#[test]
fn an_image_can_be_what_is_there_at_the_start() {
    needs_fuse!();
    let place = place_with_old_doc();
    place.run("mkfs --from from disk.kedge").ok();
    record(&place, &["--from", "disk.kedge"], "grep -qx old doc; echo new > doc.tmp; mv doc.tmp doc").ok();
    let (code, report) = explore(&place, "ext4", "grep -qx old doc || grep -qx new doc");
    assert_eq!(code, 1, "{report:#}");
    let sentence = report["causes"][0]["sentence"].as_str().unwrap();
    assert!(sentence.contains("doc.tmp"), "{sentence}");
    fs::write(place.path("foreign"), vec![7; 1 << 20]).unwrap();
    record(&place, &["--from", "foreign"], "true").refused(1, &["--from foreign", "KedgeFS"]);
    place.run("mount disk.kedge from").ok();
    record(&place, &["--from", "disk.kedge"], "true").refused(1, &["--from disk.kedge", "mounted on"]);
    place.run("umount from").ok();
}

#[test]
fn recordings_and_checkers_that_are_no_good() {
    needs_fuse!();
    let place = Place::new();
    record(&place, &[], "echo a > f; sync f; echo b > g; sync g .").ok();
    let whole = fs::read(place.path("run.kcr")).unwrap();
    let cut = place.path("cut.kcr");
    fs::write(&cut, &whole[..whole.len() - 3]).unwrap();
    let run = place.run("crash explore cut.kcr --check true");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("not whole") && run.out.contains("not whole"), "{}{}", run.out, run.err);
    fs::write(&cut, b"something else, and long enough").unwrap();
    place.run("crash explore cut.kcr --check true").refused(3, &["cut.kcr", "not a recording"]);
    place.run("crash explore none.kcr --check true").refused(3, &["none.kcr"]);

    place.run("crash explore run.kcr").refused(2, &["--check"]);
    place.run("crash explore run.kcr --check true --model vfat").refused(2, &["vfat", "posix"]);
    place.run("crash explore run.kcr --check true --budget 5y").refused(2, &["5y"]);
    place.run("crash replay run.kcr --state 4.loose-1").refused(2, &["4.loose-1"]);
    place.run("crash replay run.kcr --state 400").refused(3, &["400", "crash points"]);
    place.run("crash replay run.kcr --state 4 --keep .").refused(3, &["not empty"]);
    place.run("crash mark hello").refused(1, &["nothing is being recorded"]);

    // A check that cannot judge gives "no verdict", which is neither pass nor failure of the
    // program.
    for (check, word) in [("false", "without any crash"), ("no-such-checker", "cannot be run")] {
        let run = place.kedge(["crash", "explore", "run.kcr", "--check", check]);
        assert_eq!(run.code, 3, "{}{}", run.out, run.err);
        assert!(run.out.contains("no verdict") && run.out.contains(word), "{}", run.out);
    }
    // A checker that hangs on a crash state, and a checker that changes its state.
    let run = place.kedge([
        "crash",
        "explore",
        "run.kcr",
        "--timeout",
        "300ms",
        "--budget",
        "3",
        "--check",
        "test -e f || sleep 1000",
    ]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("did not end"), "{}", run.out);
    place.kedge(["crash", "explore", "run.kcr", "--check", "test ! -e h && rm -f f g && touch h"]).ok();
    // The complete state alone says nothing about crashes.
    let run = place.run("crash explore run.kcr --check true --budget 1");
    assert_eq!(run.code, 3, "{}", run.out);
    assert!(run.out.starts_with("no verdict: the search ended before any crash state"), "{}", run.out);
    // The report says that the budget ended early.
    let run = place.kedge(["crash", "explore", "run.kcr", "--check", "true", "--budget", "2"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.out.contains("not all was tried") && run.out.contains("NOT tried"), "{}", run.out);
}

/// A promise printed before a call counts as made before that call, however busy the machine is.
#[test]
fn a_printed_promise_stands_before_the_next_call() {
    needs_fuse!();
    let place = Place::new();
    let script =
        "n=0; while [ $n -lt 300 ]; do : > f$n; echo saved $n; n=$((n + 1)); done; printf 'saved 300'";
    let run = record(&place, &["--ack", "^saved"], script);
    assert_eq!(run.code, 0, "{}", run.err);
    let printed: Vec<String> = (0..=300).map(|n| format!("saved {n}")).collect();
    assert_eq!(run.out, printed.join("\n"));
    let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
    let told = trace.events.iter().filter_map(|e| match &e.call {
        kedge_crash::Call::Create { name, .. } if name.starts_with(b"f") => {
            Some(String::from_utf8(name.clone()).unwrap())
        }
        kedge_crash::Call::Mark { text } => Some(text.clone()),
        _ => None,
    });
    let made = (0..300).flat_map(|n| [format!("f{n}"), format!("saved {n}")]);
    assert_eq!(told.collect::<Vec<_>>(), made.chain(["saved 300".to_owned()]).collect::<Vec<_>>());
}

/// Output larger than the recorder's buffer is passed on completely.
#[test]
fn long_output_is_passed_on_whole() {
    needs_fuse!();
    let place = Place::new();
    let script =
        "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo saved; : > f; yes other | head -n 500000";
    let run = record(&place, &["--ack", "^saved$"], script);
    assert!(run.code == 0 && run.err.contains("1 marks"), "{}", run.err);
    assert_eq!(run.out.len(), 3_000_001 + 6 + 6 * 500_000);
    assert!(run.out.ends_with("other\nother\n"));
}

#[test]
fn a_recording_that_cannot_begin_leaves_the_last_one_as_it_is() {
    needs_fuse!();
    let place = Place::new();
    record(&place, &[], "echo a > f").ok();
    let whole = fs::read(place.path("run.kcr")).unwrap();
    let kept = |place: &Place| {
        assert_eq!(fs::read(place.path("run.kcr")).unwrap(), whole);
        let drafts = fs::read_dir(place.path("")).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(drafts.filter(|n| n.to_string_lossy().starts_with(".kedge-record")).count(), 0);
    };
    place.run("crash record -o run.kcr -- ./no-such-program").refused(1, &["no-such-program"]);
    kept(&place);
    place.run("crash record --size 1M -o run.kcr -- true").refused(1, &[]);
    kept(&place);
    place.run("crash record --from none -o run.kcr -- true").refused(1, &["none"]);
    kept(&place);
    // A link to the recording stays a link, and a device stays a device.
    std::os::unix::fs::symlink("run.kcr", place.path("link.kcr")).unwrap();
    place.run("crash record -o link.kcr -- true").ok();
    assert!(fs::symlink_metadata(place.path("link.kcr")).unwrap().is_symlink());
    assert_ne!(fs::read(place.path("run.kcr")).unwrap(), whole);
    place.run("crash record -o /dev/null -- true").ok();
}

#[test]
fn explaining_can_be_left_out() {
    needs_fuse!();
    let place = place_with_old_doc();
    record(&place, &["--from", "from"], "echo new > doc; echo saved").ok();
    let run = place.kedge([
        "crash",
        "explore",
        "run.kcr",
        "--explain",
        "0",
        "--check",
        "grep -qx old doc || ! test -s nothing && grep -qx new doc",
    ]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("explaining was cut off at its limit of 0.0 s (--explain)"), "{}", run.out);
}

/// A Rust program that writes a file in `$KEDGE_DIR`, renames it and promises it, without a sync.
const SAVER_RUST: &str = r#"use std::fs;
#[inline(never)]
fn write_the_draft(dir: &str) {
    fs::write(format!("{dir}/draft"), "text").unwrap();
}
#[inline(never)]
fn publish(dir: &str) {
    fs::rename(format!("{dir}/draft"), format!("{dir}/doc")).unwrap();
}
fn main() {
    let dir = std::env::var("KEDGE_DIR").unwrap();
    write_the_draft(&dir);
    publish(&dir);
    fs::write(std::env::var("KEDGE_MARK").unwrap(), "published").unwrap();
}
"#;

/// The same program in C.
const SAVER_C: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static __attribute__((noinline)) void write_the_draft(void) {
    FILE *draft = fopen("draft", "w");
    fputs("text", draft);
    if (fclose(draft) != 0) abort();
}
static __attribute__((noinline)) void publish(const char *name) {
    char room[100];
    snprintf(room, sizeof room, "%s", name);
    if (rename("draft", room) != 0) abort();
}
int main(void) {
    if (chdir(getenv("KEDGE_DIR")) != 0) return 1;
    write_the_draft();
    publish("doc");
    FILE *mark = fopen(getenv("KEDGE_MARK"), "w");
    fputs("published\n", mark);
    return fclose(mark);
}
"#;

/// The callers that the report shows for the lost rename and for the lost write.
fn callers(place: &Place, command: &[&str]) -> [Vec<String>; 2] {
    let words = ["crash", "record", "--size", "64M", "--backtrace", "-o", "run.kcr", "--"];
    let run = place.kedge(words.iter().chain(command));
    assert!(run.code == 0 && !run.err.contains("no backtrace"), "{}{}", run.out, run.err);
    [("rename(", "test -e doc"), ("write(", "test ! -e doc || grep -q text doc")].map(|(call, check)| {
        let check = format!("test $KEDGE_ACKED_COUNT = 0 || {{ {check}; }}");
        let (code, report) = explore(place, "posix", &check);
        assert_eq!(code, 1, "{report:#}");
        let causes = report["causes"].as_array().unwrap().iter();
        let lost = causes.flat_map(|cause| cause["lost"].as_array().unwrap());
        let mut told = lost.filter(|lost| lost["text"].as_str().unwrap().starts_with(call));
        let stack = told.next().unwrap_or_else(|| panic!("{call}: {report:#}"))["stack"].clone();
        serde_json::from_value(stack).unwrap()
    })
}

#[test]
fn callers_are_recorded_by_name_and_line() {
    needs_fuse!();
    if !cfg!(target_arch = "x86_64") {
        return kedge_base::skip::note("backtraces can be had on x86-64 only");
    }
    let place = Place::new();
    // Asserts that the stack ends with the wanted callers, the outermost last, and that no caller
    // is marked as a guess.
    let are = |stack: &[String], wanted: [&str; 2]| {
        let from = stack.len().saturating_sub(2);
        assert!(stack[from..].iter().zip(wanted).all(|(f, w)| f.contains(w)), "{wanted:?}: {stack:#?}");
        assert!(stack.len() > 2 && !stack.iter().any(|f| f.starts_with('(')), "{stack:#?}");
    };
    fs::write(place.path("saver.c"), SAVER_C).unwrap();
    for options in [&["-O0", "-g"][..], &["-O2", "-g"], &["-O2", "-g", "-fno-omit-frame-pointer"]] {
        compile(&place, options);
        let [rename, bytes] = callers(&place, &["./saver"]);
        are(&rename, ["publish at ", "main at "]);
        assert!(rename[rename.len() - 2].contains("saver.c:12"), "{rename:#?}");
        are(&bytes, ["write_the_draft at ", "main at "]);
        assert!(bytes[bytes.len() - 2].contains("saver.c:7"), "{bytes:#?}");
    }
    fs::write(place.path("saver.rs"), SAVER_RUST).unwrap();
    // Test both schemes of Rust for the names of symbols: the compiler's default, and the newer v0.
    for naming in [&[][..], &["-C", "symbol-mangling-version=v0"]] {
        let mut rustc = place.command("rustc");
        rustc.args(naming).args(["-O", "-g", "-o", "saver", "saver.rs"]);
        crate::common::tool(rustc, "rustc");
        let [rename, bytes] = callers(&place, &["./saver"]);
        assert!(rename[0].starts_with("std::fs::rename"), "{rename:#?}");
        assert!(rename[0].contains(" at library/std/"), "{rename:#?}");
        are(&rename, ["saver::publish at ", "saver::main at "]);
        assert!(rename[rename.len() - 2].contains("saver.rs:8"), "{rename:#?}");
        are(&bytes, ["saver::write_the_draft at ", "saver::main at "]);
        assert!(bytes[bytes.len() - 2].contains("saver.rs:4"), "{bytes:#?}");
    }
}

const SAVER_GO: &str = r#"package main

import (
	"fmt"
	"os"
)

//go:noinline
func save(text string) error {
	if err := os.WriteFile("doc.tmp", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename("doc.tmp", "doc")
}

func main() {
	if err := os.Chdir(os.Getenv("KEDGE_DIR")); err != nil {
		panic(err)
	}
	if err := save("one"); err != nil {
		panic(err)
	}
	fmt.Println("saved")
}
"#;

/// Go's functions have unwind tables only in the form of Go's runtime, which stripped programs have
/// too.
#[test]
fn callers_in_go_are_recorded_by_name_and_line() {
    needs_fuse!();
    if !cfg!(target_arch = "x86_64") {
        return kedge_base::skip::note("backtraces can be had on x86-64 only");
    }
    let place = Place::new();
    if place.command("go").arg("version").output().is_err() {
        return kedge_base::skip::note("no Go: apt-get install -y golang-go");
    }
    fs::write(place.path("saver.go"), SAVER_GO).unwrap();
    for flags in ["", "-s -w"] {
        let mut go = place.command("go");
        go.args(["build", "-ldflags", flags, "-o", "saver", "saver.go"]);
        go.env("GOFLAGS", "-mod=mod").env("GOCACHE", place.path("cache"));
        crate::common::tool(go, "go");
        let words = ["crash", "record", "--size", "64M", "--backtrace", "-o", "run.kcr", "--", "./saver"];
        assert_eq!(place.kedge(words).ok(), "saved\n");
        let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
        // os.Rename is inlined, so only the file of its call is known.
        for (call, library, line) in [("write", "os.", "saver.go:10"), ("rename", "os.", "saver.go")] {
            let stack = &trace.events.iter().rfind(|e| e.call.name() == call).unwrap().stack;
            let [first, .., save, main] = &stack[..] else { panic!("{call}: {stack:#?}") };
            assert!(first.starts_with(library), "{call}: {stack:#?}");
            assert!(save.starts_with("main.save at ") && save.contains(line), "{call}: {stack:#?}");
            assert!(main.starts_with("main.main at ") && main.contains("saver.go:20"), "{call}: {stack:#?}");
        }
    }
}

/// A finding for code scanning is at the line of the program that makes the lost call.
#[test]
fn a_finding_has_the_place_of_the_caller_in_the_sources() {
    needs_fuse!();
    if !cfg!(target_arch = "x86_64") {
        return kedge_base::skip::note("backtraces can be had on x86-64 only");
    }
    let place = Place::new();
    fs::write(place.path("saver.c"), SAVER_C).unwrap();
    compile(&place, &["-O0", "-g"]);
    let words = ["crash", "record", "--size", "64M", "--backtrace", "--", "./saver"];
    assert_eq!(place.kedge(words).code, 0);
    let check = "test $KEDGE_ACKED_COUNT = 0 || test -e doc";
    let words =
        ["crash", "explore", "run.kcr", "--sarif", "crash.sarif", "--model", "ext4", "--check", check];
    assert_eq!(place.kedge(words).code, 1);
    let sarif: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("crash.sarif")).unwrap()).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(result["ruleId"], "missing-persistence-call", "{sarif:#}");
    // The finding is at the promise in main, before which a call is missing, or at the rename in
    // line 12.
    let at = |place: &serde_json::Value| {
        let place = &place["physicalLocation"];
        (place["artifactLocation"]["uri"].as_str().map(str::to_owned), place["region"]["startLine"].as_u64())
    };
    let (file, line) = at(&result["locations"][0]);
    assert!(file.as_deref() == Some("saver.c") && matches!(line, Some(12 | 18..=21)), "{line:?}: {sarif:#}");
    let stacks = result["stacks"].as_array().unwrap().iter();
    let frames = stacks.flat_map(|stack| stack["frames"].as_array().unwrap());
    let mut places = frames.map(|frame| at(&frame["location"]));
    assert!(places.any(|place| place == (Some("saver.c".to_owned()), Some(12))), "{sarif:#}");
}

/// Compiles `saver.c` with these options of gcc.
fn compile(place: &Place, options: &[&str]) {
    let mut cc = place.command("cc");
    cc.args(options).args(["-o", "saver", "saver.c"]);
    crate::common::tool(cc, "gcc");
}

/// A report names no wrong caller: where the stack cannot be unwound, the report says so.
#[test]
fn callers_that_are_not_certain_are_said_to_be_so() {
    needs_fuse!();
    if !cfg!(target_arch = "x86_64") {
        return kedge_base::skip::note("backtraces can be had on x86-64 only");
    }
    let place = Place::new();
    // Let `publish` be called through a pointer; it addresses its stack by the frame pointer.
    let by_pointer = SAVER_C.replace(
        "    publish(\"doc\");",
        "    void (*volatile call)(const char *) = publish;\n    call(\"doc\");",
    );
    assert!(by_pointer.contains("volatile"));
    fs::write(place.path("saver.c"), by_pointer).unwrap();
    compile(&place, &["-O0", "-g"]);
    let [rename, _] = callers(&place, &["./saver"]);
    let publish = rename.iter().position(|f| f.starts_with("publish at ")).unwrap();
    assert!(rename[publish + 1].contains("a guess"), "{rename:#?}");
    assert!(rename[publish + 2].starts_with("main at "), "{rename:#?}");
    // Code without unwind tables: its caller cannot be determined.
    fs::write(place.path("saver.c"), SAVER_C).unwrap();
    compile(&place, &["-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]);
    let [rename, _] = callers(&place, &["./saver"]);
    let publish = rename.iter().position(|f| f.starts_with("publish at ")).unwrap();
    assert!(rename[publish + 1..] == ["(callers unknown from here)"], "{rename:#?}");
}

/// A failure before the first promise of a program that starts with nothing has an exit code of its
/// own. With files at the start, or after a promise, it is a failure like any other.
#[test]
fn failures_before_the_first_promise_have_their_own_exit_code() {
    needs_fuse!();
    let place = place_with_old_doc();
    let script = "echo head > head; echo body > body; sync head body .; echo ready";
    let check = "test -s head -a -s body || test -z \"$(ls | grep -v doc)\"";
    record(&place, &["--ack", "^ready"], script).ok();
    let (code, report) = explore(&place, "ext4", check);
    assert_eq!(code, 4, "{report:#}");
    assert_eq!(report["failing"], report["failing_before_first_promise"], "{report:#}");
    let run = place.kedge(["crash", "explore", "run.kcr", "--model", "ext4", "--check", check]);
    assert_eq!(run.code, 4, "{}", run.err);
    assert!(run.out.contains("Before the first promise:\n"), "{}", run.out);
    assert!(run.out.contains("checker: exit code 1"), "{}", run.out);
    let state = report["causes"][0]["state"].as_str().unwrap();
    let words = ["crash", "replay", "run.kcr", "--model", "ext4", "--state", state, "--check", check];
    assert_eq!(place.kedge(words).code, 1, "the replay of one state knows no difference");

    record(&place, &["--from", "from", "--ack", "^ready"], script).ok();
    let (code, report) = explore(&place, "ext4", check);
    assert_eq!((code, &report["failing_before_first_promise"]), (1, &0.into()), "{report:#}");
    record(&place, &["--ack", "^ready"], &format!("{script}; : > head; echo again > head; echo ready")).ok();
    let (code, report) = explore(&place, "ext4", check);
    assert_eq!(code, 1, "{report:#}");
    assert!(report["failing_before_first_promise"].as_u64().unwrap() > 0, "{report:#}");

    let help = place.run("crash explore --help").ok();
    assert!(help.contains("4  the check fails only on states before the first promise"), "{help}");
    assert!(help.contains("[default: 10000 states; 1000 of a cluster]"), "{help}");
}

/// The kernel makes durable only the range of a write with O_DSYNC, so bytes that were written
/// before it elsewhere in the file may be lost.
#[test]
fn a_synchronous_write_makes_no_other_page_durable() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("from")).unwrap();
    fs::write(place.path("from/f"), vec![b'o'; 5 << 20]).unwrap();
    let check = "test -z \"$KEDGE_ACKED\" || test \"$(head -c 1 f)\" = n";
    let first = "printf n | dd of=f conv=notrunc status=none; ";
    let second = "printf s | dd of=f conv=notrunc bs=4096 seek=1024 status=none ";
    for (script, name, code) in [
        (format!("{first} {second} oflag=dsync; echo saved"), "O_DSYNC", 1),
        (format!("{first} {second} oflag=sync; echo saved"), "O_SYNC", 1),
        (format!("{first} {second} conv=fdatasync; echo saved"), "fdatasync", 0),
        (format!("{first} sync f; {second} oflag=dsync; echo saved"), "O_DSYNC", 0),
    ] {
        record(&place, &["--from", "from", "--ack", "^saved$"], &script).ok();
        let trace = kedge_crash::kcr::read(&fs::read(place.path("run.kcr")).unwrap()[..]).unwrap().trace;
        assert!(trace.events.iter().any(|e| e.call.name() == name), "{script}");
        for model in ["posix", "ext4", "xfs"] {
            let (found, report) = explore(&place, model, check);
            assert_eq!(found, code, "{model}: {script}: {report:#}");
        }
        // The bytes of the synchronous write itself are never lost.
        let own = "test -z \"$KEDGE_ACKED\" || test \"$(tail -c +4194305 f | head -c 1)\" = s";
        let (found, report) = explore(&place, "posix", own);
        assert_eq!(found, 0, "{script}: {report:#}");
    }
    // Nor does it make an appended page durable, or the size that counts it.
    fs::write(place.path("from/f"), vec![b'o'; 4096]).unwrap();
    let append = "head -c 4096 /dev/zero | tr '\\0' n | dd of=f conv=notrunc bs=4096 seek=1 iflag=fullblock status=none";
    let header =
        "head -c 4096 /dev/zero | tr '\\0' s | dd of=f conv=notrunc bs=4096 iflag=fullblock status=none";
    let check = "test -z \"$KEDGE_ACKED\" || test \"$(tail -c +4097 f | head -c 1)\" = n";
    for (oflag, code) in [(" oflag=dsync", 1), (" oflag=sync", 1), (" conv=fdatasync", 0)] {
        let script = format!("{append}; {header}{oflag}; echo saved");
        record(&place, &["--from", "from", "--ack", "^saved$"], &script).ok();
        for model in ["posix", "ext4", "ext4-ordered", "xfs"] {
            let (found, report) = explore(&place, model, check);
            assert_eq!(found, code, "{model}: {script}: {report:#}");
        }
    }
}

/// A sync of the whole file system by another program, of which the machine has many, is no call of
/// the recorded one.
#[test]
fn a_sync_by_another_program_makes_nothing_durable() {
    needs_fuse!();
    let place = Place::new();
    let script = "echo x > f; echo \"$KEDGE_DIR\" > \"$PLACE.tmp\"; mv \"$PLACE.tmp\" \"$PLACE\"; \
        while test -e \"$PLACE\"; do sleep 0.01; done; echo saved";
    let (at, options) = (place.path("place"), ["--ack", "^saved$"]);
    let script = format!("PLACE={}; {script}", at.display());
    let run = std::thread::scope(|scope| {
        let recording = scope.spawn(|| record(&place, &options, &script));
        while !at.exists() {
            assert!(!recording.is_finished(), "the command waits for the sync");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let dir = fs::read_to_string(&at).unwrap();
        let mut sync = place.command("sync");
        sync.args(["-f", dir.trim()]);
        crate::common::tool(sync, "sync");
        fs::remove_file(&at).unwrap();
        recording.join().unwrap()
    });
    assert_eq!(run.code, 0, "{}", run.err);
    // The kernel passes the call on to a mount by root only.
    if rustix::process::geteuid().is_root() {
        assert!(run.err.contains("sync or syncfs by processes that do not belong"), "{}", run.err);
    }
    let (code, report) = explore(&place, "posix", "test -z \"$KEDGE_ACKED\" || test \"$(cat f)\" = x");
    assert_eq!(code, 1, "{report:#}");

    // The program's own call counts.
    if rustix::process::geteuid().is_root() {
        record(&place, &options, "echo x > f; sync -f .; echo saved").ok();
        let (code, report) = explore(&place, "posix", "test -z \"$KEDGE_ACKED\" || test \"$(cat f)\" = x");
        assert_eq!(code, 0, "{report:#}");
    }
}

#[test]
fn a_process_that_a_check_leaves_running_changes_no_later_state() {
    needs_fuse!();
    let place = Place::new();
    record(&place, &[], "for n in 1 2 3 4 5 6; do echo $n > f$n; sync f$n; done").ok();
    let check =
        "test ! -e stray || exit 1; setsid sh -c 'sleep 0.3; : > \"$KEDGE_DIR/stray\"' > /dev/null 2>&1 & :";
    let (code, report) = explore(&place, "posix", check);
    assert_eq!((code, &report["failing"]), (0, &0.into()), "{report:#}");
}

/// A process that a container runs has its session and its process group in an outer PID namespace.
#[test]
fn a_search_in_a_container_ends_what_a_check_leaves_running() {
    needs_fuse!();
    let place = Place::new();
    record(&place, &[], "for n in 1 2 3; do echo $n > f$n; sync f$n; done").ok();
    let check = "setsid sleep 1000 > /dev/null 2>&1 & :";
    // Only the first process of the namespace may have children that ended without being reaped.
    let script = r#""$@"; for stat in /proc/[0-9]*/stat; do read -r line < $stat; echo "$line"; done"#;
    let mut command = place.command("unshare");
    command.args(["--map-root-user", "--pid", "--fork", "--mount-proc", "sh", "-ec", script, "sh"]);
    command.arg(env!("CARGO_BIN_EXE_kedge")).args(["crash", "explore", "run.kcr", "--check", check]);
    let said = tool(command, "unshare");
    assert!(said.starts_with("no failure in "), "{said}");
    assert!(!said.contains("(sleep)"), "{said}");
}
