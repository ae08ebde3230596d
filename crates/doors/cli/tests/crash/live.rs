//! `kedge crash mount`: power fails at chosen moments, and fsync fails as on other file systems.

use crate::common::{Place, needs_fuse, pid, until};
use kedge_base::{Clock, SystemClock};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

const EIO: Option<i32> = Some(5);

/// A place with a mount for crashes on `mnt`.
fn live(options: &str) -> Place {
    let place = Place::new();
    let line = format!("crash mount --create 64M --socket sock{options} image mnt");
    place.run(&line).ok();
    place
}

fn create(place: &Place, name: &str, bytes: &[u8]) -> File {
    let path = place.path("mnt").join(name);
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn sync_dir(place: &Place) {
    File::open(place.path("mnt")).unwrap().sync_all().unwrap();
}

fn read(place: &Place, name: &str) -> Option<Vec<u8>> {
    match fs::read(place.path("mnt").join(name)) {
        Ok(bytes) => Some(bytes),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => panic!("{name}: {e}"),
    }
}

fn names(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("mnt")).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn crash(place: &Place, options: &str) -> Value {
    serde_json::from_str(&place.run(&format!("crash now --json{options} mnt")).ok()).unwrap()
}

/// Sends one line to the control socket and returns the reply.
fn ask(place: &Place, request: &Value) -> Value {
    let mut stream = UnixStream::connect(place.path("sock")).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn what_is_not_persistent_goes_and_the_rest_goes_on() {
    needs_fuse!();
    let place = live("");
    let mut kept = create(&place, "kept", &[1; 10_000]);
    kept.sync_all().unwrap();
    let lost = create(&place, "lost", b"never synced");
    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::hard_link(place.path("mnt/kept"), place.path("mnt/dir/link")).unwrap();
    std::os::unix::fs::symlink("kept", place.path("mnt/soft")).unwrap();
    sync_dir(&place);
    File::open(place.path("mnt/dir")).unwrap().sync_all().unwrap();
    kept.write_all_at(&[2; 5000], 100).unwrap();
    fs::rename(place.path("mnt/soft"), place.path("mnt/renamed")).unwrap();

    let told = crash(&place, " --socket sock");
    assert_eq!(told["crashes"], 1);
    let calls = told["lost"].to_string();
    assert!(calls.contains("rename") && calls.contains("write"), "{told:#}");
    // The names were synced with their directory; the bytes of `lost` were never synced.
    assert_eq!(names(&place), ["dir", "kept", "lost", "soft"]);
    assert_eq!(read(&place, "kept").unwrap(), [1; 10_000]);
    assert_eq!(read(&place, "dir/link").unwrap(), [1; 10_000]);
    assert_eq!(read(&place, "lost").unwrap(), b"");
    assert_eq!(fs::read_link(place.path("mnt/soft")).unwrap().to_str(), Some("kept"));

    // Open files fail as after a restart, even reads of bytes that the kernel had cached.
    assert_eq!(kept.write_all(b"x").unwrap_err().raw_os_error(), EIO);
    assert_eq!(lost.sync_all().unwrap_err().raw_os_error(), EIO);
    assert_eq!(lost.metadata().unwrap_err().raw_os_error(), EIO);
    drop((kept, lost));

    // The mount works again, and a second crash is possible.
    create(&place, "second", b"two").sync_all().unwrap();
    sync_dir(&place);
    create(&place, "kept", b"three");
    crash(&place, " --socket sock --model strict");
    assert_eq!(read(&place, "second").unwrap(), b"two");
    assert_eq!(read(&place, "kept").unwrap(), [1; 10_000]);
    // The image has the same contents.
    place.unmount_and_check("image");
    assert!(!place.path("sock").exists());
    place.run("mount image mnt").ok();
    assert_eq!(names(&place), ["dir", "kept", "lost", "second", "soft"]);
    assert_eq!(read(&place, "dir/link").unwrap(), [1; 10_000]);
    place.unmount_and_check("image");
}

/// A mount that has had no descriptor left for a while still receives requests.
#[test]
fn requests_are_served_after_a_shortage_of_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    needs_fuse!();
    let place = live("");
    let server = pid(&place, "mnt");
    let fds = fs::read_dir(format!("/proc/{server}/fd")).unwrap();
    let used: Vec<u64> = fds.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let free = (0..=used.len() as u64).find(|fd| !used.contains(fd)).unwrap();
    let limit = |limit| prlimit(Some(server), Resource::Nofile, limit).unwrap();
    let before = limit(Rlimit { current: Some(free), ..getrlimit(Resource::Nofile) });
    // The first is accepted, because accept(2) has its descriptor already, and the second is not.
    let during = [(); 2].map(|()| UnixStream::connect(place.path("sock")).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(500));
    limit(before);
    assert_eq!(ask(&place, &json!({"do": "faults"}))["faults"], json!([]));
    drop(during);
    place.unmount_and_check("image");
}

#[test]
fn the_model_decides_what_is_lost_and_a_seed_repeats_a_choice() {
    needs_fuse!();
    let save = |place: &Place| {
        for n in 0..8 {
            create(place, &format!("tmp{n}"), &[n; 6000]).sync_all().unwrap();
            fs::rename(place.path(&format!("mnt/tmp{n}")), place.path(&format!("mnt/doc{n}"))).unwrap();
        }
    };
    let place = live("");
    // fsync makes the new name durable on ext4, but not by POSIX.
    create(&place, "one", b"1").sync_all().unwrap();
    crash(&place, " --socket sock --model ext4");
    assert_eq!(names(&place), ["one"]);
    create(&place, "two", b"2").sync_all().unwrap();
    crash(&place, " --socket sock");
    assert_eq!(names(&place), ["one"]);
    // Remove the file durably: the random choices below start without files.
    fs::remove_file(place.path("mnt/one")).unwrap();
    sync_dir(&place);
    crash(&place, " --socket sock");
    let mut seen = std::collections::BTreeSet::new();
    for seed in [1, 2, 3, 4, 1] {
        save(&place);
        crash(&place, &format!(" --socket sock --random {seed}"));
        seen.insert((seed, names(&place)));
        names(&place).iter().for_each(|name| fs::remove_file(place.path("mnt").join(name)).unwrap());
        sync_dir(&place);
        crash(&place, " --socket sock");
        assert_eq!(names(&place), Vec::<String>::new());
    }
    assert_eq!(seen.len(), 4, "a seed leaves the same each time: {seen:?}");
    let choices: std::collections::BTreeSet<_> = seen.iter().map(|s| &s.1).collect();
    assert!(choices.len() > 1, "{seen:?}");
    place.unmount_and_check("image");
}

#[test]
fn the_socket_answers_when_it_is_done_and_refuses_what_it_does_not_know() {
    needs_fuse!();
    let place = live("");
    create(&place, "lost", b"x");
    let told = ask(&place, &json!({"do": "crash", "model": "xfs"}));
    assert_eq!((&told["crash"]["crashes"], &told["error"]), (&1.into(), &Value::Null), "{told}");
    assert_eq!(names(&place), Vec::<String>::new());
    for (request, why) in [
        (json!({"do": "dance"}), "not a request"),
        (json!({"do": "crash", "model": "vfat"}), "vfat"),
        (json!({"do": "crash", "more": 1}), "not a request"),
        (json!({"do": "crash", "torn": true, "model": "btrfs"}), "tears no pages"),
        (json!({"do": "crash", "torn": true, "seed": 1}), "contradict"),
        (json!({"do": "crash", "kill": [1]}), "larger than 1"),
        (json!({"do": "fault", "rule": "on=fsync"}), "do= is missing"),
        (json!({"do": "wait", "crashes": 9, "seconds": 0.01}), "fewer than 9 crashes"),
        (json!({"do": "wait", "crashes": 1, "seconds": -1.0}), "seconds"),
    ] {
        let told = ask(&place, &request);
        assert!(told["error"].as_str().unwrap().contains(why), "{request}: {told}");
    }
    let mut garbage = UnixStream::connect(place.path("sock")).unwrap();
    garbage.write_all(&[0xff; 100]).unwrap();
    drop(garbage);
    assert_eq!(ask(&place, &json!({"do": "wait", "crashes": 1}))["crash"]["crashes"], 1);
    // Without --socket the commands find the socket by the mount's directory.
    place.unmount();
    place.run("crash mount image mnt").ok();
    place.run("crash now mnt").ok();
    place.unmount();
    place.run("mount image mnt").ok();
    place.run("crash now mnt").refused(1, &["was not mounted by kedge crash mount"]);
    place.unmount_and_check("image");
    place.run("crash mount none mnt").refused(1, &["none", "--create"]);
    place.run("crash mount image mnt --fault on=fsync").refused(2, &["do= is missing"]);
}

#[test]
fn a_rule_crashes_at_the_chosen_call_and_kills_who_made_it() {
    needs_fuse!();
    let place = live(" --fault on=fsync,path=*.db,nth=2,do=crash,kill=caller");
    let script = "import os\n\
        for n in range(5):\n f = os.open(f'mnt/{n}.db', os.O_CREAT | os.O_WRONLY)\n os.write(f, b'x')\n os.fsync(f)\n \
        d = os.open('mnt', os.O_RDONLY)\n os.fsync(d)\n print(n, flush=True)\n";
    let mut child = place.command("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let told = ask(&place, &json!({"do": "wait", "crashes": 1, "seconds": 100}));
    assert_eq!(told["crash"]["crashes"], 1, "{told}");
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    let mut out = String::new();
    child.stdout.unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "0\n");
    assert_eq!(names(&place), ["0.db"]);
    let rules = place.run("crash fault mnt --socket sock").ok();
    assert!(rules.contains("2 calls, applied 1 times"), "{rules}");

    // The crash comes after the call, so the effect of the call is durable. Another process is
    // killed too.
    let mut sleeper = place.command("sleep").arg("1000").spawn().unwrap();
    let rule = format!("on=fsync,path=9.db,do=crash,when=after,kill={}", sleeper.id());
    place.kedge(["crash", "fault", "mnt", "--clear", "--socket", "sock", &rule]).ok();
    let file = create(&place, "9.db", b"nine");
    sync_dir(&place);
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), EIO);
    assert_eq!(read(&place, "9.db").unwrap(), b"nine");
    until("the process is gone", || sleeper.try_wait().unwrap().is_some());
    drop(file);
    place.unmount_and_check("image");
}

#[test]
fn a_torn_write_leaves_its_first_sectors() {
    needs_fuse!();
    let place = live("");
    let file = create(&place, "f", &[1; 4096]);
    file.sync_all().unwrap();
    sync_dir(&place);
    ask(&place, &json!({"do": "fault", "rule": "on=write,path=f,nth=2,do=torn"}));
    create(&place, "other", b"stays");
    file.write_all_at(&[2; 512], 0).unwrap();
    assert_eq!(file.write_all_at(&[3; 4096], 0).unwrap_err().raw_os_error(), EIO);
    let left = read(&place, "f").unwrap();
    assert_eq!((&left[..2048], &left[2048..]), (&[3; 2048][..], &[1; 2048][..]));
    assert_eq!(read(&place, "other").unwrap(), b"stays");
    drop(file);
    place.unmount_and_check("image");
}

#[test]
fn no_room_no_quota_and_a_slow_disk() {
    needs_fuse!();
    let place = live("");
    for (rule, errno) in
        [("on=write,path=f,do=enospc", 28), ("on=write,path=f,do=edquot", 122), ("on=any,path=f,do=eio", 5)]
    {
        let file = create(&place, "f", b"");
        ask(&place, &json!({"do": "fault", "rule": rule}));
        assert_eq!(file.write_all_at(b"refused", 0).unwrap_err().raw_os_error(), Some(errno), "{rule}");
        file.write_all_at(b"taken", 0).unwrap();
        ask(&place, &json!({"do": "clear"}));
    }
    ask(&place, &json!({"do": "fault", "rule": "on=fsync,path=f,do=slow,time=300"}));
    let file = File::open(place.path("mnt/f")).unwrap();
    let clock = SystemClock::default();
    file.sync_all().unwrap();
    assert!(clock.monotonic().as_millis() >= 300);
    // A crash while the fsync waits makes it fail, although the device would have completed it
    // later.
    ask(&place, &json!({"do": "clear"}));
    ask(&place, &json!({"do": "fault", "rule": "on=fsync,path=f,do=slow,time=400"}));
    let waiting = kedge_base::spawn_named("fsync", move || file.sync_all()).unwrap();
    until("the fsync waits", || ask(&place, &json!({"do": "faults"}))["faults"][0]["applied"] == 1);
    ask(&place, &json!({"do": "crash"}));
    assert_eq!(waiting.join().unwrap().unwrap_err().raw_os_error(), EIO);
    place.unmount_and_check("image");
}

/// Lets an fsync fail once, as on the file system `like`, and retries it. A part of the file was
/// overwritten and a part was appended. Returns the contents after the retry, and after a crash.
fn retried(like: &str) -> (Vec<u8>, Vec<u8>) {
    let place = live("");
    let file = create(&place, "f", b"old old old ");
    file.sync_all().unwrap();
    sync_dir(&place);
    ask(&place, &json!({"do": "fault", "rule": format!("on=fsync,path=f,do=eio,like={like}")}));
    file.write_all_at(b"NEW", 4).unwrap();
    file.write_all_at(b"more", 12).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), EIO);
    // The error is reported once. Nothing is dirty any more, so the second fsync cannot fail.
    file.sync_all().unwrap();
    let mut seen = Vec::new();
    let mut again = &file;
    again.rewind().unwrap();
    again.read_to_end(&mut seen).unwrap();
    drop(file);
    ask(&place, &json!({"do": "crash", "model": "strict"}));
    let left = read(&place, "f").unwrap();
    // Later writes are durable after fsync as usual.
    create(&place, "f", b"after").sync_all().unwrap();
    ask(&place, &json!({"do": "crash", "model": "strict"}));
    assert_eq!(read(&place, "f").unwrap(), b"after");
    place.unmount_and_check("image");
    (seen, left)
}

#[test]
fn a_failed_fsync_loses_the_pages_as_each_file_system_does() {
    needs_fuse!();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (seen, left) = retried("ext4");
    assert_eq!((text(&seen), text(&left)), ("old NEW old more".into(), "old old old \0\0\0\0".into()));
    let (seen, left) = retried("xfs");
    assert_eq!((text(&seen), text(&left)), ("old NEW old more".into(), "old old old ".into()));
    let (seen, left) = retried("btrfs");
    assert_eq!((text(&seen), text(&left)), ("old old old ".into(), "old old old ".into()));
}

#[test]
fn too_long_a_history_counts_as_durable_and_that_is_said() {
    needs_fuse!();
    let place = live(" --history 1M");
    let file = create(&place, "f", b"");
    for n in 0..40u64 {
        file.write_all_at(&[7; 65_536], n * 65_536).unwrap();
    }
    drop(file);
    let told = crash(&place, " --socket sock");
    assert!(told["forgotten"].as_u64().unwrap() > 10, "{told:#}");
    assert!(read(&place, "f").unwrap().len() > 1_000_000);
    let told = crash(&place, " --socket sock");
    assert_eq!((&told["forgotten"], &told["lost_count"]), (&0.into(), &0.into()), "{told:#}");
    place.unmount_and_check("image");
}

/// Repeats pwrite, fsync and a note while `kedge crash now` crashes the mount. The library's own
/// test makes a thousand crashes in each model; this test adds the mount and the kernel.
#[test]
fn nothing_that_was_noted_after_an_fsync_is_lost_on_a_mount() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    needs_fuse!();
    let crashes = if crate::common::long() { 500 } else { 20 };
    for model in ["ext4", "strict"] {
        let place = live("");
        create(&place, "f", b"").sync_all().unwrap();
        sync_dir(&place);
        let (noted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let path = place.path("mnt/f");
                    let Ok(file) = File::options().write(true).open(path) else { continue };
                    let mut next = noted.load(Ordering::SeqCst) + 1;
                    while !stop.load(Ordering::Relaxed) {
                        let written = file.write_all_at(&next.to_le_bytes(), next * 8);
                        if written.and_then(|()| file.sync_all()).is_err() {
                            break;
                        }
                        noted.store(next, Ordering::SeqCst);
                        next += 1;
                    }
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for n in 0..crashes {
                    let before = noted.load(Ordering::SeqCst);
                    until("an fsync", || noted.load(Ordering::SeqCst) > before);
                    crash(&place, &format!(" --model {model}"));
                    let noted = noted.load(Ordering::SeqCst);
                    let bytes = read(&place, "f").unwrap();
                    for number in 1..=noted {
                        let at = number as usize * 8;
                        let found = bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().unwrap()));
                        assert_eq!(found, Some(number), "{model}, crash {n}: of {noted}");
                    }
                }
            }));
            stop.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        place.unmount_and_check("image");
    }
}

#[test]
fn an_fsync_of_the_root_that_was_open_before_a_crash_fails() {
    needs_fuse!();
    let place = live("");
    let root = File::open(place.path("mnt")).unwrap();
    root.sync_all().unwrap();
    create(&place, "lost", b"");
    crash(&place, " --model strict");
    assert_eq!(root.sync_all().unwrap_err().raw_os_error(), EIO);
    let mut listing = rustix::fs::Dir::new(root).unwrap();
    assert_eq!(listing.next().unwrap().unwrap_err(), rustix::io::Errno::IO);
    sync_dir(&place);
    assert!(names(&place).is_empty());
    drop(listing);
    place.unmount_and_check("image");
}
