//! Proves that the checks can fail: a named check detects each deliberately broken engine, and the
//! correct engine passes all checks.
//!
//! A check is a workload on a recording device whose crash states are recovered and judged by fsck
//! and the oracle. The media are full of garbage before they are formatted, so that a block that
//! becomes visible before it was written is detected.
//!
//! The switch applies to the whole process. So each variant has a process of its own, and as many
//! run at once as the machine has processors.

mod answers;
mod failing;

use kedge_base::broken::{self, Variant};

use kedge_base::{HANG, ManualClock};
use kedge_device::MemDevice;
use kedge_device::sim::{Choice, CrashState, Event, FaultPlan, OpKind, SimDevice, StatePlan};
use kedge_sim::backend::{Backend, InProcess};
use kedge_sim::cases::{Case, EVICTED};
use kedge_sim::crash::{History, Promise, check_state};
use kedge_sim::explore::{self, Explorer, Plan};
use kedge_sim::forks::{Steps, check};
use kedge_sim::generate::{Generator, Profile};
use kedge_sim::model::Model;
use kedge_sim::ops::{Executor, Falloc, Fill, Op, Rename, Target, XattrFlag};
use kedge_sim::races;
use kedge_sim::rig::{self, Setup, panic_text, within};
use kedge_sim::workload::{Workload, WorkloadId};
use kedge_sim::writers::{Writers, verify_after};
use kedgefs::{FileSystem, SetAttr};
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SEEDS: u64 = 20;

type Check = (&'static str, fn() -> Result<(), String>);

/// The checks: quick and targeted ones first.
const CHECKS: &[Check] = &[
    ("fsync of data in place", fsync_in_place),
    ("fsync of small data", fsync_small),
    ("fdatasync of an overwrite", fdatasync_overwrite),
    ("overwrites that share a flush", shared_flush),
    ("fdatasync of a new size", fdatasync_size),
    ("logged data overwritten in place", logged_then_in_place),
    ("rename over a file", rename_over),
    ("metadata of a file with unwritten data", unwritten_size),
    ("attributes with large values", large_attributes),
    ("a log write overtakes another", overtaking),
    ("a record of a writeback that fails", failing::failed_record),
    ("an fsync beside one that fails", failing::second_fsync),
    ("a durable write that loses the nodes of a checkpoint", failing::lost_nodes),
    ("a write from the kernel's cache on a full image", answers::whole_or_error),
    ("an fsync that is answered later", answers::answered_later),
    ("fsyncs that share a pass", answers::answered_in_groups),
    ("an unmount that loses data", answers::losses_are_noted),
    ("time stamps that the kernel keeps", answers::times_are_kept),
    ("log-resident data that cannot be written", stuck_resident),
    ("fsync after eviction", eviction),
    ("written cases with evictions", evicted_cases),
    ("an inode deleted while it is read", races::deleted_while_read),
    ("an inode linked while it is read", races::linked_while_read),
    ("files that forge log writes", kedge_sim::forge::check),
    ("blocks given back to the device", discarded),
    ("freeze and thaw", frozen),
    ("an image that grows", grown),
    ("an image that becomes smaller", shrunk),
    ("overwrites of a file with checksums", checksummed),
    ("recovery of a file with checksums", checksums_in_the_log),
    ("the first tree replaced", root_replaced),
    ("small files that leave the tree", out_of_the_tree),
    ("small files that are punched", taken_out),
    ("recovery of small files", small_files_in_the_log),
    ("trees that are forked", forked),
    ("files that are cloned", cloned),
    ("a file that gets the contents of another", cloned_whole),
    ("blocks of a deleted fork", refilled),
    ("directories with limits", limited),
    ("atomic writes", atomic),
    ("freed blocks on a full image", full_image),
    ("two checkpoints of a wide tree", checkpoints),
    ("writers beside checkpoints", writers),
    ("fsyncs during a paced checkpoint", kedge_sim::steady::check),
    ("random operations", random_large_log),
    ("random operations, small log", random_small_log),
];

/// Environment variable with the one variant that a process of this test checks.
const ONE: &str = "KEDGE_BROKEN_ONE";
/// Environment variable with the one check that a process of this test runs on the correct engine.
const AS_IT_IS: &str = "KEDGE_BROKEN_AS_IT_IS";

#[test]
fn every_broken_engine_is_caught_and_the_engine_is_not() {
    if let Ok(name) = std::env::var(ONE) {
        let variant = Variant::ALL.iter().find(|variant| format!("{variant:?}") == name);
        let variant = *variant.unwrap_or_else(|| panic!("no variant has the name {name}"));
        broken::set(Some(variant));
        assert!(catch(variant), "nothing catches {variant:?}");
        return;
    }
    if let Ok(name) = std::env::var(AS_IT_IS) {
        let check = CHECKS.iter().find(|(known, _)| *known == name);
        let (_, check) = check.unwrap_or_else(|| panic!("no check has the name {name}"));
        let (result, took) = run(check);
        println!("\n{PASSED}{:<16} {name}: {:.2} s", "", took.as_secs_f64());
        return result.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let filter = std::env::var("KEDGE_BROKEN").ok();
    answered_later_breaks_alike();
    each_evicted_case_fails();
    explorations_see_early_records();
    let checks = CHECKS.iter().map(|(name, _)| (AS_IT_IS, (*name).to_owned()));
    let names = Variant::ALL.iter().map(|variant| format!("{variant:?}"));
    let chosen = names.filter(|name| filter.as_ref().is_none_or(|filter| filter == name));
    let failed = in_processes(&checks.chain(chosen.map(|name| (ONE, name))).collect::<Vec<_>>());
    assert!(failed.is_empty(), "these checks fail, or nothing catches these variants: {failed:?}");
}

/// Runs this test again for each pair of an environment variable and its value, in a process of its
/// own. Returns the values for which the test fails.
fn in_processes(jobs: &[(&str, String)]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((variable, name)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let output = Command::new(std::env::current_exe().expect("this program's path"))
                        .args(["--exact", "every_broken_engine_is_caught_and_the_engine_is_not"])
                        .arg("--nocapture")
                        .env(variable, name)
                        .output()
                        .expect("start this program again");
                    let text = String::from_utf8_lossy(&output.stdout);
                    if output.status.success() {
                        let is_result = |line: &&str| line.starts_with(CAUGHT) || line.starts_with(PASSED);
                        text.lines().filter(is_result).for_each(|line| println!("{line}"));
                    } else {
                        println!("{name}: {}\n{text}", output.status);
                        println!("{}", String::from_utf8_lossy(&output.stderr));
                        failed.lock().push(name.clone());
                    }
                }
            });
        }
    });
    failed.into_inner()
}

/// An asynchronous fsync, which mounts use, follows the same path as a synchronous one. The same
/// broken engines make it fail.
fn answered_later_breaks_alike() {
    const CHECK: &fn() -> Result<(), String> = &(answers::answered_later as fn() -> Result<(), String>);
    run(CHECK).0.expect("the engine as it is");
    for (variant, when) in
        [(Variant::AckBeforeForce, "after fsync"), (Variant::FdatasyncSkipsFlush, "after fdatasync")]
    {
        broken::set(Some(variant));
        let (result, _) = run(CHECK);
        broken::set(None);
        let error = result.expect_err("an answer that waits for nothing");
        assert!(error.starts_with(when), "{variant:?}: {error}");
    }
}

/// Each written case with evictions fails on an engine that forgets evicted inodes. So the inodes
/// of each case are really evicted.
fn each_evicted_case_fails() {
    for case in Case::parse_all(EVICTED).expect("one case a line") {
        broken::set(Some(Variant::ForgetEvicted));
        let verdict = case.run(Choice::None);
        broken::set(None);
        let error = verdict.expect_err(&format!("{} passes although its inodes are forgotten", case.name()));
        println!("{CAUGHT}{:<24} {}: {error}", format!("{:?}", Variant::ForgetEvicted), case.name());
    }
}

/// The exploration of bounded workloads detects a block or a size that is recorded before its
/// bytes: the block holds garbage, and zeros are no value of a file that grew by writes.
fn explorations_see_early_records() {
    let base = explore::base_image(false).expect("an image is made");
    let id = WorkloadId { seq: 1, seed: 0, skeleton: 0, variant: 0 };
    let run =
        |ops: Vec<Op>| Explorer::new(&base, Plan::quick(1)).explore(&Workload { id, ops, settled: 0 }, None);
    let garbage = format!("byte 0 is {:#04x}", rig::GARBAGE);
    let early = [
        (Variant::ExtentBeforeData, vec![create("a"), write("a", 0, 9000, 1), Op::Sync], garbage.clone()),
        (Variant::ExtentBeforeData, vec![create("a"), write("a", 0, 70_000, 1), fsync("a")], garbage),
        (
            Variant::SizeBeyondWritten,
            vec![create("a"), write("a", 0, 9000, 1), chmod("a", 0o600), create("b"), fsync("b")],
            "byte 0 is 0x00, it was beyond the end in state 1".to_owned(),
        ),
    ];
    for (variant, ops, said) in early {
        let found = run(ops.clone());
        assert!(found.is_none(), "the engine as it is: {}", found.expect("a failure"));
        broken::set(Some(variant));
        let found = run(ops);
        broken::set(None);
        let found = found.unwrap_or_else(|| panic!("the exploration does not see {variant:?}"));
        assert!(found.what.contains(&said), "{variant:?}: {found}");
        println!("{CAUGHT}{:<24} exploration: {said}", format!("{variant:?}"));
    }
}

/// Prefix of the line that names the check which detected a variant.
const CAUGHT: &str = "caught: ";
/// Prefix of the line that names a check which the correct engine passes.
const PASSED: &str = "as it is";

/// Variants that only a late check detects, with that check, which runs first: the checks before it
/// would all pass and take up to half a minute. If it does not detect the variant, the others run,
/// too.
const CAUGHT_BY: &[(&str, &[Variant])] = &[
    ("overwrites that share a flush", &[Variant::SharedFlush]),
    ("logged data overwritten in place", &[Variant::ReplayOldData]),
    ("rename over a file", &[Variant::ForgetRenameVictim]),
    ("metadata of a file with unwritten data", &[Variant::SizeBeyondWritten]),
    ("attributes with large values", &[Variant::KeepOldParts]),
    ("a log write overtakes another", &[Variant::AckOutOfOrder, Variant::KeepEpoch]),
    ("a record of a writeback that fails", &[Variant::ErrorNotPropagated]),
    ("an fsync beside one that fails", &[Variant::WaitWithoutLook]),
    ("a durable write that loses the nodes of a checkpoint", &[Variant::LostByDurableWrite]),
    ("a write from the kernel's cache on a full image", &[Variant::ShortWhole]),
    ("fsyncs that share a pass", &[Variant::GroupedAckEarly]),
    ("an unmount that loses data", &[Variant::ForgetLosses]),
    ("time stamps that the kernel keeps", &[Variant::TouchInWriteback]),
    ("log-resident data that cannot be written", &[Variant::TailPastResidents]),
    ("fsync after eviction", &[Variant::ForgetEvicted, Variant::CutNotExact]),
    ("an inode deleted while it is read", &[Variant::StaleInode]),
    ("files that forge log writes", &[Variant::UnkeyedLog]),
    (
        "blocks given back to the device",
        &[Variant::ReuseFreedBlock, Variant::DiscardEarly, Variant::DiscardWithoutFlush],
    ),
    ("freeze and thaw", &[Variant::ThawKeepsClean, Variant::UngatedWriter, Variant::FrozenOpenWrites]),
    ("an image that becomes smaller", &[Variant::CutBeforeSlot, Variant::MoveUncounted]),
    ("overwrites of a file with checksums", &[Variant::StaleChecksum, Variant::SumsInPlace]),
    ("recovery of a file with checksums", &[Variant::SumsInReplay]),
    ("the first tree replaced", &[Variant::DeadListLost, Variant::NamesAfterRoot]),
    ("small files that leave the tree", &[Variant::InlineOutUnflushed]),
    ("small files that are punched", &[Variant::InlineOutUnlogged]),
    ("recovery of small files", &[Variant::InlineInReplay]),
    (
        "trees that are forked",
        &[
            Variant::ReuseReplacedNode,
            Variant::FreeSharedNode,
            Variant::BirthIgnored,
            Variant::ChangedTreeLeftOut,
            Variant::ReplacedRootUnmarked,
        ],
    ),
    (
        "files that are cloned",
        &[Variant::SharedBlockFreed, Variant::CloneWithoutFlag, Variant::CountsInReplay],
    ),
    ("a file that gets the contents of another", &[Variant::CloneAfterTruncate]),
    ("blocks of a deleted fork", &[Variant::ReuseFreedTree]),
    ("directories with limits", &[Variant::LimitCountedTwice, Variant::LimitUnpromised]),
    ("atomic writes", &[Variant::AtomicInParts, Variant::AtomicWrittenEarly]),
    ("writers beside checkpoints", &[Variant::TailBeforeSlot]),
];

/// How often the named check of a variant runs. In some checks threads of the file system must meet
/// at one point, which they may not do on a busy machine.
const TRIES: usize = 3;

/// Runs the checks until one fails. Returns whether one did.
fn catch(variant: Variant) -> bool {
    let own = CAUGHT_BY.iter().find(|(_, variants)| variants.contains(&variant)).map(|(name, _)| *name);
    let (first, rest): (Vec<_>, Vec<_>) =
        CHECKS.iter().enumerate().partition(|(_, (name, _))| Some(*name) == own);
    assert_eq!(first.len(), usize::from(own.is_some()), "no check is named {own:?}");
    let mut total = Duration::ZERO;
    let first = first.iter().copied().cycle().take(TRIES * first.len());
    for (i, (name, check)) in first.chain(rest) {
        let (result, took) = run(check);
        total += took;
        if let Err(e) = result {
            let first: Vec<&str> = e.lines().take(3).collect();
            let (number, seconds) = (i + 1, total.as_secs_f64());
            let variant = format!("{variant:?}");
            println!("\n{CAUGHT}{variant:<24} {number:>3} {seconds:>7.2} s  {name}: {}", first.join(" | "));
            return true;
        }
    }
    false
}

/// Runs a check. A panic or a hang counts as a failure.
#[allow(clippy::disallowed_methods)]
fn run(check: &'static fn() -> Result<(), String>) -> (Result<(), String>, Duration) {
    let start = std::time::Instant::now();
    let result = std::panic::catch_unwind(|| within(HANG, "check", check));
    (result.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic)))), start.elapsed())
}

fn discarded() -> Result<(), String> {
    kedge_sim::discard::check(kedge_sim::discard::Giver::Trim, StatePlan::default()).map(drop)
}

fn frozen() -> Result<(), String> {
    for death in [false, true] {
        let (states, frozen) = kedge_sim::freeze::check(StatePlan::default(), death)?;
        if states <= 50 || frozen == 0 {
            return Err(format!("{states} states, {frozen} frozen"));
        }
    }
    Ok(())
}

fn grown() -> Result<(), String> {
    let plan = StatePlan { subsets: 4, samples: 4, torn: 1, ..StatePlan::default() };
    kedge_sim::resize::check(&kedge_sim::resize::GROWTH, plan).map(drop)
}

fn shrunk() -> Result<(), String> {
    let plan = StatePlan { subsets: 4, samples: 4, torn: 1, ..StatePlan::default() };
    kedge_sim::resize::check(&kedge_sim::resize::SHRINK, plan).map(drop)
}

fn forked() -> Result<(), String> {
    let plan = StatePlan { subsets: 3, samples: 3, torn: 1, ..StatePlan::default() };
    (0..6).try_for_each(|seed| check(Steps::Forks, seed, 60, plan).map(drop))
}

fn root_replaced() -> Result<(), String> {
    let plan = StatePlan { subsets: 4, samples: 4, torn: 1, ..StatePlan::default() };
    kedge_sim::forks::check_root(plan).map(drop)
}

fn cloned() -> Result<(), String> {
    let plan = StatePlan { subsets: 3, samples: 3, torn: 1, ..StatePlan::default() };
    (0..6).try_for_each(|seed| check(Steps::Clones, seed, 60, plan).map(drop))
}

fn limited() -> Result<(), String> {
    let plan = StatePlan { subsets: 2, samples: 2, torn: 0, ..StatePlan::default() };
    (0..4).try_for_each(|seed| kedge_sim::limits::check(seed, 60, plan).map(drop))
}

fn atomic() -> Result<(), String> {
    let plan = StatePlan { subsets: 3, samples: 3, torn: 1, ..StatePlan::default() };
    (0..4).try_for_each(|seed| kedge_sim::atomic::check(seed, 50, seed == 3, plan).map(drop))
}

fn refilled() -> Result<(), String> {
    kedge_sim::forks::check_reuse(StatePlan { subsets: 2, samples: 1, torn: 0, ..StatePlan::default() })
        .map(drop)
}

// ----- recording and exploring -----

fn small() -> Setup {
    Setup { image: 32 << 20, log: 4 << 20, promise: Promise::LastChange, ..Setup::default() }
}

/// A formatted image whose free blocks hold garbage.
fn image(setup: &Setup) -> MemDevice {
    setup.format().expect("formats")
}

fn open(device: &Arc<SimDevice>, setup: &Setup) -> Result<FileSystem, String> {
    rig::open(device, &Arc::new(ManualClock::default()), setup)
}

/// Runs fsck, then mounts, as after a crash.
fn recover(medium: MemDevice, setup: &Setup) -> Result<(Arc<SimDevice>, FileSystem), String> {
    rig::fsck(medium.fork())?;
    let device = Arc::new(SimDevice::new(medium));
    let fs = open(&device, setup)?;
    Ok((device, fs))
}

/// Operations on a recording device, and the model of them.
struct Tape {
    setup: Setup,
    device: Arc<SimDevice>,
    exec: Executor,
    model: Model,
    history: History,
}

impl Tape {
    fn new(setup: Setup) -> Result<Tape, String> {
        let medium = image(&setup);
        Tape::on(setup, medium, Model::new())
    }

    fn on(setup: Setup, medium: MemDevice, model: Model) -> Result<Tape, String> {
        let device = Arc::new(SimDevice::new(medium));
        let exec = Executor::new(open(&device, &setup)?);
        let history = History::new(model.clone(), setup.promise);
        Ok(Tape { setup, device, exec, model, history })
    }

    /// Makes everything so far durable: continues with a clean image and an empty recording.
    fn begin(mut self) -> Result<Tape, String> {
        self.exec.fs.close().map_err(|e| e.to_string())?;
        self.model.forget_handles();
        Tape::on(self.setup, self.device.view(), self.model)
    }

    fn op(&mut self, op: Op) -> Result<(), String> {
        let Some(expected) = self.model.apply(&op) else { return Ok(()) };
        let outcome = self.exec.apply(&op);
        if !expected.allows(&outcome) {
            return Err(format!("{op:?} answers {outcome:?}, expected {:?}", expected.outcome));
        }
        self.history.push(op, outcome, expected.effect, self.model.clone());
        self.device.mark(self.history.len() as u64);
        Ok(())
    }

    fn ops(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<(), String> {
        ops.into_iter().try_for_each(|op| self.op(op))
    }

    fn judge(&self, state: CrashState) -> Result<(), String> {
        let done = state.mark.unwrap_or(0) as usize;
        let said = |e: String| format!("{state:?}: {e}");
        let (_, fs) = recover(state.medium.fork(), &self.setup).map_err(said)?;
        let result = check_state(&fs, &self.history, done, &self.history.persists_before(done));
        let _ = fs.shutdown(false);
        result.map(|_| ()).map_err(|v| said(v.to_string()))
    }

    /// Checks the states that power failures at every event leave.
    fn explore(self, subsets: usize, torn: usize) -> Result<(), String> {
        let _ = self.exec.fs.shutdown(false);
        let plan = StatePlan { subsets, torn, ..StatePlan::default() };
        self.device.recording().states(plan).try_for_each(|state| self.judge(state))
    }
}

fn on(path: &str) -> Target {
    Target::Path(path.to_owned())
}

fn create(path: &str) -> Op {
    Op::Create { path: path.to_owned(), mode: 0o644 }
}

fn write(path: &str, offset: u64, len: u32, seed: u32) -> Op {
    Op::Write { on: on(path), offset, len, fill: Fill::Seed(seed) }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { on: on(path) }
}

fn fdatasync(path: &str) -> Op {
    Op::Fdatasync { on: on(path) }
}

fn chmod(path: &str, mode: u32) -> Op {
    Op::Chmod { on: on(path), mode }
}

/// Runs operations on a slow device, and checks power failures at every event.
fn script(ops: impl IntoIterator<Item = Op>) -> Result<(), String> {
    let mut tape = Tape::new(small())?;
    tape.device.set_plan(FaultPlan::new(1).latency(OpKind::Write, Duration::from_millis(1)));
    tape.ops(ops)?;
    tape.explore(16, 1)
}

// ----- checks that run a list of operations -----

fn fsync_in_place() -> Result<(), String> {
    script([create("a"), write("a", 0, 100_000, 1), fsync("a"), create("b"), fsync("b")])
}

fn fsync_small() -> Result<(), String> {
    script([create("a"), write("a", 0, 100, 1), fsync("a"), write("a", 100, 100, 2), fdatasync("a")])
}

fn fdatasync_overwrite() -> Result<(), String> {
    script([
        create("a"),
        write("a", 0, 60_000, 1),
        Op::Sync,
        write("a", 0, 50_000, 2),
        fdatasync("a"),
        write("a", 4096, 10, 3),
        fdatasync("a"),
    ])
}

/// Overwrites whose records set only time stamps, then writes to blocks that become written by
/// their record, both in two places, so that no durable write covers them.
fn shared_flush() -> Result<(), String> {
    let mut tape = Tape::new(small())?;
    let room = Op::Fallocate { on: on("b"), how: Falloc::Alloc, offset: 0, len: 90_000 };
    tape.ops([create("a"), write("a", 0, 90_000, 1), create("b"), room, Op::Sync])?;
    let mut tape = tape.begin()?;
    tape.ops([
        write("a", 4096, 5000, 2),
        write("a", 50_000, 5000, 3),
        fsync("a"),
        write("b", 4096, 40_000, 4),
        write("b", 50_000, 40_000, 5),
        fsync("b"),
        write("a", 4096, 5000, 6),
        write("a", 50_000, 5000, 7),
        create("c"),
        fsync("a"),
    ])?;
    tape.explore(64, 4)
}

/// Large and small overwrites, and both at the end of the file.
fn checksummed() -> Result<(), String> {
    let mut tape = Tape::new(Setup { checksums: true, ..small() })?;
    tape.ops([
        create("a"),
        write("a", 0, 90_000, 1),
        Op::Sync,
        write("a", 5000, 70_000, 2),
        fdatasync("a"),
        write("a", 89_000, 40_000, 3),
        fdatasync("a"),
        write("a", 4096, 10, 4),
        fdatasync("a"),
        Op::Sync,
    ])?;
    tape.explore(16, 1)
}

/// The log contains parts of blocks when the power fails. It fails again at every write of the
/// recovery: before some blocks are written, and while one is torn.
fn checksums_in_the_log() -> Result<(), String> {
    let setup = Setup { checksums: true, ..small() };
    let mut tape = Tape::new(setup.clone())?;
    tape.ops([create("a"), write("a", 0, 60_000, 1), Op::Sync])?;
    let parts = (0..10).map(|n| write("a", n * 5000 + 700, 1500, 2));
    tape.ops(parts)?;
    tape.ops([fdatasync("a")])?;
    let done = tape.history.len();
    let _ = tape.exec.fs.shutdown(false);
    let first = Arc::new(SimDevice::new(tape.device.view()));
    open(&first, &setup)?.shutdown(false).map_err(|e| e.to_string())?;
    let plan = StatePlan { subsets: 32, torn: 4, ..StatePlan::default() };
    first.recording().states(plan).try_for_each(|state| {
        let said = |e: String| format!("{state:?}: {e}");
        let (_, fs) = recover(state.medium.fork(), &setup).map_err(said)?;
        let result = check_state(&fs, &tape.history, done, &tape.history.persists_before(done));
        let _ = fs.shutdown(false);
        result.map(|_| ()).map_err(|v| said(v.to_string()))
    })
}

/// A file whose data is kept in the tree grows until it gets a block.
fn out_of_the_tree() -> Result<(), String> {
    let mut tape = Tape::new(Setup { inline_max: 2048, ..small() })?;
    tape.ops([create("a"), write("a", 0, 900, 1), fsync("a"), write("a", 900, 3000, 2), Op::Sync])?;
    tape.explore(16, 1)
}

/// A durable file whose data is kept in the tree leaves the tree because of a punched hole. Another
/// file's fsync forces the log, so the record of the first file is durable without an fsync of it.
fn taken_out() -> Result<(), String> {
    let mut tape = Tape::new(Setup { inline_max: 2048, ..small() })?;
    let punch = Op::Fallocate { on: on("a"), how: Falloc::Punch, offset: 100, len: 50 };
    tape.ops([create("a"), write("a", 0, 900, 1), fsync("a"), punch, create("b"), fsync("b")])?;
    tape.explore(16, 1)
}

/// After a crash a file has its contents from before the clone, or those of its source. The first
/// clone writes a checkpoint before its record. The fsync of another file makes the second clone
/// durable.
fn cloned_whole() -> Result<(), String> {
    let clone = |source: &str, target: &str| Op::CloneFile { source: on(source), on: on(target) };
    script([
        create("a"),
        write("a", 0, 50_000, 1),
        create("b"),
        write("b", 0, 20_000, 2),
        Op::Sync,
        clone("a", "b"),
        create("c"),
        write("c", 0, 70_000, 3),
        fsync("c"),
        clone("c", "a"),
        fsync("a"),
        write("b", 100, 10, 4),
        fsync("b"),
    ])
}

/// The log contains a part of a block whose other bytes are kept in the tree.
fn small_files_in_the_log() -> Result<(), String> {
    let mut tape = Tape::new(Setup { inline_max: 2048, ..small() })?;
    tape.ops([
        create("a"),
        write("a", 0, 900, 1),
        fsync("a"),
        write("a", 900, 3000, 2),
        fsync("a"),
        write("a", 100, 10, 3),
        fdatasync("a"),
    ])?;
    tape.explore(16, 1)
}

fn fdatasync_size() -> Result<(), String> {
    let truncate = |size| Op::Truncate { on: on("a"), size };
    script([
        create("a"),
        write("a", 0, 60_000, 1),
        fsync("a"),
        truncate(100_000),
        fdatasync("a"),
        truncate(5000),
        fdatasync("a"),
        write("a", 5000, 300, 2),
        fdatasync("a"),
    ])
}

fn logged_then_in_place() -> Result<(), String> {
    script([
        create("a"),
        write("a", 0, 5000, 1),
        fsync("a"),
        write("a", 100, 3000, 2),
        Op::Sync,
        write("a", 200, 100, 3),
        fsync("a"),
        write("a", 0, 60_000, 4),
        fdatasync("a"),
    ])
}

/// A large value replaces a small one, then a shorter one replaces the large one, which is then
/// removed.
fn large_attributes() -> Result<(), String> {
    let set = |len: usize, letter: &str| {
        let (name, value) = ("user.x".to_owned(), letter.repeat(len));
        Op::SetXattr { on: on("a"), name, value, how: XattrFlag::Any }
    };
    let remove = || Op::RemoveXattr { on: on("a"), name: "user.x".to_owned() };
    let unlink = Op::Unlink { path: "a".to_owned() };
    let sizes = [(10, "a"), (65536, "b"), (9000, "c"), (20_000, "d"), (10, "e")];
    let set_each = sizes.into_iter().flat_map(|(len, letter)| [set(len, letter), fsync("a")]);
    let last = [set(9000, "f"), Op::Sync, remove(), fsync("a"), set(65536, "g"), Op::Sync, unlink, Op::Sync];
    script(std::iter::once(create("a")).chain(set_each).chain(last))
}

fn rename_over() -> Result<(), String> {
    let rename = |from: &str, to: &str| Op::Rename { from: from.into(), to: to.into(), how: Rename::Replace };
    script([
        create("a"),
        write("a", 0, 100, 1),
        fsync("a"),
        create("b"),
        write("b", 0, 200, 2),
        Op::Link { from: on("b"), path: "c".into() },
        rename("a", "b"),
        fsync("b"),
        rename("b", "c"),
        fsync("c"),
    ])
}

// ----- targeted checks without the oracle -----

/// After a crash a file that is only appended to has a prefix of its content: its size is recorded
/// only when its bytes are durable.
fn unwritten_size() -> Result<(), String> {
    let mut tape = Tape::new(small())?;
    tape.ops([
        create("a"),
        write("a", 0, 50_000, 1),
        chmod("a", 0o600),
        create("b"),
        fsync("b"),
        fsync("a"),
    ])?;
    let _ = tape.exec.fs.shutdown(false);
    for state in tape.device.recording().states(StatePlan { subsets: 8, torn: 0, ..StatePlan::default() }) {
        let said = format!("{state:?}");
        let (_, fs) = recover(state.medium, &tape.setup)?;
        // If the file does not exist yet, there is nothing to check.
        if let Ok(bytes) = InProcess(fs.clone()).read("a")
            && bytes != Fill::Seed(1).bytes(0, bytes.len())
        {
            return Err(format!("{said}: {} bytes, not all of them written", bytes.len()));
        }
        let _ = fs.shutdown(false);
    }
    Ok(())
}

fn is_write(event: &Event) -> bool {
    matches!(event, Event::Write { .. })
}

/// Two log writes are in flight, and the second completes first. Neither is acknowledged before the
/// first completes. A mount that finds only the second one never accepts it.
fn overtaking() -> Result<(), String> {
    let setup = small();
    let device = Arc::new(SimDevice::new(image(&setup)));
    let fs = open(&device, &setup)?;
    let before = device.recording().events.len();
    device.set_plan(FaultPlan::new(1).hold(OpKind::Write, 0));
    let (answered, answers) = std::sync::mpsc::channel();
    for n in [1, 2] {
        let backend = InProcess(fs.clone());
        backend.create(&n.to_string()).map_err(|e| e.to_string())?;
        let ino = fs.lookup(kedgefs::Ino::ROOT, n.to_string().as_bytes()).map_err(|e| e.to_string())?.ino;
        let (marked, answered) = (device.clone(), answered.clone());
        let done = Box::new(move |result: kedgefs::Result<()>| {
            result.expect("nothing fails here");
            marked.mark(n);
            // The receiver is gone if the check has already failed.
            let _ = answered.send(());
        });
        fs.fsync_async(ino, false, done);
        // The first log write is held. The loop ends when the second one has completed, or when a
        // broken engine reports success without it.
        let is_done = || {
            let recording = device.recording();
            let mut events = recording.events[before..].iter();
            n == 1 && device.held_up() == 1
                || events.any(|e| matches!(e, Event::Mark(m) if *m == n) || n == 2 && is_write(e))
        };
        while !is_done() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    device.release();
    for _ in 0..2 {
        answers.recv_timeout(HANG).map_err(|e| format!("an fsync is not answered: {e}"))?;
    }
    let _ = fs.shutdown(false);
    let recording = device.recording();
    for (i, event) in recording.events.iter().enumerate().skip(before) {
        let (recovered, fs) = recover(recording.state(i + 1, Choice::None), &setup)?;
        let names = InProcess(fs.clone()).list(".").map_err(|e| e.to_string())?;
        if let Event::Mark(n) = event
            && (1..=*n).any(|n| !names.contains(&n.to_string()))
        {
            return Err(format!("{n} was acknowledged, {names:?} is there"));
        }
        // This record is as long as the lost log write, so the log continues where the completed
        // one begins.
        let backend = InProcess(fs.clone());
        backend.create("x").and_then(|()| backend.fsync("x", false)).map_err(|e| e.to_string())?;
        let _ = fs.shutdown(false);
        let (_, fs) = recover(recovered.crash_as(Choice::None), &setup)?;
        let again = InProcess(fs.clone()).list(".").map_err(|e| e.to_string())?;
        if again.len() != names.len() + 1 {
            return Err(format!("{names:?} and \"x\" became {again:?}"));
        }
        let _ = fs.shutdown(false);
    }
    Ok(())
}

/// A checkpoint that cannot write log-resident data in place leaves it in the log.
fn stuck_resident() -> Result<(), String> {
    let mut tape = Tape::new(small())?;
    tape.ops([create("a"), write("a", 0, 100, 1), fsync("a")])?;
    // The write in place fails, and then the write to another block.
    tape.device.set_plan(FaultPlan::new(1).fail(OpKind::Write, 0, 5).fail(OpKind::Write, 1, 5));
    tape.exec.fs.checkpoint().map_err(|e| e.to_string())?;
    if tape.device.struck() != 2 {
        return Err(format!("{} writes failed, two were to", tape.device.struck()));
    }
    tape.ops([create("b"), fsync("b")])?;
    tape.explore(8, 1)
}

/// An fsync of an evicted file makes it durable.
fn eviction() -> Result<(), String> {
    const FILES: u32 = 2000;
    let mut setup = small();
    setup.mount.cache_size = 2 << 20;
    let device = Arc::new(SimDevice::new(image(&setup)));
    device.stop_recording();
    let fs = open(&device, &setup)?;
    let engine = |e: kedgefs::Error| e.to_string();
    let look = |fs: &FileSystem, i: u32| fs.lookup(kedgefs::Ino::ROOT, i.to_string().as_bytes());
    for i in 0..FILES {
        InProcess(fs.clone()).create(&i.to_string()).map_err(|e| e.to_string())?;
    }
    for round in 1..=5 {
        fs.sync().map_err(engine)?;
        let (file, mode) = (round * 77, 0o700 + round);
        let ino = look(&fs, file).map_err(engine)?.ino;
        fs.setattr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }).map_err(engine)?;
        // Only lookups, so that nothing but the fsync makes the change durable.
        (0..FILES).filter(|i| *i != file).try_for_each(|i| look(&fs, i).map(|_| ())).map_err(engine)?;
        fs.fsync(ino, false).map_err(engine)?;
        let (_, recovered) = recover(device.crash_as(Choice::None), &setup)?;
        let found = look(&recovered, file).map_err(engine)?.mode & 0o7777;
        if found != mode {
            return Err(format!("mode {found:o}, {mode:o} was acknowledged"));
        }
        let _ = recovered.shutdown(false);
    }
    let _ = fs.shutdown(false);
    Ok(())
}

fn evicted_cases() -> Result<(), String> {
    let cases = Case::parse_all(EVICTED).map_err(|e| e.to_string())?;
    cases.iter().try_for_each(|case| case.run(Choice::None).map(drop))
}

/// New data needs the blocks of a file that was just deleted.
fn full_image() -> Result<(), String> {
    let mut tape = Tape::new(Setup { image: 16 << 20, log: 1 << 20, ..small() })?;
    let free = tape.exec.fs.statfs().blocks_available as u32 * 4096;
    let len = free / 10 * 6;
    tape.ops([create("a"), write("a", 0, len, 1), Op::Sync])?;
    let mut tape = tape.begin()?;
    let unlink = Op::Unlink { path: "a".into() };
    tape.ops([unlink, create("b"), write("b", 0, len, 2), fsync("b")])?;
    tape.explore(4, 0)
}

/// A tree of many leaves, most of them changed between checkpoints.
fn checkpoints() -> Result<(), String> {
    let mut tape = Tape::new(small())?;
    let name = |i: usize| format!("a-file-with-a-name-of-some-length-{i:04}");
    for i in 0..600 {
        // These operations are not part of the history.
        let op = create(&name(i));
        tape.model.apply(&op);
        tape.exec.apply(&op);
    }
    let mut tape = tape.begin()?;
    for round in 0..3 {
        tape.ops((0..10).map(|i| chmod(&name(i * 60), 0o600 + round)))?;
        tape.exec.fs.checkpoint().map_err(|e| e.to_string())?;
    }
    tape.explore(6, 1)
}

/// Many threads write while checkpoints run constantly: what is acknowledged survives, and no file
/// ever contains foreign bytes.
fn writers() -> Result<(), String> {
    let setup = Setup { image: 48 << 20, log: 4 << 20, ..small() };
    for seed in 0..4 {
        let io = |e: std::io::Error| e.to_string();
        let device = Arc::new(SimDevice::new(image(&setup)));
        let fs = open(&device, &setup)?;
        let backend: Arc<dyn Backend> = Arc::new(InProcess(fs.clone()));
        let writers = Writers::start(&backend, 4, "w", seed).map_err(io)?;
        let (nothing, from) = (writers.snapshot(), device.recording().events.len());
        while writers.operations() < 400 && !writers.ended() {
            fs.checkpoint().map_err(|e| e.to_string())?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let acked = writers.snapshot();
        let medium = device.crash_as(Choice::Torn(seed));
        let recording = device.recording();
        let _ = fs.shutdown(false);
        let begun = writers.stop();
        let (_, fs) = recover(medium, &setup)?;
        verify_after(&InProcess(fs.clone()), &acked, &begun)?;
        let _ = fs.shutdown(false);
        let mut rng = SmallRng::seed_from_u64(seed);
        for _ in 0..60 {
            let at = rng.random_range(from..=recording.events.len());
            let choice = if rng.random() { Choice::None } else { Choice::Torn(rng.random()) };
            let (_, fs) = recover(recording.state(at, choice), &setup)?;
            verify_after(&InProcess(fs.clone()), &nothing, &begun)
                .map_err(|e| format!("seed {seed}, event {at}, {choice:?}: {e}"))?;
            let _ = fs.shutdown(false);
        }
    }
    Ok(())
}

// ----- random operations -----

fn random(setup: &Setup, profile: Profile) -> Result<(), String> {
    for seed in 1..=SEEDS {
        let mut tape = Tape::new(setup.clone())?;
        let mut generator = Generator::new(seed, profile);
        for i in 0..60 {
            let op = generator.next(&tape.model);
            tape.op(op).map_err(|e| format!("seed {seed}: {e}"))?;
            if i % 20 == 19 {
                tape.exec.fs.checkpoint().map_err(|e| e.to_string())?;
            }
        }
        let _ = tape.exec.fs.shutdown(false);
        let recording = tape.device.recording();
        let mut rng = SmallRng::seed_from_u64(seed);
        let states = recording.states(StatePlan { subsets: 2, torn: 1, seed, ..StatePlan::default() });
        for state in states {
            if rng.random_range(0..20) == 0 {
                tape.judge(state).map_err(|e| format!("seed {seed}: {e}"))?;
            }
        }
    }
    Ok(())
}

fn random_large_log() -> Result<(), String> {
    let profile =
        Profile { remounts: 0, extremes: 0, offset_max: 64 << 10, write_max: 20 << 10, ..Profile::default() };
    random(&small(), profile)
}

fn random_small_log() -> Result<(), String> {
    let setup = Setup { promise: Promise::LastChange, ..Setup::cramped() };
    random(&setup, Profile { remounts: 0, extremes: 0, persists: 200, ..Profile::default() })
}
