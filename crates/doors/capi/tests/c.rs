//! Programs in C use the library: `tests/c`. A program ends with an error at the first result that
//! it does not expect.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, is_there, ok, root};
use kedge_base::{HANG, SystemClock};
use kedge_device::crypt::{Cost, CryptDevice, Secret};
use kedge_device::{FileDevice, OpenOptions};
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::{FileSystem, FormatOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;

/// Asserts that fsck finds nothing to repair.
#[track_caller]
fn check(image: &Path) {
    let device =
        FileDevice::open(image, OpenOptions { read_only: true, lock_wait: HANG, ..OpenOptions::default() });
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(device.unwrap(), &options);
    assert_eq!(report.exit_code(), 0, "{report}");
}

#[track_caller]
fn run(name: &str) -> String {
    let place = Place::new();
    let printed = place.run(name, [place.path("image")]);
    check(&place.path("image"));
    printed
}

#[test]
fn each_function_does_what_the_header_says() {
    assert_eq!(run("uses"), format!("{}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn trees_are_forked_cloned_limited_and_written_at_once() {
    let place = Place::new();
    place.run("trees", [place.path("image"), place.path("other")]);
    check(&place.path("image"));
    check(&place.path("other"));
}

#[test]
fn each_error_has_its_number() {
    run("refused");
}

#[test]
fn a_closed_handle_is_refused() {
    run("handles");
}

#[test]
fn many_threads_share_a_file_system() {
    run("threads");
}

#[test]
fn a_failed_device_fails_every_sync() {
    run("failing");
}

#[test]
fn an_image_is_open_once() {
    run("busy");
}

/// Opens the image in a C program. Returns the result and the text of the error.
fn open(program: &Path, image: &Path, options: &str) -> (i32, String) {
    let line = ok(Command::new(program).arg(image).arg(options));
    let (number, text) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
    (number.parse().unwrap(), text.to_owned())
}

#[test]
fn a_damaged_image_is_refused() {
    let place = Place::new();
    let (program, image) = (place.compile("opens"), place.path("image"));
    FileSystem::create_image(&image, 16 << 20).unwrap().close().unwrap();
    assert_eq!(open(&program, &image, "ro"), (0, String::new()));
    // Damage a byte in both superblock slots, but keep their beginning.
    let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
    for slot in [0, 1].map(|slot| kedge_format::superblock::SLOTS[slot].byte_offset()) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, slot + 100).unwrap();
        file.write_all_at(&[!byte[0]], slot + 100).unwrap();
    }
    let (number, text) = open(&program, &image, "");
    assert_eq!(number, -rustix::io::Errno::UCLEAN.raw_os_error(), "{text}");
    assert!(text.contains("superblock") && text.starts_with("kedgefs_open: "), "{text}");
}

#[test]
fn an_encrypted_image_asks_for_an_option_and_not_the_terminal() {
    let place = Place::new();
    let (program, image) = (place.compile("opens"), place.path("image"));
    let device = FileDevice::create(&image, 24 << 20, OpenOptions::default()).unwrap();
    let secret = Secret::new(b"the key".to_vec());
    let device = CryptDevice::format(device, &secret, Cost::default()).unwrap();
    let clock = Arc::new(SystemClock::default());
    FileSystem::format(Arc::new(device), clock, &FormatOptions::default()).unwrap();
    let (number, text) = open(&program, &image, "");
    assert_eq!(number, -rustix::io::Errno::NOKEY.raw_os_error(), "{text}");
    let key = place.path("key");
    std::fs::write(&key, "the key").unwrap();
    assert_eq!(open(&program, &image, &format!("key-file={}", key.display())), (0, String::new()));
    std::fs::write(&key, "another key").unwrap();
    let (number, text) = open(&program, &image, &format!("key-file={}", key.display()));
    assert_eq!(number, -rustix::io::Errno::INVAL.raw_os_error(), "{text}");
}

/// Kills a writer after it has reported some files as durable, several times on one image.
#[test]
fn what_was_synced_survives_the_death_of_the_process() {
    const ROUNDS: usize = 4;
    const FILES: usize = 60;
    let place = Place::new();
    let (program, image) = (place.compile("killed"), place.path("image"));
    FileSystem::create_image(&image, 64 << 20).unwrap().close().unwrap();
    let mut last = None;
    for _ in 0..ROUNDS {
        let mut writer =
            Command::new(&program).arg("write").arg(&image).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let (send, receive) = mpsc::channel();
        kedge_base::spawn_named("lines", move || {
            for line in lines.map_while(Result::ok) {
                let _ = send.send(line.parse::<usize>().unwrap());
            }
        })
        .unwrap();
        for _ in 0..FILES {
            last = Some(receive.recv_timeout(HANG).unwrap());
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        // The files that it reported before its death count as well.
        last = receive.iter().last().or(last);
        check(&image);
        ok(Command::new(&program).arg("check").arg(&image).arg(last.unwrap().to_string()));
    }
    assert!(last.unwrap() + 1 >= ROUNDS * FILES);
}

/// If the library were unloaded, its threads would run in memory that is no longer mapped.
#[test]
fn the_library_stays_when_a_program_lets_go_of_it() {
    let place = Place::new();
    let image = place.path("image");
    // The program is not linked to the library: a linked library would stay loaded anyway.
    let program = place.compile_with("unload", &["-DNO_LIBRARY".as_ref(), "-ldl".as_ref()]);
    ok(Command::new(&program).arg(place.path("libkedgefs.so.0")).arg(&image));
    check(&image);
    let fs = FileSystem::open_image(&image).unwrap();
    assert!(fs.root().dir("d").is_ok(), "the commit timer has run");
    fs.close().unwrap();
}

/// valgrind finds no invalid access to memory, and no memory that is still allocated when all is
/// closed. The program with handles does not fork there: what threads of the parent hold is lost in
/// a child. `KEDGE_LONG=1` runs slower programs as well; `threads` and `refused`, which makes
/// 65,000 links, are too slow for valgrind.
#[test]
fn valgrind_finds_no_error() {
    if !is_there("valgrind") {
        return kedge_base::skip::note("valgrind is not installed: the C programs did not run under it");
    }
    let place = Place::new();
    let other = place.path("other");
    let mut programs = vec![("uses", ""), ("handles", "whole")];
    if std::env::var_os("KEDGE_LONG").is_some_and(|value| value == "1") {
        programs.extend([("trees", other.to_str().unwrap()), ("failing", ""), ("busy", "")]);
    }
    for (name, more) in programs {
        let image = place.path(&format!("{name}.image"));
        let mut valgrind = Command::new("valgrind");
        valgrind.args([
            "--quiet",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,possible",
        ]);
        valgrind.arg(format!("--suppressions={}", root().join("tests/c/valgrind.supp").display()));
        valgrind.arg(place.compile(name)).arg(&image);
        ok(valgrind.args((!more.is_empty()).then_some(more)).current_dir(place.path("")));
        check(&image);
    }
}
