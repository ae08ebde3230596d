use super::*;
use crate::ops::errno::*;
use crate::ops::{Falloc, Fill, Rename, XattrFlag, acl_bits, acl_bytes};
use kedge_format::item::FILE_SIZE_MAX;

fn p(path: &str) -> Target {
    Target::Path(path.to_owned())
}

fn create(path: &str) -> Op {
    Op::Create { path: path.to_owned(), mode: 0o644 }
}

fn mkdir(path: &str) -> Op {
    Op::Mkdir { path: path.to_owned(), mode: 0o755 }
}

fn rename(from: &str, to: &str, how: Rename) -> Op {
    Op::Rename { from: from.to_owned(), to: to.to_owned(), how }
}

fn link(from: &str, path: &str) -> Op {
    Op::Link { from: p(from), path: path.to_owned() }
}

fn unlink(path: &str) -> Op {
    Op::Unlink { path: path.to_owned() }
}

fn rmdir(path: &str) -> Op {
    Op::Rmdir { path: path.to_owned() }
}

/// Makes a tree: d/ with d/s/ and d/f, an empty e/, f, g with the second name h, sym, fifo.
fn tree() -> Model {
    let mut model = Model::new();
    let symlink = Op::Symlink { target: "x".into(), path: "sym".into() };
    let fifo = Op::Mknod { path: "fifo".into(), special: Special::Fifo };
    for op in [
        mkdir("d"),
        mkdir("d/s"),
        create("d/f"),
        mkdir("e"),
        create("f"),
        create("g"),
        link("g", "h"),
        symlink,
        fifo,
    ] {
        assert_eq!(answer(&mut model, &op), 0, "{op:?}");
    }
    model
}

/// Applies `op` and returns the errno; 0 for success.
fn answer(model: &mut Model, op: &Op) -> i32 {
    match model.apply(op).expect("specified").outcome {
        Outcome::Failed(errno) => errno,
        _ => 0,
    }
}

#[test]
fn every_answer_is_what_linux_gives() {
    use Rename::{Exchange, NoReplace, Replace};
    let long = "n".repeat(256);
    let table: Vec<(Op, i32)> = vec![
        (create("f"), EEXIST),
        (create("f/x"), ENOTDIR),
        (create("missing/x"), ENOENT),
        (create(&long), ENAMETOOLONG),
        (create(&long[..255]), 0),
        (create("."), EINVAL),
        (mkdir("d"), EEXIST),
        (mkdir("sym"), EEXIST),
        (Op::Mknod { path: "f".into(), special: Special::Chr }, EEXIST),
        (Op::Symlink { target: String::new(), path: "new".into() }, ENOENT),
        (Op::Symlink { target: "t".repeat(4096), path: "new".into() }, ENAMETOOLONG),
        (Op::Symlink { target: "t".repeat(4095), path: "new".into() }, 0),
        (link("d", "new"), EPERM),
        (link("f", "d"), EEXIST),
        (link("d", "f"), EEXIST),
        (link("missing", "f"), ENOENT),
        (link("sym", "new"), 0),
        (unlink("d"), EISDIR),
        (unlink("missing"), ENOENT),
        (unlink("f/x"), ENOTDIR),
        (rmdir("d"), ENOTEMPTY),
        (rmdir("e"), 0),
        (rmdir("f"), ENOTDIR),
        (rmdir("sym"), ENOTDIR),
        (rmdir("missing"), ENOENT),
        (rename("missing", "x", Replace), ENOENT),
        (rename("missing", &long, Replace), ENOENT),
        (rename("f", &long, Replace), ENAMETOOLONG),
        (rename("f", "f/x", Replace), ENOTDIR),
        (rename("f", "d", Replace), EISDIR),
        (rename("f", "e", Replace), EISDIR),
        (rename("d", "f", Replace), ENOTDIR),
        (rename("e", "d", Replace), ENOTEMPTY),
        (rename("d", "e", Replace), 0),
        (rename("d", "d/x", Replace), EINVAL),
        (rename("d", "d/s", Replace), EINVAL),
        (rename("d", "d/s/x", Replace), EINVAL),
        (rename("d", "d/s", NoReplace), EEXIST),
        (rename("d/f", "d", Replace), ENOTEMPTY),
        (rename("d/s", "d", Replace), ENOTEMPTY),
        (rename("d/f", "d", Exchange), EINVAL),
        (rename("d", "d/f", Exchange), EINVAL),
        (rename("f", "f", Replace), 0),
        (rename("f", "f", NoReplace), EEXIST),
        (rename("g", "h", Replace), 0),
        (rename("g", "h", NoReplace), EEXIST),
        (rename("f", "x", NoReplace), 0),
        (rename("f", "g", NoReplace), EEXIST),
        (rename("f", "x", Exchange), ENOENT),
        (rename("d", "f", Exchange), 0),
        (Op::Truncate { on: p("d"), size: 1 }, EISDIR),
        (Op::Truncate { on: p("fifo"), size: 1 }, EINVAL),
        (Op::Truncate { on: p("f"), size: FILE_SIZE_MAX }, 0),
        (Op::Truncate { on: p("f"), size: FILE_SIZE_MAX + 1 }, EFBIG),
        (Op::Write { on: p("d"), offset: 0, len: 1, fill: Fill::Byte(1) }, EISDIR),
        (Op::Write { on: p("f"), offset: FILE_SIZE_MAX, len: 1, fill: Fill::Byte(1) }, EFBIG),
        (Op::Fallocate { on: p("f"), how: Falloc::Alloc, offset: 0, len: 0 }, EINVAL),
        (Op::Fallocate { on: p("f"), how: Falloc::Alloc, offset: 1, len: u64::MAX }, EFBIG),
        (clone("f", 0, "g", 0, 0), 0),
        (clone("d", 0, "g", 0, 0), EISDIR),
        (clone("f", 0, "missing", 0, 0), ENOENT),
        (clone("f", 1, "g", 0, 0), EINVAL),
        (clone("f", 0, "g", 1 << 50, u64::MAX), EFBIG),
        (clone("f", 4096 << 20, "g", 0, 0), EINVAL),
        (Op::Read { on: p("d"), offset: 0, len: 1 }, EISDIR),
        (Op::Readdir { path: "f".into() }, ENOTDIR),
        (Op::Readlink { path: "f".into() }, EINVAL),
        (Op::RemoveXattr { on: p("f"), name: "user.x".into() }, ENODATA),
        (xattr("f", 65537, XattrFlag::Any), E2BIG),
        (xattr("f", 65536, XattrFlag::Any), 0),
        (xattr("f", 1, XattrFlag::Replace), ENODATA),
        (Op::Close { handle: 1 }, EBADF),
        (Op::Tmpfile { dir: "f".into(), handle: 1, mode: 0 }, ENOTDIR),
        (Op::Fsync { on: p("missing") }, ENOENT),
    ];
    for (op, errno) in table {
        let mut model = tree();
        let before = format!("{model:?}");
        assert_eq!(answer(&mut model, &op), errno, "{op:?}");
        if errno != 0 {
            assert_eq!(before, format!("{model:?}"), "a refused operation changes nothing: {op:?}");
        }
        check(&model);
    }
}

fn clone(source: &str, from: u64, on: &str, to: u64, len: u64) -> Op {
    Op::Clone { source: p(source), from, on: p(on), to, len }
}

/// A clone has the bytes of its source, and later changes of one do not affect the other.
#[test]
fn a_clone_is_a_copy() {
    let write = |on, offset, len, byte| Op::Write { on: p(on), offset, len, fill: Fill::Byte(byte) };
    let mut model = Model::new();
    for op in [create("a"), create("b"), write("a", 0, 9000, 1), write("b", 0, 4096, 2)] {
        assert_eq!(answer(&mut model, &op), 0);
    }
    for (op, errno) in [
        (clone("a", 0, "b", 4096, 0), 0),
        (write("a", 0, 9000, 3), 0),
        (clone("a", 4096, "b", 0, 1000), EINVAL),
        (clone("b", 0, "b", 4096, 8192), EINVAL),
        (clone("b", 0, "b", 8192, 4096), 0),
        (clone("a", 4096, "a", 12288, 0), 0),
    ] {
        assert_eq!(answer(&mut model, &op), errno, "{op:?}");
    }
    let bytes = |model: &Model, path| {
        let content = &model.inode(model.find(path).unwrap()).unwrap().content;
        content.read(0, content.size() as usize)
    };
    assert_eq!(bytes(&model, "b"), [vec![2; 4096], vec![1; 4096], vec![2; 4096], vec![1; 808]].concat());
    assert_eq!(bytes(&model, "a"), [vec![3; 9000], vec![0; 3288], vec![3; 4904]].concat());
}

fn xattr(path: &str, len: usize, how: XattrFlag) -> Op {
    Op::SetXattr { on: p(path), name: "user.x".into(), value: "v".repeat(len), how }
}

#[test]
fn xattr_flags() {
    let mut model = tree();
    assert_eq!(answer(&mut model, &xattr("f", 1, XattrFlag::Create)), 0);
    assert_eq!(answer(&mut model, &xattr("f", 2, XattrFlag::Create)), EEXIST);
    assert_eq!(answer(&mut model, &xattr("f", 2, XattrFlag::Replace)), 0);
    assert_eq!(model.inode(model.find("f").unwrap()).unwrap().xattrs["user.x"], "vv");
    assert!(
        model.apply(&xattr("fifo", 1, XattrFlag::Any)).is_none(),
        "user attributes of a fifo are unspecified"
    );
}

/// The model's invariants.
fn check(model: &Model) {
    let mut names: BTreeMap<Id, u32> = BTreeMap::new();
    for (id, inode) in &model.inodes {
        for child in inode.entries.values() {
            *names.entry(*child).or_default() += 1;
            if model.get(*child).is_dir() {
                assert_eq!(model.get(*child).parent, *id);
            }
        }
    }
    for (id, inode) in &model.inodes {
        let count = names.get(id).copied().unwrap_or(0);
        if inode.is_dir() {
            let subdirs = inode.entries.values().filter(|c| model.get(**c).is_dir()).count() as u32;
            let alive = *id == ROOT || count == 1;
            assert_eq!(inode.nlink, if alive { 2 + subdirs } else { 0 });
        } else {
            assert_eq!(inode.nlink, count);
        }
        assert!(inode.nlink > 0 || model.handles.values().any(|h| h == id), "kept by nothing");
    }
}

#[test]
fn random_operations_keep_the_model_whole() {
    for seed in 0..20 {
        let mut generator = crate::generate::Generator::new(seed, crate::generate::Profile::default());
        let mut model = Model::new();
        let mut done = 0;
        for _ in 0..1000 {
            let op = generator.next(&model);
            if model.apply(&op).is_some_and(|a| a.outcome.is_ok()) {
                done += 1;
            }
            check(&model);
        }
        assert!((500..950).contains(&done), "seed {seed}: {done} of 1000 succeed");
    }
}

#[test]
fn handles_keep_nameless_inodes() {
    let mut model = tree();
    let open = |path: &str, handle| Op::Open { path: path.into(), handle };
    assert_eq!(answer(&mut model, &open("f", 1)), 0);
    assert_eq!(answer(&mut model, &open("g", 1)), EBUSY);
    assert_eq!(answer(&mut model, &unlink("f")), 0);
    let write = Op::Write { on: Target::Handle(1), offset: 3, len: 2, fill: Fill::Byte(9) };
    assert_eq!(answer(&mut model, &write), 0);
    let read = Op::Read { on: Target::Handle(1), offset: 0, len: 100 };
    assert_eq!(model.apply(&read).unwrap().outcome, Outcome::Bytes(vec![0, 0, 0, 9, 9]));
    let relink = Op::Link { from: Target::Handle(1), path: "again".into() };
    assert!(model.apply(&relink).is_none(), "the kernel refuses to link what was unlinked");
    check(&model);
    assert_eq!(answer(&mut model, &Op::Close { handle: 1 }), 0);
    check(&model);
    assert_eq!(answer(&mut model, &Op::Tmpfile { dir: "d".into(), handle: 1, mode: 0o600 }), 0);
    assert_eq!(answer(&mut model, &relink), 0);
    assert_eq!(answer(&mut model, &Op::Remount), 0);
    assert!(model.find("again").is_some() && model.handles().is_empty());
    check(&model);
}

#[test]
fn exchange_moves_directories_between_parents() {
    let mut model = tree();
    assert_eq!(answer(&mut model, &rename("d/s", "f", Rename::Exchange)), 0);
    check(&model);
    let kind = |path: &str| model.inode(model.find(path).unwrap()).unwrap().kind;
    assert_eq!((kind("f"), kind("d/s")), (FileKind::Directory, FileKind::Regular));
}

#[test]
fn lists_and_modes_follow_each_other() {
    let set = |on: &str, default, list| Op::SetAcl { on: Target::Path(on.to_owned()), default, list };
    let mut model = Model::new();
    for op in [
        Op::Mkdir { path: "d".into(), mode: 0o755 },
        set("d", true, [7, 5, 3, 6, 1]),
        Op::Create { path: "d/f".into(), mode: 0o646 },
        Op::Mkdir { path: "d/sub".into(), mode: 0o777 },
        Op::Symlink { target: "f".into(), path: "d/link".into() },
    ] {
        assert_eq!(answer(&mut model, &op), 0, "{op:?}");
    }
    let of = |model: &Model, path: &str| {
        let inode = model.inode(model.find(path).unwrap()).unwrap();
        (inode.perm, inode.access, inode.default)
    };
    assert_eq!(of(&model, "d"), (0o755, None, Some([7, 5, 3, 6, 1])));
    assert_eq!(of(&model, "d/f"), (0o640, Some([6, 5, 3, 4, 0]), None));
    assert_eq!(of(&model, "d/sub"), (0o761, Some([7, 5, 3, 6, 1]), Some([7, 5, 3, 6, 1])));
    assert_eq!(of(&model, "d/link"), (0o777, None, None));
    answer(&mut model, &Op::Chmod { on: Target::Path("d/f".into()), mode: 0o4751 });
    assert_eq!(of(&model, "d/f"), (0o4751, Some([7, 5, 3, 5, 1]), None));
    answer(&mut model, &set("d/f", false, [1, 2, 3, 4, 5]));
    assert_eq!(of(&model, "d/f"), (0o4145, Some([1, 2, 3, 4, 5]), None));
    assert_ne!(answer(&mut model, &set("d/f", true, [1, 2, 3, 4, 5])), 0);
    let text = String::from_utf8_lossy(&acl_bytes([1, 2, 3, 4, 5])).into_owned();
    assert_eq!(acl_bits(&text), Some([1, 2, 3, 4, 5]));
    assert_eq!(acl_bits("short"), None);
}

#[test]
fn only_a_shrink_beside_shared_blocks_may_be_refused() {
    let resize = |mib: u64| Op::Resize { bytes: mib << 20 };
    let mut model = Model::new();
    let mut refusals = |op: &Op| model.apply(op).unwrap().or;
    for op in [resize(24), resize(16), Op::Fork { source: ".".into(), path: "S".into() }, resize(24)] {
        assert_eq!(refusals(&op), Vec::<i32>::new(), "{op:?}");
    }
    // The second resize follows one that may have been refused.
    for op in [resize(16), resize(20)] {
        assert_eq!(refusals(&op), [errno::EINVAL], "{op:?}");
    }
    assert_eq!(refusals(&resize(32)), Vec::<i32>::new());
}
