#![allow(clippy::unwrap_used)]

use super::*;
use crate::trace::Call;

fn trace() -> Trace {
    let event = |call| Event { time: 7, pid: 3, tid: 4, errno: 0, call, stack: vec!["main".into()] };
    let calls = vec![
        Call::Create {
            dir: 1,
            name: b"a\xff".to_vec(),
            ino: 2,
            mode: 0o100644,
            uid: 1,
            gid: 2,
            target: None,
        },
        Call::Write { ino: 2, offset: 5, data: vec![9; 5000], mapped: false },
        Call::Xattr { ino: 2, name: b"user.x".to_vec(), value: None },
        Call::Fsync { ino: 2, datasync: true, since: 2 },
        Call::Mark { text: "done".into() },
    ];
    Trace { events: calls.into_iter().map(event).collect() }
}

fn bytes() -> Vec<u8> {
    let mut out = Vec::new();
    write(&trace(), &mut out).unwrap();
    out
}

#[test]
fn what_is_written_is_read() {
    let loaded = read(&bytes()[..]).unwrap();
    assert_eq!(loaded.trace, trace());
    assert!(loaded.cut.is_none());
}

#[test]
fn a_recording_cut_anywhere_is_used_up_to_there() {
    let bytes = bytes();
    let mut whole = 0;
    for len in HEAD..bytes.len() {
        let loaded = read(&bytes[..len]).unwrap();
        assert_eq!(loaded.trace.events, trace().events[..loaded.trace.events.len()], "cut at {len}");
        whole += usize::from(loaded.cut.is_none());
    }
    // A cut between two records looks like a normal end.
    assert_eq!(whole, 5);
}

#[test]
fn a_flipped_bit_ends_the_recording_and_says_so() {
    let good = bytes();
    for at in HEAD..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let loaded = read(&bad[..]).unwrap();
        let n = loaded.trace.events.len();
        assert!(n < 5 && loaded.cut.is_some(), "bit at {at} not noticed");
        assert_eq!(loaded.trace.events, trace().events[..n]);
    }
}

#[test]
fn other_files_and_versions_are_refused() {
    assert!(matches!(read(&b""[..]), Err(KcrError::NotARecording)));
    assert!(matches!(read(&b"SQLite format 3\0"[..]), Err(KcrError::NotARecording)));
    let mut future = bytes();
    future[8] = 2;
    assert!(matches!(read(&future[..]), Err(KcrError::NotARecording)), "the head has a checksum");
    let sum = crc32c::crc32c(&future[..12]);
    future[12..16].copy_from_slice(&sum.to_le_bytes());
    assert!(matches!(read(&future[..]), Err(KcrError::Version(2))));
}

#[test]
fn a_recording_ends_before_the_zeros_ahead_of_its_records() {
    let mut bytes = bytes();
    bytes.resize(bytes.len() + 70_000, 0);
    let loaded = read(&bytes[..]).unwrap();
    assert_eq!((loaded.trace, loaded.cut), (trace(), None));
}
