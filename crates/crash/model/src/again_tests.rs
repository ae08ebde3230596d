#![allow(clippy::unwrap_used)]

use super::*;
use crate::campaign::Campaign;
use crate::disk::Disk;
use crate::state::{Body, State};
use crate::trace::{Call, Event};
use std::io::Result as IoResult;

/// A program's recovery: it works on a disk with the promises so far. The inner error is why it
/// fails.
type Recover = fn(&Disk, &[&str]) -> IoResult<Result<(), String>>;

/// Makes a disk whose recording starts with this state.
fn holding(state: &State) -> Disk {
    let disk = Disk::new();
    state.walk(&mut |path, _, node| {
        let path = std::str::from_utf8(path).unwrap();
        match &node.body {
            Body::File(body) => {
                let file = disk.create(path).unwrap();
                body.pieces().for_each(|(at, bytes)| file.write_at(at, bytes).unwrap());
                file.set_len(body.size).unwrap();
            }
            Body::Dir(_) if path.is_empty() => {}
            _ => disk.create_dir(path).unwrap(),
        }
    });
    disk.settle();
    disk
}

/// The recording of a check that ended with this exit code.
fn ended(disk: &Disk, code: i32) -> Trace {
    let mut trace = disk.trace();
    let call = Call::End { code };
    trace.events.push(Event { time: 0, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() });
    trace
}

fn crash(trace: &Trace, recover: Recover, depth: u32) -> Recoveries {
    let judge = |disk: &Disk, told: &[&str]| recover(disk, told).unwrap_or_else(|e| Err(e.to_string()));
    let checker = |case: &Case<'_>| match judge(&Disk::after(case.state.clone()), case.told) {
        Ok(()) => Verdict::Good,
        Err(why) => Verdict::Bad(why),
    };
    let recorder = |case: &Case<'_>| {
        let disk = holding(case.state);
        let code = i32::from(judge(&disk, case.told).is_err());
        Ok(ended(&disk, code))
    };
    let model = Model::by_name("posix").unwrap();
    let budget = Budget::default();
    let report = Campaign { trace, model, checker: &checker, budget: budget.clone(), hear: None }.run();
    assert!(report.passed(), "the first recovery works: {:#?}", report.failures);
    let (checker, recorder) = (&checker, &recorder);
    Again { checker, recorder, depth, recoveries: 32, budget, hear: None }.run(trace, model, &report.outcome)
}

fn write(disk: &Disk, path: &str, bytes: &[u8]) -> IoResult<()> {
    disk.create(path)?.write_at(0, bytes)
}

/// A transfer of 10 from `a` to `b`, with its redo record in `log`.
fn transfer() -> Trace {
    let disk = Disk::new();
    for (name, text) in [("a", b"100"), ("b", b"100")] {
        write(&disk, name, text).unwrap();
    }
    disk.settle();
    write(&disk, "log.tmp", b"10").unwrap();
    disk.sync("log.tmp").unwrap();
    disk.rename("log.tmp", "log").unwrap();
    disk.sync("").unwrap();
    disk.trace()
}

fn number(disk: &Disk, path: &str) -> IoResult<i64> {
    let bytes = disk.read(path)?;
    String::from_utf8_lossy(&bytes).trim().parse().map_err(std::io::Error::other)
}

fn store(disk: &Disk, path: &str, n: i64) -> IoResult<()> {
    let file = disk.open(path)?;
    file.write_at(0, format!("{n:03}").as_bytes())?;
    file.sync_data()
}

/// Checks that the sum is unchanged.
fn is_sound(disk: &Disk) -> IoResult<Result<(), String>> {
    let sum = number(disk, "a")? + number(disk, "b")?;
    Ok(if sum == 200 { Ok(()) } else { Err(format!("a and b are {sum} together")) })
}

/// The record has a difference, so a recovery that is crashed in the middle applies it twice.
fn applies_differences(disk: &Disk, _: &[&str]) -> IoResult<Result<(), String>> {
    if disk.exists("log") {
        let n = number(disk, "log")?;
        store(disk, "a", number(disk, "a")? - n)?;
        store(disk, "b", number(disk, "b")? + n)?;
        disk.remove("log")?;
        disk.sync("")?;
    }
    is_sound(disk)
}

/// The record determines the new values, so the recovery can be repeated.
fn applies_values(disk: &Disk, _: &[&str]) -> IoResult<Result<(), String>> {
    if disk.exists("log") {
        let n = number(disk, "log")?;
        store(disk, "a", 100 - n)?;
        store(disk, "b", 100 + n)?;
        disk.remove("log")?;
        disk.sync("")?;
    }
    is_sound(disk)
}

/// As above, but this recovery removes the log before the values are durable.
fn removes_the_log_first(disk: &Disk, _: &[&str]) -> IoResult<Result<(), String>> {
    if disk.exists("log") {
        let n = number(disk, "log")?;
        disk.open("a")?.write_at(0, format!("{:03}", 100 - n).as_bytes())?;
        disk.open("b")?.write_at(0, format!("{:03}", 100 + n).as_bytes())?;
        disk.remove("log")?;
        disk.sync("")?;
    }
    is_sound(disk)
}

/// The recovery works only once, because it leaves a file that it does not expect.
fn works_once(disk: &Disk, _: &[&str]) -> IoResult<Result<(), String>> {
    if disk.exists("recovered") {
        return Ok(Err("recovered twice".to_owned()));
    }
    write(disk, "recovered", b"yes")?;
    disk.sync("recovered")?;
    is_sound(disk)
}

#[test]
fn a_recovery_that_applies_differences_is_found() {
    let found = crash(&transfer(), applies_differences, 1);
    assert!(found.failing > 0 && found.broken.is_none(), "{found:#?}");
    let first = &found.failures[0];
    assert!(first.sentence.starts_with("In the recovery from the crash state "), "{first:#?}");
    assert!(first.message.contains("together"), "{first:#?}");
    assert_eq!(first.state.split('/').count(), 2, "{first:#?}");
}

#[test]
fn a_missing_call_in_a_recovery_is_named() {
    let found = crash(&transfer(), removes_the_log_first, 1);
    let explanations = found.failures.iter().filter_map(|f| f.explanation.as_ref());
    let fixes: Vec<&str> = explanations.flat_map(|e| &e.fixes).map(|f| &f.path[..]).collect();
    assert!(fixes.contains(&"a") || fixes.contains(&"b"), "{found:#?}");
}

#[test]
fn a_recovery_that_can_be_repeated_is_not_accused() {
    for depth in 1..=3 {
        let found = crash(&transfer(), applies_values, depth);
        assert_eq!((found.failing, &found.broken, found.is_cut), (0, &None, false), "{found:#?}");
        assert!(found.recorded > found.idle && found.states > 2, "{found:#?}");
    }
    // Deeper recoveries are recorded as well.
    let states = |depth| crash(&transfer(), applies_values, depth).states;
    assert!(states(2) > states(1));
}

#[test]
fn a_recovery_that_works_only_once_is_told_apart_from_a_crash() {
    let found = crash(&transfer(), works_once, 1);
    assert!(found.failing > 0, "{found:#?}");
    let first = &found.failures[0];
    assert!(first.sentence.contains("without a crash in between"), "{first:#?}");
    assert!(first.explanation.is_none() && first.message == "recovered twice", "{first:#?}");
}

/// This recovery fails only after two crashes: in the recovery from a crash of the recovery.
fn needs_two_crashes(disk: &Disk, _: &[&str]) -> IoResult<Result<(), String>> {
    if disk.exists("two") {
        return Ok(Err("the third recovery finds the second unfinished".to_owned()));
    }
    if disk.exists("one") {
        write(disk, "two", b"")?;
        disk.sync("")?;
        disk.remove("two")?;
        disk.remove("one")?;
        disk.sync("")?;
    } else if disk.exists("log") {
        write(disk, "one", b"")?;
        disk.sync("")?;
        disk.remove("one")?;
        disk.remove("log")?;
        disk.sync("")?;
    }
    Ok(Ok(()))
}

#[test]
fn a_failure_that_needs_three_crashes_is_found_at_depth_two() {
    assert_eq!(crash(&transfer(), needs_two_crashes, 1).failing, 0);
    let found = crash(&transfer(), needs_two_crashes, 2);
    assert!(found.failing > 0, "{found:#?}");
    assert_eq!(found.failures[0].state.split('/').count(), 3, "{found:#?}");
}

/// A check that only fails while it is recorded gives no verdict.
#[test]
fn a_check_that_the_recorder_cannot_run_is_no_verdict() {
    let trace = transfer();
    let checker = |_: &Case<'_>| Verdict::Good;
    let model = Model::by_name("posix").unwrap();
    let budget = Budget::default();
    let report =
        Campaign { trace: &trace, model, checker: &checker, budget: budget.clone(), hear: None }.run();
    let run = |recorder: &dyn Recorder<Trace>| {
        let (budget, checker) = (budget.clone(), &checker);
        Again { checker, recorder, depth: 1, recoveries: 4, budget, hear: None }.run(
            &trace,
            model,
            &report.outcome,
        )
    };
    let fails = |case: &Case<'_>| Ok(ended(&holding(case.state), 7));
    assert!(run(&fails).broken.unwrap().contains("while it is recorded (exit code 7)"));
    let cannot = |_: &Case<'_>| Err("no mount".to_owned());
    assert!(run(&cannot).broken.unwrap().ends_with(": no mount"));
}

/// A state on which the check fails while it is recorded is a failure, unless the search has it.
#[test]
fn a_state_that_the_search_did_not_reach_is_a_failure() {
    let disk = Disk::new();
    write(&disk, "f", b"x").unwrap();
    disk.sync("f").unwrap();
    disk.tell("saved f");
    let trace = disk.trace();
    let model = Model::by_name("posix").unwrap();
    let run = |states, is_early: bool| {
        let accepts = |disk: &Disk, told: &[&str]| told.is_empty() != is_early || disk.exists("f");
        let checker = |case: &Case<'_>| match accepts(&Disk::after(case.state.clone()), case.told) {
            true => Verdict::Good,
            false => Verdict::Bad("f is lost".to_owned()),
        };
        let recorder = |case: &Case<'_>| {
            let disk = holding(case.state);
            let code = i32::from(!accepts(&disk, case.told));
            Ok(ended(&disk, code))
        };
        let budget = Budget { states: Some(states), ..Budget::default() };
        let mut report =
            Campaign { trace: &trace, model, checker: &checker, budget: budget.clone(), hear: None }.run();
        let (checker, recorder) = (&checker, &recorder);
        let again = Again { checker, recorder, depth: 1, recoveries: 4, budget, hear: None };
        report.again = Some(again.run(&trace, model, &report.outcome));
        report
    };
    for is_early in [false, true] {
        // One state is the complete one, on which the check passes.
        let report = run(1, is_early);
        let again = report.again.as_ref().unwrap();
        assert_eq!((report.outcome.failing, again.failing), (0, 0), "{again:#?}");
        assert!(again.refused.states > 0 && report.failed() && !report.passed(), "{again:#?}");
        assert_eq!(report.is_early(), is_early, "{again:#?}");
        let first = again.failures.first().unwrap();
        assert!(first.is_refusal && first.message == "f is lost", "{first:#?}");
        assert!(again.verdict().starts_with("the check fails on "), "{}", again.verdict());
        // Here the search finds these states itself.
        let report = run(10_000, is_early);
        let again = report.again.as_ref().unwrap();
        assert!(report.outcome.failing > 0 && again.refused.states == 0, "{again:#?}");
        assert!(again.failures.is_empty() && report.is_early() == is_early, "{again:#?}");
    }
}
