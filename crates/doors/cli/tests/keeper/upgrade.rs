//! `kedge upgrade-server`: another program serves a mount, and no program notices.

use crate::common::keeper::{keeper, kill_server, server};
use crate::common::seeks::is_gone;
use crate::common::{LET_GO, Place, copy_program, needs_fuse, until};
use crate::{beside_programs, has, seed_from_env, within};
use kedge_base::{Clock, HANG, SystemClock, spawn_named};
use kedge_host::handover;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const HANDOVERS: u64 = 10;
/// The longest pause of a handover in milliseconds, on a machine that does nothing else.
const PAUSE_MAX: u64 = 50;

fn handovers_wanted() -> u64 {
    std::env::var("KEDGE_KEEPER_HANDOVERS").map_or(HANDOVERS, |n| n.parse().expect("a number of handovers"))
}

/// The program that a process runs.
fn program_of(pid: Pid) -> PathBuf {
    fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).unwrap()
}

/// Runs a copy of `kedge`.
fn upgrade(place: &Place, program: &Path, words: &[&str]) -> String {
    let mut command = place.command(program.to_str().unwrap());
    command.arg("upgrade-server").args(words);
    let output = crate::common::output_of(command).unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

/// Writes and reads again and again, and counts the durations by classes of milliseconds.
fn latencies(file: File, ended: Arc<AtomicBool>) -> BTreeMap<u64, u64> {
    let (clock, mut classes) = (SystemClock::default(), BTreeMap::new());
    while !ended.load(SeqCst) {
        let begun = clock.monotonic();
        file.write_all_at(b"x", 0).unwrap();
        file.metadata().unwrap();
        let took = clock.since(begun).as_millis() as u64;
        *classes.entry(took.next_power_of_two()).or_insert(0) += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    classes
}

#[test]
fn programs_do_not_notice_another_program() {
    needs_fuse!();
    let seed = seed_from_env().unwrap_or(3);
    println!("KEDGE_SEED={seed}");
    let place = Place::after("mount --create 512M -o keeper disk.kedge mnt");
    let programs = ["one", "two"].map(|name| place.path(name));
    programs.iter().for_each(|program| copy_program(program));
    let wanted = handovers_wanted();
    within(HANG, "handovers", move || {
        let ended = Arc::new(AtomicBool::new(false));
        let file = File::create_new(place.path("mnt/waits")).unwrap();
        let ends = ended.clone();
        let mut waits = Some(spawn_named("waits", move || latencies(file, ends)).unwrap());
        beside_programs(&place, seed, wanted, Duration::from_millis(60), |n| {
            let program = &programs[n as usize % 2];
            let said = upgrade(&place, program, &["mnt"]);
            assert!(said.contains("programs waited for"), "{said}");
            assert_eq!(program_of(server(&place)), program.canonicalize().unwrap());
            if n == wanted {
                ended.store(true, SeqCst);
                let waits = waits.take().unwrap().join().unwrap();
                println!("calls by milliseconds: {waits:?}");
                let seen = keeper(&place);
                assert_eq!((seen["handovers"].as_u64(), seen["deaths"].as_u64()), (Some(wanted), Some(0)));
            }
        });
    });
}

/// Handovers without other load. With KEDGE_FULL=1, on a machine that does nothing else, the pause
/// is at most `PAUSE_MAX`.
#[test]
fn a_handover_is_short() {
    needs_fuse!();
    let place = Place::after("mount --create 512M -o keeper disk.kedge mnt");
    let file = File::create_new(place.path("mnt/waits")).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let ends = ended.clone();
    let waits = spawn_named("waits", move || latencies(file, ends)).unwrap();
    let program = place.path("other");
    copy_program(&program);
    for _ in 0..HANDOVERS {
        let said = upgrade(&place, &program, &["mnt"]);
        let pause = keeper(&place)["handover_last_ms"].as_u64().unwrap();
        assert!(said.contains(&format!("waited for {pause} ms")), "{said}");
    }
    ended.store(true, SeqCst);
    println!("calls by milliseconds: {:?}, keeper: {}", waits.join().unwrap(), keeper(&place));
    let most = keeper(&place)["handover_max_ms"].as_u64().unwrap();
    if crate::common::full() {
        assert!(most <= PAUSE_MAX, "{most} ms");
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_server_may_die_in_a_handover() {
    needs_fuse!();
    let seed = seed_from_env().unwrap_or(4);
    println!("KEDGE_SEED={seed}");
    let place = Arc::new(Place::after("mount --create 256M -o keeper disk.kedge mnt"));
    let program = place.path("other");
    copy_program(&program);
    within(HANG, "deaths in handovers", move || {
        beside_programs(&place, seed, HANDOVERS, Duration::from_millis(30), |n| {
            let pid = server(&place);
            let (asked, program) = (place.clone(), program.clone());
            let asks = spawn_named("asks", move || {
                let mut command = asked.command(program.to_str().unwrap());
                command.args(["upgrade-server", "mnt"]);
                crate::common::output_of(command).unwrap()
            });
            std::thread::sleep(Duration::from_millis(3 * n));
            // The old server may have ended already.
            let _ = kill_process(pid, Signal::KILL);
            let output = asks.unwrap().join().unwrap();
            println!("{n}: {}", String::from_utf8_lossy(&output.stderr).trim());
            until("another server serves", || server(&place) != pid);
        });
    });
}

/// A program whose offer and behaviour as a server the test chooses.
struct Other {
    place: Place,
    program: PathBuf,
}

impl Other {
    /// Returns `None` without a compiler.
    fn new() -> Option<Other> {
        if !has("rustc") {
            return None;
        }
        let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
        fs::write(
            place.path("other.rs"),
            r#"fn main() {
                let name = std::env::current_exe().unwrap();
                if std::env::args().nth(1).unwrap() == "server-offer" {
                    print!("{}", std::fs::read_to_string(name.with_extension("offer")).unwrap());
                    return;
                }
                let does = |what: &str| name.with_extension(what).exists();
                while does("hangs") {
                    std::fs::write(name.with_extension("pid"), std::process::id().to_string()).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                if does("waits") {
                    println!("waits");
                    std::io::stdin().read_line(&mut String::new()).unwrap();
                }
                if does("dies") {
                    std::process::abort();
                }
                std::process::exit(3);
            }"#,
        )
        .unwrap();
        let mut rustc = place.command("rustc");
        rustc.args(["-o", "other", "other.rs"]);
        crate::common::tool(rustc, "rustc");
        let program = place.path("other").canonicalize().unwrap();
        Some(Other { place, program })
    }

    /// Sets the offer of the program: that of `kedge` with other values for some members.
    fn offers(&self, change: Value) {
        let mut offer: Value = serde_json::from_str(&self.place.run("server-offer").ok()).unwrap();
        for (name, value) in change.as_object().unwrap() {
            assert!(offer[name] != *value, "{name}");
            offer[name] = value.clone();
        }
        fs::write(self.program.with_extension("offer"), offer.to_string()).unwrap();
    }

    /// Sets how the program behaves as a server from now on.
    fn does(&self, words: &[&str]) {
        for word in ["hangs", "waits", "dies"] {
            let file = self.program.with_extension(word);
            match words.contains(&word) {
                true => fs::write(file, "").unwrap(),
                false => drop(fs::remove_file(file)),
            }
        }
    }

    fn asks(&self, program: &Path) -> String {
        let mount = kedge_fuse::mount_at(&self.place.path("mnt").canonicalize().unwrap()).unwrap();
        format!("{:#}", handover::ask(&mount, program).unwrap_err())
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    needs_fuse!();
    let Some(other) = Other::new() else { return };
    let place = &other.place;
    fs::write(place.path("mnt/a"), "told").unwrap();
    let before = server(place);
    for (change, why) in [
        (json!({ "protocol": 99, "version": "9.9" }), "version 9.9 serves keepers of protocol 99"),
        (json!({ "memory": 77 }), "memory of layout 77"),
        (json!({ "incompat": 0 }), "does not know features of the image"),
        (json!({ "ro_compat": 0 }), "does not know features of the image"),
    ] {
        other.offers(change);
        let said = other.asks(&other.program);
        assert!(said.contains(why), "{said}");
    }
    place.run("remount -o commit=9 mnt").ok();
    other.offers(json!({ "knows": 0 }));
    let said = other.asks(&other.program);
    assert!(said.contains("cannot serve a mount whose options a remount has changed"), "{said}");
    fs::write(other.program.with_extension("offer"), "x".repeat(10_000)).unwrap();
    assert!(other.asks(&other.program).contains("10000 bytes"));
    fs::write(place.path("plain"), "text").unwrap();
    for (program, why) in [
        (PathBuf::from("/bin/true"), "no kedge"),
        (PathBuf::from("/bin/false"), "no kedge"),
        (PathBuf::from("/nonexistent/kedge"), "/nonexistent/kedge"),
        (PathBuf::from("kedge"), "not absolute"),
        (place.path("mnt").canonicalize().unwrap(), "no regular file"),
        (place.path("plain").canonicalize().unwrap(), "not executable"),
    ] {
        let said = other.asks(&program);
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(server(place), before, "nothing has happened");
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_program_that_does_not_start_is_not_noticed() {
    needs_fuse!();
    let Some(other) = Other::new() else { return };
    let place = &other.place;
    other.offers(json!({}));
    let before = server(place);
    for (does, why) in [(&[][..], "exit status: 3"), (&["dies"], "signal 6")] {
        other.does(does);
        let said = other.asks(&other.program);
        assert!(said.contains(why) && !said.contains("again"), "{said}");
    }
    assert_eq!(server(place), before, "nothing has happened");
    assert_eq!((keeper(place)["handovers"].as_u64(), keeper(place)["deaths"].as_u64()), (Some(0), Some(0)));
    place.unmount_and_check("disk.kedge");
}

#[test]
fn the_old_program_serves_if_the_new_one_does_not() {
    needs_fuse!();
    let Some(other) = Other::new() else { return };
    let place = &other.place;
    fs::write(place.path("mnt/a"), "told").unwrap();
    other.offers(json!({}));
    for (does, why) in [(&["waits"][..], "exit status: 3"), (&["waits", "dies"], "signal 6")] {
        other.does(does);
        let before = server(place);
        let said = other.asks(&other.program);
        assert!(said.contains(why) && said.contains("the old program serves again"), "{said}");
        let after = server(place);
        assert_ne!(after, before);
        assert_eq!(program_of(after), Path::new(env!("CARGO_BIN_EXE_kedge")).canonicalize().unwrap());
    }
    // The keeper starts the old program again also after a death.
    kill_server(place, Signal::KILL);
    assert_eq!(fs::read(place.path("mnt/a")).unwrap(), b"told");
    // The failed start of the other program counts as a death.
    assert_eq!((keeper(place)["handovers"].as_u64(), keeper(place)["deaths"].as_u64()), (Some(1), Some(2)));
    place.unmount_and_check("disk.kedge");
}

/// The old server dies while its successor starts, and another request waits for the first one.
#[test]
fn a_death_beside_a_program_that_starts_is_an_ordinary_death() {
    needs_fuse!();
    let Some(other) = Other::new() else { return };
    let place = other.place.path("mnt");
    other.offers(json!({}));
    other.does(&["hangs"]);
    let asks = |program: PathBuf| {
        let mount = kedge_fuse::mount_at(&place.canonicalize().unwrap()).unwrap();
        spawn_named("asks", move || handover::ask(&mount, &program).map_err(|e| format!("{e:#}"))).unwrap()
    };
    let before = server(&other.place);
    let first = asks(other.program.clone());
    let started = || fs::read_to_string(other.program.with_extension("pid")).ok()?.parse().ok();
    until("the program starts", || started().is_some());
    let successor = Pid::from_raw(started().unwrap()).unwrap();
    let second = asks(PathBuf::from(env!("CARGO_BIN_EXE_kedge")));
    kill_process(before, Signal::KILL).unwrap();
    let said = first.join().unwrap().unwrap_err();
    assert!(said.contains("before the handover"), "{said}");
    second.join().unwrap().unwrap();
    assert!(is_gone(successor), "it was ended");
    let seen = keeper(&other.place);
    assert_eq!((seen["handovers"].as_u64(), seen["deaths"].as_u64()), (Some(1), Some(1)));
    other.place.unmount_and_check("disk.kedge");
}

#[test]
fn all_mounts_and_none() {
    needs_fuse!();
    let place = Place::after("mount --create 64M -o keeper disk.kedge mnt");
    place.run("mount --create 64M plain.kedge plain").ok();
    place.run("upgrade-server plain").refused(1, &["plain", "no keeper"]);
    place.run("upgrade-server .").refused(1, &["not a mount of KedgeFS"]);
    place.run("upgrade-server").refused(2, &["--all"]);
    place.run("upgrade-server --all mnt").refused(2, &["--all"]);
    let before = server(&place);
    let said = place.run("upgrade-server mnt").ok();
    assert!(said.contains("mnt: version"), "{said}");
    assert_ne!(server(&place), before);
    place.run("umount plain").ok();
    place.unmount_and_check("disk.kedge");
}

#[test]
fn all_mounts_of_a_user() {
    needs_fuse!(root: "only root can hide the mounts of other tests");
    let place = Place::new();
    let script = format!(
        "mount --make-rprivate /\n{LET_GO}mount -t tmpfs none /run; k={}
         $k upgrade-server --all
         $k mount --create 64M -o keeper one.kedge one; $k mount --create 64M two.kedge two
         $k upgrade-server --all; $k umount one; $k umount two",
        env!("CARGO_BIN_EXE_kedge")
    );
    let mut command = place.command("unshare");
    command.args(["--mount", "sh", "-ec", &script]);
    let said = crate::common::tool(command, "util-linux");
    let lines: Vec<&str> = said.lines().filter(|line| !line.contains(" is made, ")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_eq!(lines[0], "no mount of this user has a keeper");
    assert!(lines[1].contains("one: version"), "{said}");
}
