#![allow(clippy::unwrap_used)]

use super::*;
use crate::disk::Disk;
use crate::recipe::{Pick, Recipe};

fn checker(command: &str) -> CommandChecker {
    CommandChecker::new(command, Duration::from_secs(60), None, None).unwrap()
}

fn disk() -> Disk {
    let disk = Disk::new();
    disk.create_dir("dir").unwrap();
    disk.create("dir/file").unwrap().write_at(3, b"text").unwrap();
    disk.hard_link("dir/file", "other").unwrap();
    disk
}

fn judge(checker: &CommandChecker, told: &[&str]) -> Verdict {
    let recipe = Recipe::new(7, Pick::Durable);
    checker.check(&Case { recipe: &recipe, state: &disk().state(), told, moment: 0, within: "", job: 0 })
}

#[test]
fn the_command_sees_the_state_and_what_was_told() {
    let all = "test \"$(tr '\\0' . < dir/file)\" = ...text && test dir/file -ef other && test $(ls | wc -l) = 2 \
               && test \"$KEDGE_STATE\" = 7.durable && test \"$KEDGE_DIR\" = \"$(pwd -P)\" && test $KEDGE_ACKED_COUNT = 2 \
               && test \"$KEDGE_ACKED\" = \"$(printf 'a\\nb c')\" && test \"$(cat $KEDGE_ACKED_FILE)\" = \"$KEDGE_ACKED\"";
    assert_eq!(judge(&checker(all), &["a", "b c"]), Verdict::Good);
}

#[test]
fn exit_codes_signals_and_output() {
    let Verdict::Bad(why) = judge(&checker("echo out; echo err >&2; exit 9"), &[]) else { panic!("bad") };
    assert_eq!(why, "exit code 9: out\nerr");
    let Verdict::Bad(why) = judge(&checker("kill -9 $$"), &[]) else { panic!("bad") };
    assert!(why.contains("signal 9"), "{why}");
    let Verdict::Broken(why) = judge(&checker("no-such-command-anywhere"), &[]) else { panic!("broken") };
    assert!(why.contains("127"), "{why}");
}

#[test]
fn a_checker_that_never_ends_is_killed_with_all_it_started() {
    let mut checker = checker("sleep 1000 & sleep 1000");
    checker.timeout = Duration::from_millis(300);
    let Verdict::Bad(why) = judge(&checker, &[]) else { panic!("bad") };
    assert!(why.contains("did not end within 300ms"), "{why}");
}

#[test]
fn a_checker_that_eats_memory_fails() {
    let mut checker = checker("x=$(head -c 300000000 /dev/zero | tr '\\0' x); test -n \"$x\"");
    assert_eq!(judge(&checker, &[]), Verdict::Good);
    checker.memory = Some(100 << 20);
    assert!(matches!(judge(&checker, &[]), Verdict::Bad(_)));
}

#[test]
fn what_a_checker_does_to_a_state_is_not_seen_by_the_next() {
    let checker = checker(
        "test ! -e mine && test $(wc -c < other) = 7 && echo x >> other && touch mine && mkdir deep && chmod 0 deep",
    );
    for _ in 0..3 {
        assert_eq!(judge(&checker, &[]), Verdict::Good);
    }
}

#[test]
fn a_place_without_room_is_no_verdict() {
    let checker = CommandChecker::new("true", Duration::from_secs(60), None, None).unwrap();
    let huge = Disk::new();
    huge.create("f").unwrap().set_len(1 << 62).unwrap();
    let recipe = Recipe::new(1, Pick::All);
    let verdict = checker.check(&Case {
        recipe: &recipe,
        state: &huge.state(),
        told: &[],
        moment: 0,
        within: "",
        job: 0,
    });
    assert!(matches!(verdict, Verdict::Good | Verdict::Broken(_)), "{verdict:?}");
    fs::remove_dir_all(checker.work.path()).unwrap();
    fs::write(checker.work.path(), "a file in the way").unwrap();
    assert!(matches!(judge(&checker, &[]), Verdict::Broken(_)));
    fs::remove_file(checker.work.path()).unwrap();
    fs::create_dir(checker.work.path()).unwrap();
}

/// The checker may be what the kernel has killed. Where the kernel counts nothing, or nothing more
/// than before, a failure is one of the program.
#[test]
fn a_failure_while_memory_ran_out_is_no_verdict() {
    let place = tempfile::tempdir().unwrap();
    let vmstat = place.path().join("vmstat");
    let after = |before: &str, command: &str| {
        fs::write(&vmstat, before).unwrap();
        let command = command.replace("VMSTAT", vmstat.to_str().unwrap());
        let mut checker = CommandChecker::new(&command, Duration::from_secs(60), None, None).unwrap();
        checker.vmstat.clone_from(&vmstat);
        judge(&checker, &[])
    };
    let counters = "nr_free_pages 100\noom_kill 7\nthp_fault_alloc 3\n";
    let one_more = "echo 'oom_kill 8' > VMSTAT; ";
    let verdict = after(counters, &format!("{one_more}kill -9 $$"));
    assert!(matches!(&verdict, Verdict::Broken(why) if why.starts_with("memory ran out")), "{verdict:?}");
    assert!(matches!(after(counters, &format!("{one_more}exit 137")), Verdict::Broken(_)));
    assert_eq!(after(counters, &format!("{one_more}exit 0")), Verdict::Good);
    for before in [counters, "nr_free_pages 100\n", ""] {
        let verdict = after(before, "kill -9 $$");
        assert!(matches!(&verdict, Verdict::Bad(why) if why.contains("signal 9")), "{verdict:?}");
    }
    let checker = CommandChecker::new("true", Duration::from_secs(60), None, None).unwrap();
    assert!(checker.killed_for_memory().is_some(), "Linux has counted them since version 4.13");
}

/// A recorded recovery runs with the rights of a checker, so its state must not have others.
#[test]
fn a_tame_state_has_no_privileges() {
    let mut state = disk().state();
    let ino = state.find(b"dir/file").unwrap().0;
    state.apply(&Edit::Attr { ino, mode: Some(0o6755), uid: None, gid: None });
    for name in ["user.note", "security.capability", "trusted.x"] {
        let value = Some(b"value"[..].into());
        state.apply(&Edit::Xattr { ino, name: name.as_bytes().into(), value });
    }
    let tamed = tame(&state);
    let node = tamed.node(ino).unwrap();
    assert_eq!(node.meta.mode & 0o7777, 0o755);
    assert_eq!(node.xattrs.keys().map(|name| &name[..]).collect::<Vec<_>>(), [b"user.note"]);
    assert_eq!(tamed.content(b"dir/file"), state.content(b"dir/file"));
}
