use super::*;
use crate::model::ROOT;
use crate::ops::{Falloc, Fill, Target};
use crate::view::Found;
use kedgefs::{Attr, FileKind, Ino, Timespec};

/// The view that a file system in this state of the model would give.
fn show(model: &Model) -> View {
    let mut view = View { inodes: BTreeMap::new() };
    for (path, id) in model.paths() {
        let inode = model.inode(id).unwrap();
        let time = |t: Option<Timespec>| t.unwrap_or_default();
        let attr = Attr {
            ino: Ino(id),
            kind: inode.kind,
            mode: inode.kind.mode_bits() | inode.perm,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size(),
            blocks: 0,
            atime: time(inode.atime),
            mtime: time(inode.mtime),
            ctime: time(inode.ctime),
            btime: Timespec::default(),
            flags: inode.flags,
        };
        let found = Found {
            attr,
            content: inode.content.clone(),
            target: inode.target.clone(),
            xattrs: inode.xattrs.clone(),
            entries: inode.entries.iter().map(|(name, child)| (name.clone(), Ino(*child))).collect(),
            limit: None,
            path,
        };
        view.inodes.insert(Ino(id), found);
    }
    view
}

fn history(promise: Promise, ops: &[Op]) -> History {
    let mut model = Model::new();
    let mut history = History::new(model.clone(), promise);
    for op in ops {
        let applied = model.apply(op).unwrap();
        assert!(applied.outcome.is_ok(), "{op:?}");
        history.push(op.clone(), applied.outcome, applied.effect, model.clone());
    }
    history
}

fn p(path: &str) -> Target {
    Target::Path(path.to_owned())
}

fn create(path: &str) -> Op {
    Op::Create { path: path.to_owned(), mode: 0o644 }
}

fn write(path: &str, offset: u64, len: u32, byte: u8) -> Op {
    Op::Write { on: p(path), offset, len, fill: Fill::Byte(byte) }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: from.to_owned(), to: to.to_owned(), how: crate::ops::Rename::Replace }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { on: p(path) }
}

fn check(history: &History, view: &View, after: usize) -> Result<usize, Box<Violation>> {
    check_view(Ok(view), history, after, &history.persists_before(after))
}

/// Returns the states of the model that are allowed after all operations.
fn allowed(history: &History) -> Vec<usize> {
    let end = history.len();
    (0..=end).filter(|k| check(history, &show(history.state(*k)), end).is_ok()).collect()
}

#[test]
fn a_prefix_behind_the_floor_is_allowed_and_no_other() {
    let ops = [create("a"), create("b"), rename("a", "c"), fsync("c"), create("d"), create("e")];
    let h = history(Promise::LastChange, &ops);
    assert_eq!(allowed(&h), [3, 4, 5, 6]);
    let mut skipping = show(h.state(6));
    let d = skipping.inodes[&Ino::ROOT].entries["d"];
    skipping.inodes.remove(&d);
    let root = skipping.inodes.get_mut(&Ino::ROOT).unwrap();
    root.entries.remove("d");
    root.attr.size -= 1;
    let violation = check(&h, &skipping, 6).unwrap_err();
    assert!(violation.to_string().contains("\"d\" is missing"), "{violation}");
}

#[test]
fn the_operation_under_way_may_be_there() {
    let h = history(Promise::LastChange, &[create("a"), create("b"), create("c")]);
    assert!(check(&h, &show(h.state(2)), 1).is_ok());
    assert!(check(&h, &show(h.state(3)), 1).is_err());
}

#[test]
fn an_fsync_that_forces_takes_all_before_it_along() {
    let ops = [create("a"), create("b"), create("c"), fsync("a"), create("d"), fsync("b"), fsync("c")];
    assert_eq!(allowed(&history(Promise::LastChange, &ops)), [3, 4, 5, 6, 7]);
    assert_eq!(
        allowed(&history(Promise::Prefix, &ops)),
        [3, 4, 5, 6, 7],
        "the later fsyncs find all durable"
    );
    let ops = [create("a"), create("b"), create("c"), fsync("a")];
    assert_eq!(allowed(&history(Promise::LastChange, &ops)), [1, 2, 3, 4]);
    assert_eq!(allowed(&history(Promise::Prefix, &ops)), [3, 4]);
}

#[test]
fn growth_forces_too() {
    let ops = [create("a"), Op::Sync, create("b"), write("a", 0, 10, 1), fsync("a")];
    assert_eq!(allowed(&history(Promise::Prefix, &ops)), [4, 5]);
    // With the weaker promise "b" may be lost, but never the bytes of "a".
    let h = history(Promise::LastChange, &ops);
    let mut without = show(h.state(5));
    let b = without.inodes[&Ino::ROOT].entries["b"];
    without.inodes.remove(&b);
    let root = without.inodes.get_mut(&Ino::ROOT).unwrap();
    root.entries.remove("b");
    root.attr.size -= 1;
    assert_eq!(check(&h, &without, 5).unwrap(), 1);
}

fn with_bytes(history: &History, state: usize, path: &str, edit: impl FnOnce(&mut Content)) -> View {
    let mut view = show(history.state(state));
    let ino = Ino(history.state(state).find(path).unwrap());
    let found = view.inodes.get_mut(&ino).unwrap();
    edit(&mut found.content);
    found.attr.size = found.content.size();
    view
}

#[test]
fn bytes_are_values_of_the_window() {
    let ops =
        [create("a"), write("a", 0, 9000, 1), fsync("a"), write("a", 0, 9000, 2), write("a", 4096, 100, 3)];
    let h = history(Promise::Prefix, &ops);
    let mixed = |byte: u8, at: u64| with_bytes(&h, 5, "a", |c| c.write(at, &[byte]));
    for (byte, at, fine) in
        [(1, 0, true), (2, 4100, true), (1, 4100, true), (3, 0, false), (0, 0, false), (7, 8999, false)]
    {
        assert_eq!(check(&h, &mixed(byte, at), 5).is_ok(), fine, "{byte} at {at}");
    }
    assert!(check(&h, &with_bytes(&h, 5, "a", |c| c.set_size(8999)), 5).is_err(), "synced size");
    assert!(check(&h, &with_bytes(&h, 5, "a", |c| c.set_size(9001)), 5).is_err(), "never that long");
    assert!(check(&h, &mixed(3, 0), 4).is_err());
    assert!(check(&h, &show(h.state(5)), 4).is_ok(), "the write may have been in progress");
    assert!(check(&h, &show(h.state(5)), 3).is_err(), "a write that had not begun");
}

#[test]
fn unsynced_growth_may_stop_anywhere_and_reads_no_zeros() {
    let h = history(Promise::Prefix, &[create("a"), write("a", 0, 5000, 1), write("a", 5000, 5000, 2)]);
    for size in [0, 1, 4096, 5000, 7000, 10_000] {
        assert!(check(&h, &with_bytes(&h, 3, "a", |c| c.set_size(size)), 3).is_ok(), "{size}");
    }
    for at in [0, 4999, 5000, 9999] {
        let violation = check(&h, &with_bytes(&h, 3, "a", |c| c.zero(at, at + 1)), 3).unwrap_err();
        let said = format!("byte {at} is 0x00, it was beyond the end in state 1");
        assert!(violation.to_string().contains(&said), "{violation}");
    }
    assert!(check(&h, &with_bytes(&h, 3, "a", |c| c.write(6000, &[1])), 3).is_err());
}

/// Zeros that a write or a truncate left between the old end and the new one are a value of the
/// bytes, and so are those of a durable end that is written over.
#[test]
fn zeros_of_a_gap_are_fair_until_something_durable_fills_it() {
    let truncate = |size| Op::Truncate { on: p("a"), size };
    let gap = [create("a"), write("a", 9000, 10, 1), write("a", 4096, 1000, 2)];
    let grown = [create("a"), truncate(9010), write("a", 4096, 1000, 2)];
    let durable = [create("a"), truncate(9010), fsync("a"), write("a", 4096, 1000, 2)];
    for ops in [&gap[..], &grown, &durable] {
        let h = history(Promise::Prefix, ops);
        let end = h.len();
        assert!(check(&h, &with_bytes(&h, end, "a", |c| c.zero(4096, 4500)), end).is_ok(), "{ops:?}");
        assert!(check(&h, &with_bytes(&h, end, "a", |c| c.write(3000, &[2])), end).is_err(), "{ops:?}");
    }
    let h = history(Promise::Prefix, &[&gap[..], &[fsync("a")]].concat());
    assert!(check(&h, &with_bytes(&h, 4, "a", |c| c.zero(4096, 4500)), 4).is_err());
}

#[test]
fn what_a_durable_truncate_cut_off_stays_away() {
    let truncate = |size| Op::Truncate { on: p("a"), size };
    let ops = [
        create("a"),
        write("a", 0, 9000, 1),
        fsync("a"),
        truncate(100),
        truncate(9000),
        create("b"),
        fsync("b"),
    ];
    let h = history(Promise::Prefix, &ops);
    assert!(check(&h, &show(h.state(7)), 7).is_ok());
    assert!(check(&h, &with_bytes(&h, 7, "a", |c| c.write(5000, &[1])), 7).is_err());
    let h = history(Promise::Prefix, &ops[..5]);
    assert_eq!(check(&h, &show(h.state(3)), 5).unwrap(), 2, "nothing forced the truncate");
    assert_eq!(check(&h, &with_bytes(&h, 4, "a", |_| ()), 5).unwrap(), 4);
    assert!(check(&h, &with_bytes(&h, 4, "a", |c| c.set_size(101)), 5).is_err());
}

#[test]
fn a_durable_punch_is_whole() {
    let punch = Op::Fallocate { on: p("a"), how: Falloc::Punch, offset: 10, len: 5000 };
    let ops = [create("a"), write("a", 0, 9000, 1), fsync("a"), punch, fsync("a"), write("a", 20, 5, 4)];
    let h = history(Promise::Prefix, &ops);
    assert!(check(&h, &show(h.state(5)), 6).is_ok());
    assert!(check(&h, &show(h.state(6)), 6).is_ok());
    assert!(check(&h, &with_bytes(&h, 6, "a", |c| c.write(30, &[1])), 6).is_err());
}

#[test]
fn a_durable_clone_is_whole() {
    let clone = Op::Clone { source: p("a"), from: 0, on: p("b"), to: 0, len: 0 };
    let ops = [create("a"), create("b"), write("b", 0, 5000, 1), write("a", 0, 9000, 2), clone, fsync("b")];
    let h = history(Promise::Prefix, &ops);
    assert_eq!(allowed(&h), [5, 6]);
    // A byte from before the clone, and the size from before it, are not allowed.
    assert!(check(&h, &with_bytes(&h, 6, "b", |c| c.write(30, &[1])), 6).is_err());
    assert!(check(&h, &with_bytes(&h, 6, "b", |c| c.set_size(5000)), 6).is_err());
    let h = history(Promise::Prefix, &ops[..5]);
    assert!(check(&h, &show(h.state(4)), 5).is_ok(), "nothing forced the log");
    assert!(check(&h, &with_bytes(&h, 4, "b", |c| c.set_size(9000)), 5).is_err());
}

#[test]
fn explicit_times_survive_their_fsync() {
    let utimes = |mtime| Op::Utimes { on: p("a"), atime: 1, mtime };
    let h = history(Promise::Prefix, &[create("a"), utimes(5), fsync("a"), utimes(6)]);
    let with_time = |sec| {
        let mut view = show(h.state(4));
        view.inodes.get_mut(&Ino(h.state(4).find("a").unwrap())).unwrap().attr.mtime = crate::ops::stamp(sec);
        view
    };
    assert!(check(&h, &with_time(5), 4).is_ok());
    assert!(check(&h, &with_time(6), 4).is_ok());
    assert!(check(&h, &with_time(7), 4).is_err());
    assert!(check(&h, &with_time(7), 2).is_ok(), "not synced");
}

#[test]
fn attributes_are_in_the_sequence() {
    let chmod = |path: &str| Op::Chmod { on: p(path), mode: 0 };
    let h = history(Promise::Prefix, &[create("a"), create("b"), Op::Sync, chmod("a"), chmod("b")]);
    let mut view = show(h.state(5));
    view.inodes.get_mut(&Ino(h.state(5).find("a").unwrap())).unwrap().attr.mode =
        FileKind::Regular.mode_bits() | 0o644;
    assert!(check(&h, &view, 5).is_err(), "the later change without the earlier one");
}

#[test]
fn random_prefixes_are_allowed() {
    for seed in 0..30 {
        let profile = crate::generate::Profile { remounts: 0, ..crate::generate::Profile::default() };
        let mut generator = crate::generate::Generator::new(seed, profile);
        let mut model = Model::new();
        let mut h = History::new(model.clone(), Promise::Prefix);
        while h.len() < 60 {
            let op = generator.next(&model);
            let Some(applied) = model.apply(&op) else { continue };
            h.push(op, applied.outcome, applied.effect, model.clone());
        }
        for after in 0..=h.len() {
            let found = check(&h, &show(h.state(after)), after);
            assert!(found.is_ok(), "seed {seed}: {}", found.unwrap_err());
        }
        assert!(h.state(60).inode(ROOT).is_some());
    }
}

/// Found by crash exploration: an fdatasync forced more of the log than it must. The following
/// fsync had nothing to force, but the oracle demanded the directory entry created between the two.
#[test]
fn an_fdatasync_may_force_more_than_it_must() {
    let punch = Op::Fallocate { on: p("a"), how: Falloc::Punch, offset: 0, len: 4096 };
    let mkdir = Op::Mkdir { path: "d".to_owned(), mode: 0o755 };
    let datasync = Op::Fdatasync { on: p("a") };
    let ops = [create("a"), write("a", 0, 9000, 1), Op::Sync, punch, datasync, mkdir, fsync("a")];
    assert_eq!(allowed(&history(Promise::Prefix, &ops)), [4, 5, 6, 7]);
}

/// With learned times, the oracle rejects a ctime that the file never had, a ctime older than the
/// change that survived, and one older than what an fsync made durable.
#[test]
fn learned_times_are_those_of_a_state() {
    let mut model = Model::new();
    let mut history = History::new(model.clone(), Promise::LastChange);
    let chmod = |mode| Op::Chmod { on: p("a"), mode };
    let ops = [create("a"), chmod(0o600), fsync("a"), write("a", 0, 9, 1), chmod(0o640)];
    let at = |sec| Timespec { sec, nsec: 5 };
    for (i, op) in ops.iter().enumerate() {
        let applied = model.apply(op).unwrap();
        let now = at(10 + i as i64);
        let attr = Attr { mtime: now, ctime: now, ..show(&model).inodes[&Ino::ROOT].attr };
        model.learn_times((at(0), at(99)), |_| Ok(attr)).unwrap();
        history.push(op.clone(), applied.outcome, applied.effect, model.clone());
    }
    // A ctime changes only by the clock.
    model.apply(&chmod(0o644)).unwrap();
    let attr = Attr { ctime: at(100), ..show(&model).inodes[&Ino::ROOT].attr };
    model.learn_times((at(0), at(99)), |_| Ok(attr)).unwrap_err();
    let mut view = show(history.state(4));
    let a = view.at("a").unwrap().attr.ino;
    let mut with = |ctime| {
        view.inodes.get_mut(&a).unwrap().attr.ctime = at(ctime);
        check(&history, &view, 4).map(|_| ())
    };
    with(13).unwrap();
    with(11).expect("the write may not be there, with its times");
    with(10).expect_err("older than the fsync");
    with(12).expect_err("the ctime of no state");
    view = show(history.state(5));
    view.inodes.get_mut(&a).unwrap().attr.ctime = at(13);
    check(&history, &view, 5).map(|_| ()).expect_err("the change of the mode carries its time");
    view.inodes.get_mut(&a).unwrap().attr.ctime = at(14);
    check(&history, &view, 5).map(|_| ()).unwrap();
}
