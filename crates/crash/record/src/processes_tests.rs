#![allow(clippy::unwrap_used)]

use super::*;

fn own_thread() -> u32 {
    rustix::thread::gettid().as_raw_pid().try_into().unwrap()
}

#[test]
fn the_first_call_of_a_process_has_its_command_line() {
    let processes = Processes::default();
    let tid = own_thread();
    assert_eq!(processes.of(0), Found::Known(0));
    processes.look_at(tid, true);
    let Found::New { pid, name, command } = processes.of(tid) else { panic!("no call before") };
    assert_eq!(pid, std::process::id());
    assert!(!name.is_empty() && command.contains("record"), "{name}, {command}");
    assert_eq!(processes.of(tid), Found::Known(pid));
    // The first call of a second thread is not the first call of the process.
    let of_other = std::thread::scope(|s| s.spawn(|| processes.of(own_thread())).join().unwrap());
    assert_eq!(of_other, Found::Known(pid));
}

/// This process has several threads, so a call that holds pages back must not read its memory.
#[test]
fn a_call_that_holds_pages_back_does_not_wait_for_other_threads() {
    let (processes, tid) = (Processes::default(), own_thread());
    let look = || {
        processes.look_at(tid, false);
        processes.of(tid)
    };
    let found = std::thread::scope(|s| {
        // Keep a second thread alive until the command line was requested.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        s.spawn(move || ended.recv().unwrap_err());
        let found = look();
        drop(end);
        found
    });
    let Found::New { command, name, .. } = found else { panic!("no call before") };
    assert_eq!(command, "");
    assert!(!name.is_empty());
}

#[test]
fn no_more_than_a_few_threads_read_shared_memory() {
    let processes = Processes::default();
    processes.readers.store(READERS_MAX, Relaxed);
    assert_eq!(processes.command_of_shared(own_thread()), None);
    assert_eq!(processes.readers.load(Relaxed), READERS_MAX);
}

#[test]
fn a_forked_process_has_run_no_program() {
    let line = |flags: u32| format!("7 (a ) b) S 1 7 7 0 -1 {flags} 0 0");
    assert!(has_run_program(&line(0x40_0000)));
    assert!(!has_run_program(&line(0x40_0040)));
    assert!(!has_run_program(""));
    assert!(!has_run_program("7 (a) S 1"));
}
