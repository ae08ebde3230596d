//! Recordings made by an attacker: every path in them stays below the state's directory.

use kedge_crash::check::materialise;
use kedge_crash::disk::ROOT_INO;
use kedge_crash::kcr::{self, KcrError};
use kedge_crash::{Call, Event, History, Model, Pick, Recipe, State, Trace};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn event(call: Call) -> Event {
    Event { time: 0, pid: 0, tid: 0, errno: 0, call, stack: Vec::new() }
}

fn make(dir: u64, name: &[u8], ino: u64, mode: u32) -> Call {
    Call::Create { dir, name: name.to_vec(), ino, mode, uid: 0, gid: 0, target: None }
}

fn file(dir: u64, name: &[u8], ino: u64) -> Call {
    make(dir, name, ino, 0o100644)
}

fn dir(dir: u64, name: &[u8], ino: u64) -> Call {
    make(dir, name, ino, 0o040755)
}

fn link(dir: u64, name: &[u8], ino: u64, target: &Path) -> Call {
    let target = target.as_os_str().as_encoded_bytes().to_vec();
    Call::Create { dir, name: name.to_vec(), ino, mode: 0o120777, uid: 0, gid: 0, target: Some(target) }
}

fn write(ino: u64) -> Call {
    Call::Write { ino, offset: 0, data: b"planted".to_vec(), mapped: false }
}

fn trace(calls: Vec<Call>) -> Trace {
    Trace { events: calls.into_iter().map(event).collect() }
}

/// The last state of a recording that was not read from a file, so its names were not vetted.
fn state(calls: Vec<Call>) -> State {
    let trace = trace(calls);
    let history = History::new(&trace, Model::by_name("strict").unwrap());
    history.state(&Recipe::new(*history.points().end(), Pick::All))
}

fn reading(calls: Vec<Call>) -> Result<Trace, KcrError> {
    let mut bytes = Vec::new();
    kcr::write(&trace(calls), &mut bytes).unwrap();
    kcr::read(&bytes[..]).map(|loaded| loaded.trace)
}

const BAD_NAMES: [&[u8]; 9] =
    [b"", b".", b"..", b"/", b"/etc/passwd", b"../out", b"a/b", b"a\0b", &[b'x'; 256]];

/// Sequences of calls. In each, one of the calls that take a name has this name.
fn naming(name: &[u8]) -> Vec<Vec<Call>> {
    let name = name.to_vec();
    vec![
        vec![file(ROOT_INO, &name, 2)],
        vec![file(ROOT_INO, b"a", 2), Call::Link { ino: 2, dir: ROOT_INO, name: name.clone() }],
        vec![
            file(ROOT_INO, b"a", 2),
            Call::Rename {
                dir: ROOT_INO,
                name: b"a".to_vec(),
                new_dir: ROOT_INO,
                new_name: name.clone(),
                ino: 2,
                victim: None,
                exchange: false,
            },
        ],
        vec![
            file(ROOT_INO, b"a", 2),
            Call::Rename {
                dir: ROOT_INO,
                name: name.clone(),
                new_dir: ROOT_INO,
                new_name: b"b".to_vec(),
                ino: 2,
                victim: None,
                exchange: true,
            },
        ],
        vec![file(ROOT_INO, b"a", 2), Call::Remove { dir: ROOT_INO, name, ino: 2, is_dir: false }],
    ]
}

#[test]
fn a_recording_with_a_name_that_is_none_is_refused() {
    for name in BAD_NAMES {
        for (i, calls) in naming(name).into_iter().enumerate() {
            let found = reading(calls);
            assert!(matches!(found, Err(KcrError::Event { .. })), "{name:?}, {i}: {found:?}");
        }
    }
    for name in [&b"..."[..], b"...a", b"-", b" ", b"\xff\n", &[b'x'; 255]] {
        for calls in naming(name) {
            assert!(reading(calls).is_ok(), "{name:?}");
        }
    }
}

/// Reports show the names of failed calls, so these names are vetted too.
#[test]
fn names_of_calls_that_failed_are_looked_at_too() {
    let failed = |name: &[u8]| {
        let mut bytes = Vec::new();
        let trace = Trace { events: vec![Event { errno: 36, ..event(file(ROOT_INO, name, 0)) }] };
        kcr::write(&trace, &mut bytes).unwrap();
        kcr::read(&bytes[..])
    };
    assert!(matches!(failed(b"../../x"), Err(KcrError::Event { .. })));
    // A failed call may have a name that is too long, since that may be why it failed.
    assert!(failed(&[b'x'; 300]).is_ok());
}

#[test]
fn numbers_that_no_call_can_have_are_refused() {
    let sync = |since| Call::Sync { since };
    let bad: Vec<Vec<Call>> = vec![
        vec![file(ROOT_INO, b"a", ROOT_INO)],
        vec![file(ROOT_INO, b"a", 0)],
        vec![Call::Tmpfile { ino: ROOT_INO, mode: 0o100600, uid: 0, gid: 0 }],
        vec![sync(1)],
        vec![Call::Fsync { ino: 2, datasync: false, since: u64::MAX }],
        vec![Call::Msync { ino: 2, ranges: Vec::new(), since: u64::MAX }],
        vec![Call::Msync { ino: 2, ranges: vec![(4096, 0)], since: 0 }],
        vec![Call::Msync { ino: 2, ranges: vec![(0, u64::MAX)], since: 0 }],
        vec![file(ROOT_INO, b"a", 2), Call::Truncate { ino: 2, size: 1 << 63 }],
        vec![Call::Write { ino: 2, offset: i64::MAX as u64, data: vec![1], mapped: false }],
        vec![Call::Allocate { ino: 2, how: kedge_crash::trace::Space::Punch, offset: u64::MAX - 1, len: 1 }],
        vec![link(ROOT_INO, b"l", 3, Path::new(""))],
        vec![link(ROOT_INO, b"l", 3, Path::new("a\0b"))],
        vec![Call::Xattr { ino: 2, name: b"user.a\0b".to_vec(), value: None }],
    ];
    for calls in bad {
        let what = format!("{calls:?}");
        assert!(matches!(reading(calls), Err(KcrError::Event { .. })), "{what}");
    }
}

/// A state is made below its directory or not at all, even if its names were not vetted.
#[test]
fn no_state_leaves_its_directory() {
    let top = tempfile::tempdir().unwrap();
    let out = top.path().join("out");
    fs::create_dir(&out).unwrap();
    let absolute = out.join("planted");
    let names: [&[u8]; 4] =
        [b"../out/planted", absolute.as_os_str().as_encoded_bytes(), b"..", b"sub/../../out/planted"];
    for (i, name) in names.into_iter().enumerate() {
        let place = top.path().join(format!("state{i}"));
        fs::create_dir(&place).unwrap();
        let made = materialise(&state(vec![file(ROOT_INO, name, 2), write(2)]), &place);
        assert!(made.is_err(), "{name:?}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "{name:?}");
    }
    // A directory's name contains a path.
    let place = top.path().join("through");
    fs::create_dir(&place).unwrap();
    let calls = vec![dir(ROOT_INO, b"../out", 2), file(2, b"planted", 3), write(3)];
    assert!(materialise(&state(calls), &place).is_err());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

/// A symlink is contents of the state; no write follows it.
#[test]
fn links_are_made_and_never_followed() {
    let top = tempfile::tempdir().unwrap();
    let (out, place) = (top.path().join("out"), top.path().join("state"));
    fs::create_dir(&out).unwrap();
    fs::create_dir(&place).unwrap();
    // The first name is a symlink, and a later path goes through it: states are made in this order.
    let calls = vec![link(ROOT_INO, b"a", 2, &out), file(ROOT_INO, b"a/planted", 3), write(3)];
    assert!(materialise(&state(calls), &place).is_err());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    assert_eq!(fs::read_link(place.join("a")).unwrap(), out);
    // A symlink that is in the directory beforehand is not followed either.
    let place = top.path().join("state2");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::symlink(&out, place.join("d")).unwrap();
    assert!(materialise(&state(vec![dir(ROOT_INO, b"d", 2), file(2, b"planted", 3)]), &place).is_err());
    std::os::unix::fs::symlink(out.join("planted"), place.join("f")).unwrap();
    assert!(materialise(&state(vec![file(ROOT_INO, b"f", 3), write(3)]), &place).is_err());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

#[test]
fn no_rights_and_no_devices_are_made_for_a_checker() {
    let place = tempfile::tempdir().unwrap();
    let calls = vec![
        make(ROOT_INO, b"suid", 2, 0o106755),
        write(2),
        make(ROOT_INO, b"sgid", 3, 0o042777),
        make(3, b"inner", 4, 0o104711),
        make(ROOT_INO, b"disk", 5, 0o060666),
        make(ROOT_INO, b"tty", 6, 0o020666),
        make(ROOT_INO, b"pipe", 7, 0o010666),
        make(ROOT_INO, b"socket", 8, 0o140666),
        make(ROOT_INO, b"sticky", 9, 0o041777),
    ];
    materialise(&state(calls), place.path()).unwrap();
    let mode =
        |name: &str| fs::symlink_metadata(place.path().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("suid"), mode("sgid"), mode("sgid/inner")), (0o755, 0o777, 0o711));
    assert_eq!(mode("sticky"), 0o1777);
    let names: std::collections::BTreeSet<_> =
        fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["sgid", "sticky", "suid"].map(Into::into).into());
}

/// If each directory has two names, the number of paths doubles at each level. A walk visits each
/// directory once.
#[test]
fn directories_with_many_names_do_not_multiply() {
    let mut calls = Vec::new();
    for n in 0..60 {
        let above = if n == 0 { ROOT_INO } else { n + 1 };
        calls.push(dir(above, b"a", n + 2));
        calls.push(Call::Link { ino: n + 2, dir: above, name: b"b".to_vec() });
    }
    // Add a cycle of directories.
    calls.push(Call::Link { ino: 2, dir: 30, name: b"up".to_vec() });
    let state = state(calls);
    let mut seen = 0u64;
    state.walk(&mut |_, _, _| seen += 1);
    assert_eq!(seen, 61);
    let _ = state.digest();
    let place = tempfile::tempdir().unwrap();
    materialise(&state, place.path()).unwrap();
    assert_eq!(fs::metadata(place.path().join("a/a")).unwrap().nlink(), 3);
}
