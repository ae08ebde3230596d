#![allow(clippy::unwrap_used)]

use super::*;

fn write<'a>(path: &'a str, offset: u64, bytes: &'a str) -> Seen<'a> {
    Seen { op: Op::Write, from: path.as_bytes(), to: None, bytes: Some((offset, bytes.as_bytes())) }
}

fn fsync(path: &str) -> Seen<'_> {
    Seen { op: Op::Fsync, from: path.as_bytes(), to: None, bytes: None }
}

fn kept(met: &Met) -> Vec<(u64, String)> {
    let due = met.after.as_ref().unwrap();
    assert!(due.crash && met.before.is_none());
    due.kept.iter().map(|k| (k.offset, String::from_utf8(k.bytes.clone()).unwrap())).collect()
}

fn with(fault: Fault) -> Faults {
    let mut faults = Faults::below(b"/root".to_vec());
    faults.add(fault);
    faults
}

fn torn_op(parts: Parts, persist: &[u64]) -> Faults {
    let persist = persist.to_vec();
    with(Fault::TornOp(TornOp { file: b"log".to_vec(), occurrence: 2, parts, persist }))
}

#[test]
fn parts_of_the_write_that_is_meant_survive() {
    let mut faults = torn_op(Parts::Equal(3), &[1, 3]);
    assert_eq!(faults.meet(&write("log", 0, "first")), Met::default());
    assert_eq!(faults.meet(&write("other", 0, "first")), Met::default());
    // 10 bytes are divided into 3 parts; the last part has the remainder.
    let met = faults.meet(&write("log", 100, "abcdefghij"));
    assert_eq!(kept(&met), [(100, "abc".into()), (106, "ghij".into())]);
    assert_eq!(faults.meet(&write("log", 0, "third")), Met::default());

    let mut faults = torn_op(Parts::Bytes(vec![4, 1, 5]), &[2]);
    faults.meet(&write("log", 0, "first"));
    assert_eq!(kept(&faults.meet(&write("log", 7, "abcdefghij"))), [(11, "e".into())]);

    let mut faults = torn_op(Parts::Bytes(vec![4, 1]), &[2]);
    faults.meet(&write("log", 0, "first"));
    let met = faults.meet(&write("log", 0, "abcdefghij"));
    assert!(met.refused.unwrap().contains("10 bytes") && met.after.is_none());

    // If there are more parts than bytes, all parts except the last are empty.
    let mut faults = torn_op(Parts::Equal(5), &[1, 5]);
    faults.meet(&write("log", 0, ""));
    assert_eq!(kept(&faults.meet(&write("log", 0, "ab"))), [(0, String::new()), (0, "ab".into())]);
}

#[test]
fn writes_of_the_group_that_is_meant_survive() {
    let torn = |persist: &[u64]| {
        let persist = persist.to_vec();
        with(Fault::TornSeq(TornSeq { file: b"log".to_vec(), occurrence: 2, persist }))
    };
    let mut faults = torn(&[1, 3]);
    let meet = |faults: &mut Faults, seen: Seen<'_>| assert_eq!(faults.meet(&seen), Met::default());
    for text in ["1", "2", "3"] {
        meet(&mut faults, write("log", 0, text));
    }
    meet(&mut faults, fsync("log"));
    // A single write is no group.
    meet(&mut faults, write("log", 0, "alone"));
    meet(&mut faults, fsync("log"));
    meet(&mut faults, write("log", 5, "a"));
    meet(&mut faults, fsync("other"));
    meet(&mut faults, write("log", 6, "b"));
    assert_eq!(kept(&faults.meet(&write("log", 7, "c"))), [(5, "a".into()), (7, "c".into())]);

    // A fault in a group's first write is due at the second write, which makes the group.
    let mut faults = torn(&[1]);
    for text in ["1", "2"] {
        meet(&mut faults, write("log", 0, text));
    }
    meet(&mut faults, fsync("log"));
    meet(&mut faults, write("log", 1, "x"));
    assert_eq!(kept(&faults.meet(&write("log", 2, "y"))), [(1, "x".into())]);
}

#[test]
fn data_is_lost_at_the_call_that_is_meant() {
    let clear = |from: Option<Named>, to: Option<Named>, op, occurrence| {
        with(Fault::Clear(Clear { op, timing: Timing::Before, from, to, occurrence, crash: false }))
    };
    let mut faults = clear(Some(Named::Path(b"log".to_vec())), None, Op::Fsync, Some(2));
    let found = |faults: &mut Faults, seen: Seen<'_>| faults.meet(&seen).before.is_some();
    assert!(!found(&mut faults, fsync("log")) && !found(&mut faults, fsync("log2")));
    assert!(!found(&mut faults, write("log", 0, "x")));
    assert!(found(&mut faults, fsync("log")));
    assert!(!found(&mut faults, fsync("log")));

    // A pattern is matched with the path below the root directory, and is due at each match.
    let pattern = |text| Some(Named::Pattern(Regex::new(text).unwrap()));
    let mut faults = clear(pattern("^/root/wal/[0-9]+$"), None, Op::Fsync, None);
    assert!(found(&mut faults, fsync("wal/12")) && found(&mut faults, fsync("wal/13")));
    assert!(!found(&mut faults, fsync("wal/x")) && !found(&mut faults, fsync("12")));

    let rename = |from: &'static str, to: &'static str| Seen {
        op: Op::Rename,
        from: from.as_bytes(),
        to: Some(to.as_bytes()),
        bytes: None,
    };
    let mut faults = clear(None, pattern("doc"), Op::Rename, None);
    assert!(found(&mut faults, rename("tmp", "doc")) && !found(&mut faults, rename("doc", "tmp")));
    let mut faults = clear(pattern("a"), pattern("b"), Op::Rename, None);
    assert!(found(&mut faults, rename("a", "b")) && !found(&mut faults, rename("b", "b")));
}
