#![allow(clippy::unwrap_used)]

use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

fn frame(name: &str, is_library: bool) -> Frame {
    Frame { name: Some(name.to_owned()), place: "x.c:1".to_owned(), is_library }
}

#[test]
fn what_is_the_same_in_every_program_is_left_out() {
    let frames = vec![
        frame("write", true),
        frame("_IO_file_write", true),
        frame("fclose", true),
        frame("save", false),
        frame("main", false),
        frame("__libc_start_main", true),
    ];
    assert_eq!(told(frames), ["fclose at x.c:1", "save at x.c:1", "main at x.c:1"]);
    let begin = "std::sys::backtrace::__rust_begin_short_backtrace";
    let v0 = "<fn() as core::ops::function::FnOnce<()>>::call_once";
    for call in ["core::ops::function::FnOnce::call_once", v0] {
        let rust = ["save", "main", call, begin, "main"];
        let frames = rust.iter().map(|name| frame(name, false)).collect();
        assert_eq!(told(frames), ["save at x.c:1", "main at x.c:1"]);
    }
    assert!(told(Vec::new()).is_empty());
    let only = Frame { name: None, place: "libc.so.6+0x10".to_owned(), is_library: true };
    assert_eq!(told(vec![only]), ["libc.so.6+0x10"]);
}

/// Waits for a byte. The work after the read keeps this frame on the stack (no tail call).
#[inline(never)]
fn innermost(stream: &mut UnixStream) -> usize {
    let mut byte = [0];
    stream.read(&mut byte).unwrap() + usize::from(byte[0])
}

#[inline(never)]
fn in_between(stream: &mut UnixStream) -> usize {
    innermost(stream) + 1
}

/// The frames of a thread that waits in `innermost`.
fn frames_of_a_thread_that_waits(call: fn(&mut UnixStream) -> usize) -> Vec<Frame> {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let (say, hear) = sync_channel(1);
    let waits = spawn_named("waits", move || {
        say.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        call(&mut there)
    });
    let tid = u32::try_from(hear.recv().unwrap()).unwrap();
    let mut binaries = Binaries::new("/nowhere".into());
    let mut look = || {
        let snapshot = Snapshot::take(std::process::id(), tid).ok()?;
        let frames = Process::new(&snapshot, &mut binaries).frames(&snapshot, FRAMES_MAX);
        // The thread may not be waiting yet.
        frames.iter().any(|f| is_named(f, "innermost")).then_some(frames)
    };
    let found = (0..2000).find_map(|_| look().or_else(sleep_a_little));
    here.write_all(&[1]).unwrap();
    waits.unwrap().join().unwrap();
    found.unwrap()
}

fn sleep_a_little() -> Option<Vec<Frame>> {
    std::thread::sleep(Duration::from_millis(5));
    None
}

fn is_named(frame: &Frame, name: &str) -> bool {
    frame.name.as_deref().is_some_and(|n| n.rsplit("::").next() == Some(name))
}

/// As in any Rust program, the first page of code begins with bytes that are no code.
#[test]
fn callers_are_found_up_to_the_start_of_the_thread() {
    if !IS_SUPPORTED {
        return kedge_base::skip::note("backtraces can be had on x86-64 only");
    }
    let frames = frames_of_a_thread_that_waits(in_between);
    let inner = frames.iter().position(|f| is_named(f, "innermost")).unwrap();
    assert!(is_named(&frames[inner + 1], "in_between"), "{frames:#?}");
    assert!(frames[inner].place.contains("stack_tests.rs:"), "{frames:#?}");
    // All frames have names, and none was guessed or is missing.
    assert!(frames[..=inner].iter().all(|f| f.name.is_some()), "{frames:#?}");
    assert!(!frames.iter().any(|f| f.place.starts_with('(')), "{frames:#?}");
    assert!(frames.iter().any(|f| f.name.as_deref().is_some_and(|n| n.contains("frames_of_a_thread"))));
}
