//! Runs the listed fsync cases through a real mount, with a power failure at each crash point.
//!
//! The daemon's device keeps unflushed writes in the daemon's memory (`mount --volatile`); SIGKILL
//! loses exactly these. The kernel's caches are above the daemon: changes that the kernel has not
//! sent yet have not happened. The expectations are checked through a new mount.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod expect;
mod operate;

use common::{Place, needs_fuse, until};
use kedge_base::HANG;
use kedge_sim::cases::{Case, FSYNC};
use kedge_sim::rig::within;
use operate::Hands;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;

const IMAGE: &str = "disk.kedge";
/// Only the operations of a case make changes durable, because no case lasts until the commit
/// timer.
const OPTIONS: &str = "commit=300";

struct Machine {
    place: Place,
    hands: Hands,
    options: &'static str,
}

impl Machine {
    fn new(options: &'static str) -> Machine {
        let place = Place::new();
        File::create_new(place.path(IMAGE)).unwrap().set_len(96 << 20).unwrap();
        place.kedge(["mkfs", IMAGE]).ok();
        std::fs::create_dir(place.path("mnt")).unwrap();
        let hands = Hands::new(place.path("mnt"));
        Machine { place, hands, options }
    }

    fn mount(&self) {
        self.place.kedge(["mount", "-o", self.options, IMAGE, "mnt"]).ok();
    }

    fn power_on(&self) {
        self.place.kedge(["mount", "-o", self.options, IMAGE, "mnt", "--volatile"]).ok();
    }

    /// Kills the daemon, which loses its memory and with it the unflushed writes. The image must be
    /// consistent then.
    fn power_off(&mut self) -> Result<(), String> {
        let pid = self.place.info("mnt")["mount"]["pid"].as_i64().unwrap() as i32;
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        self.hands.let_go();
        self.fsck("after the crash")
    }

    /// Checks the image, with retries: the killed process releases the mount and the image a moment
    /// after the signal.
    fn fsck(&self, when: &str) -> Result<(), String> {
        let mut judged = None;
        until("the image is free", || {
            let run = self.place.kedge(["fsck", IMAGE]);
            let busy =
                ["in use by another process", "is mounted on"].iter().any(|busy| run.err.contains(busy));
            judged = Some(run);
            !busy
        });
        let judged = judged.expect("it has run");
        let said = format!("fsck {when}: {}{}", judged.out, judged.err);
        if judged.code == 0 { Ok(()) } else { Err(said) }
    }

    fn end(mut self) -> Result<(), String> {
        self.hands.let_go();
        self.place.run("umount mnt").ok();
        self.fsck("after the unmount")
    }
}

fn run(case: &Case, options: &'static str) -> Result<(), String> {
    let mut machine = Machine::new(options);
    machine.power_on();
    let explicit = case.ops.iter().any(|op| op[0] == "crash");
    let ops = case.ops.iter().cloned();
    let ops = ops.chain((!explicit).then(|| vec!["crash".into()]));
    let mut crash = 0;
    for op in ops {
        if op[0] != "crash" {
            machine.hands.operate(&op).map_err(|e| format!("{op:?}: {e}"))?;
            continue;
        }
        crash += 1;
        machine.power_off()?;
        if crash < case.crashes() {
            machine.power_on();
        } else {
            machine.mount();
        }
        expect::all(case, crash, &mut machine.hands).map_err(|e| format!("after crash {crash}, {e}"))?;
    }
    machine.end()
}

#[test]
fn every_case_holds_through_the_kernel() {
    needs_fuse!();
    let cases = Case::parse_all(FSYNC).expect("one case a line");
    assert_eq!(cases.len(), 54);
    run_all(cases, OPTIONS);
}

fn run_all(cases: Vec<Case>, options: &'static str) {
    let mut failures = Vec::new();
    for case in cases {
        let (name, why) = (case.name(), case.why.clone());
        if let Err(e) = within(HANG, &name, move || run(&case, options)) {
            failures.push(format!("{name} ({why}): {e}"));
        }
    }
    assert!(failures.is_empty(), "{} cases fail:\n{}", failures.len(), failures.join("\n\n"));
}

/// With a writeback cache all written bytes stay in the kernel's pages until a sync. Without one
/// only bytes that were stored through a mapping do.
#[test]
fn bytes_alone_hold_below_a_writeback_cache_too() {
    needs_fuse!();
    let cases = Case::parse_all(FSYNC).expect("one case a line");
    let cases: Vec<Case> =
        cases.into_iter().filter(|case| ["mapped", "overwrite"].contains(&&*case.test)).collect();
    assert_eq!(cases.len(), 10);
    run_all(cases, "commit=300,writeback_cache");
}

/// The kernel passes the ioctl of reflinks to no FUSE server. The cases clone by copy_file_range(2)
/// instead.
#[test]
fn the_ioctl_of_reflinks_is_refused_cleanly() {
    needs_fuse!();
    let machine = Machine::new(OPTIONS);
    machine.mount();
    std::fs::write(machine.place.path("mnt/foo"), [97; 65536]).unwrap();
    let (from, to) = (machine.place.path("mnt/foo"), machine.place.path("mnt/bar"));
    let cloned = rustix::fs::ioctl_ficlone(File::create(&to).unwrap(), File::open(&from).unwrap());
    assert_eq!(cloned, Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!((std::fs::read(from).unwrap(), std::fs::read(to).unwrap()), (vec![97; 65536], vec![]));
    machine.end().unwrap();
}

/// A kill acts as a power failure: changes that were not made durable are lost, and data that fsync
/// confirmed is there.
#[test]
fn a_kill_loses_what_was_not_flushed() {
    needs_fuse!();
    let mut machine = Machine::new(OPTIONS);
    machine.power_on();
    let at = |name: &str| machine.place.path("mnt").join(name);
    let (kept, lost) = (at("kept"), at("lost"));
    common::write_and_fsync(&kept, b"durable");
    File::create_new(&lost).unwrap();
    assert!(lost.exists());
    machine.power_off().unwrap();
    machine.mount();
    assert_eq!(std::fs::read(kept).unwrap(), b"durable");
    assert!(!lost.exists(), "the image still holds what was never flushed");
    machine.end().unwrap();
}
