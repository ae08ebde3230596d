//! Changes of trees on hosts without space and on devices that fail.

use crate::common::failing::Failing;
use crate::common::images::{assert_clean, errno, names, open};
use crate::trees::{OWNER, get};
use kedge_base::BlockNo;
use kedge_device::MemDevice;
use kedge_device::sim::{FaultPlan, OpKind};
use kedge_format::node::{NODE_SIZE, NodeView};
use kedge_format::{ItemKind, Key};
use kedgefs::{Error, FileSystem, Ino, SetAttr, XattrMode};

/// If the host of a sparse image is full, a fork fails before anything of it exists. A deletion is
/// tried; the error then means that it is not durable yet.
#[test]
fn a_full_host_refuses_forks_and_lets_trees_go() {
    const ENOSPC: i32 = 28;
    let device = Failing::new();
    let fs = device.open();
    device.create(&fs, b"file");
    let fork = |name: &[u8]| fs.fork(Ino::ROOT, Ino::ROOT, name, false);
    let old = fork(b"old").unwrap().ino;
    let inside = fs.lookup(old, b"file").unwrap().ino;
    device.host_full(true);
    assert_eq!(fork(b"new").unwrap_err().errno(), ENOSPC);
    assert_eq!(fs.roll_back(Ino::ROOT, Ino::ROOT, b"old").unwrap_err().errno(), ENOSPC);
    assert_eq!(fs.lookup(Ino::ROOT, b"old").unwrap().ino, old);
    assert!(matches!(fs.lookup(Ino::ROOT, b"new"), Err(Error::NotFound)));
    assert_eq!(fs.delete_tree(Ino::ROOT, b"old").unwrap_err().errno(), ENOSPC);
    assert!(matches!(fs.lookup(Ino::ROOT, b"old"), Err(Error::NotFound)));
    assert_eq!(fs.getattr(inside).unwrap_err().errno(), 116);
    // No change follows the deletion, until the host has space.
    assert_eq!(fs.create(Ino::ROOT, b"later", 0o644, OWNER).unwrap_err().errno(), ENOSPC);
    assert_eq!(names(&fs, Ino::ROOT), ["file"]);
    device.host_full(false);
    let ino = device.create(&fs, b"later");
    fs.fsync(ino, false).unwrap();
    fork(b"new").unwrap();
    fs.reclaim().unwrap();
    drop(fs);
    let fs = device.after_power_loss();
    assert_eq!(names(&fs, Ino::ROOT), ["file", "later", "new"]);
    fs.close().unwrap();
}

type ChangeOfTrees = fn(&FileSystem) -> kedgefs::Result<()>;

fn root_named(fs: &FileSystem, name: &str) -> Ino {
    fs.tree_named(Ino::ROOT, name.as_bytes()).unwrap()
}

fn the_dir(fs: &FileSystem) -> Ino {
    fs.lookup(Ino::ROOT, b"dir").unwrap().ino
}

/// The host has no space for the checkpoint of a change of the trees, and the device reports space.
/// No change of a file follows: after a crash its record would be applied to the trees before.
#[test]
fn no_change_of_a_file_follows_a_change_of_trees_that_is_not_durable() {
    let fork: ChangeOfTrees = |fs| fs.fork(Ino::ROOT, Ino::ROOT, b"new", true).map(drop);
    let delete: ChangeOfTrees = |fs| fs.delete_tree(the_dir(fs), b"inside");
    let roll_back: ChangeOfTrees =
        |fs| fs.roll_back(root_named(fs, "snapshot"), the_dir(fs), b"inside").map(drop);
    let commit: ChangeOfTrees = |fs| fs.commit_tree(root_named(fs, "fork"), the_dir(fs), b"inside", true);
    let rename: ChangeOfTrees = |fs| fs.rename_tree(the_dir(fs), b"inside", Ino::ROOT, b"outside");
    let moment: ChangeOfTrees = |fs| fs.moments(&[Ino::ROOT]).map(drop);
    let roll_back_root: ChangeOfTrees = |fs| fs.roll_back_root(root_named(fs, "snapshot"));
    let commit_root: ChangeOfTrees = |fs| fs.commit_root(root_named(fs, "fork"), true);
    // The last two make a checkpoint before that of the change.
    let changes = [
        ("fork", fork, false),
        ("delete", delete, false),
        ("rollback", roll_back, false),
        ("commit", commit, false),
        ("rename", rename, false),
        ("moment", moment, false),
        ("rollback of the root", roll_back_root, true),
        ("commit of the root", commit_root, true),
    ];
    // Each change waits for its host for some seconds.
    std::thread::scope(|scope| {
        for (what, change, second) in changes {
            scope.spawn(move || no_change_follows(what, change, second));
        }
    });
}

/// `second`: the host is full after the next checkpoint, not at once.
fn no_change_follows(what: &str, change: ChangeOfTrees, second: bool) {
    let device = Failing::new();
    let fs = device.open();
    device.file(&fs, b"file", 1);
    let inside = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).unwrap().ino;
    fs.fork(Ino::ROOT, Ino::ROOT, b"snapshot", true).unwrap();
    fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap();
    fs.fork(Ino::ROOT, inside, b"inside", false).unwrap();
    device.create(&fs, b"after");
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    let shown = |fs: &FileSystem| (names(fs, Ino::ROOT), names(fs, the_dir(fs)));
    let before = shown(&fs);
    let overwrite = |fs: &FileSystem| {
        let file = fs.lookup(Ino::ROOT, b"file")?.ino;
        fs.write(file, 0, &[b'1'; 4096])?;
        fs.fsync(file, false)
    };
    if second {
        device.quota_used_up_after_checkpoint();
    } else {
        device.quota_used_up(true);
    }
    assert_eq!(errno(change(&fs)), 28, "{what}");
    let tried = [
        overwrite(&fs),
        fs.create(Ino::ROOT, b"later", 0o644, OWNER).map(drop),
        fs.mkdir(the_dir(&fs), b"inside", 0o755, OWNER).map(drop),
        fs.rmdir(Ino::ROOT, b"dir"),
        fs.sync(),
    ];
    // A crash undoes the change.
    let copy = device.durable_copy();
    assert_clean(&copy);
    assert!(tried.iter().all(Result::is_err), "{what}: {tried:?}");
    assert!([0, 1, 4].iter().all(|i| tried[*i].as_ref().is_err_and(|e| e.errno() == 28)), "{tried:?}");
    let recovered = open(&copy);
    assert_eq!(shown(&recovered), before, "{what}");
    assert!(get(&recovered, Ino::ROOT, "file") == [b'0'; 4096], "{what}");
    // Without a crash everything continues when there is space.
    device.quota_used_up(false);
    overwrite(&fs).unwrap();
    if !matches!(what, "moment" | "rollback") {
        assert_ne!(shown(&fs), before, "{what}");
    }
    change(&recovered).unwrap();
    overwrite(&recovered).unwrap();
    for fs in [&fs, &recovered] {
        assert!(get(fs, Ino::ROOT, "file") == [b'1'; 4096], "{what}");
        assert!(get(fs, root_named(fs, "snapshot"), "file") == [b'0'; 4096], "{what}");
        fs.close().unwrap();
    }
    assert_clean(&copy);
    assert_clean(&device.sim.view());
}

/// The leaves of the first tree: first block, first and last key.
fn leaves(device: &MemDevice) -> Vec<(BlockNo, Key, Key)> {
    let checkpoint = kedge_store::read_superblock(device).unwrap().0.checkpoint;
    let (mut left, mut found) = (vec![checkpoint.root], Vec::new());
    while let Some(at) = left.pop() {
        let bytes = device.bytes(at.byte_offset(), NODE_SIZE);
        let node = NodeView::trusted(&bytes);
        match node.level() {
            0 => found.push((at, node.key(0), node.key(node.items() - 1))),
            _ => left.extend((0..node.items()).map(|i| node.child(i).addr)),
        }
    }
    found
}

/// An unfinished truncate is known to a fork although another orphan of the fork cannot be deleted.
/// So the bytes that were cut off do not come back when the file grows there.
#[test]
fn a_fork_finishes_a_truncate_although_an_orphan_cannot_be_deleted() {
    let device = Failing::new();
    let fs = device.open();
    let orphan = device.create(&fs, b"orphan");
    for n in 0..40 {
        fs.setxattr(orphan, format!("user.{n}").as_bytes(), &[7; 1500], XattrMode::Any).unwrap();
    }
    let file = device.create(&fs, b"file");
    const EXTENTS: u64 = 2000;
    for n in 0..EXTENTS {
        fs.write(file, 2 * n * 4096, &[b'x'; 4096]).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let has_only = |ino: Ino, kind: ItemKind, (_, first, last): &(BlockNo, Key, Key)| {
        [first, last].iter().all(|key| (key.ino, key.kind) == (ino.0, kind as u8))
    };
    let leaves = leaves(&device.sim.view());
    let of_orphan = leaves.iter().find(|leaf| has_only(orphan, ItemKind::Xattr, leaf)).unwrap().0;
    let of_file = leaves.iter().filter(|leaf| has_only(file, ItemKind::Extent, leaf));
    let of_file = of_file.max_by_key(|leaf| leaf.1).unwrap().0;
    let fs = device.open();
    fs.lookup(Ino::ROOT, b"orphan").unwrap();
    fs.pin(orphan).unwrap();
    fs.unlink(Ino::ROOT, b"orphan").unwrap();
    let range = |node: BlockNo| node.byte_offset()..node.byte_offset() + NODE_SIZE as u64;
    let bad = FaultPlan::new(1).bad_range(OpKind::Read, range(of_orphan), 5);
    device.sim.set_plan(bad.bad_range(OpKind::Read, range(of_file), 5));
    let resize = |fs: &FileSystem, ino, size| {
        fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    };
    assert_eq!(errno(resize(&fs, file, 1)), 5);
    let fork = fs.fork(Ino::ROOT, Ino::ROOT, b"fork", false).unwrap().ino;
    assert!(device.sim.struck() > 0);
    device.sim.heal();
    let file = fs.lookup(fork, b"file").unwrap();
    assert_eq!(file.size, 1);
    resize(&fs, file.ino, 2 * EXTENTS * 4096).unwrap();
    let mut bytes = vec![1; 4096];
    for n in 1..EXTENTS {
        fs.read(file.ino, 2 * n * 4096, &mut bytes).unwrap();
        assert!(bytes == [0; 4096], "extent {n}");
    }
    fs.close().unwrap();
    assert_clean(&device.sim.view());
}
