//! `kedge fork` and `kedge snapshot`: trees of an image, mounted and not.

use crate::common::io::Mapping;
use crate::common::{Place, kill, needs_fuse, until, until_dead, write_and_fsync};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// The names in a directory, in order.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// For each tree of `target`, whether it is read-only, and its path.
fn listed(place: &Place, target: &str) -> Vec<(bool, String)> {
    let said = place.run(&format!("snapshot list --json {target}")).ok();
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        (row["read_only"].as_bool().unwrap(), row["path"].as_str().unwrap().to_owned())
    };
    said.lines().map(row).collect()
}

fn used(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

#[test]
fn a_fork_of_a_mount_is_a_tree_of_its_own() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/file"), vec![1; 100_000]).unwrap();
    fs::hard_link(mnt.join("dir/file"), mnt.join("link")).unwrap();
    // Look the names up first, so that the kernel has cached that they do not exist.
    assert!(!mnt.join("fork").exists() && !mnt.join("snap").exists());
    place.run("fork mnt mnt/fork").ok();
    place.run("snapshot create mnt/fork mnt/dir/snap").ok();
    place.run("fork mnt mnt/fork").refused(1, &["mnt/fork is there already"]);
    place.run("fork mnt/dir mnt/x").refused(1, &["mnt/dir is not the root of a tree"]);
    place.run("fork mnt/link mnt/x").refused(1, &["mnt/link is not a directory"]);
    place.run("fork mnt x").refused(1, &["not in a mount of KedgeFS"]);
    place.run("fork mnt disk.kedge:/x").refused(2, &["both must be in"]);
    let trees = [(false, "/"), (false, "/fork"), (true, "/dir/snap")].map(|(r, p)| (r, p.to_owned()));
    assert_eq!(listed(&place, "mnt"), trees);
    assert_eq!(listed(&place, "disk.kedge"), trees);
    // A fork contains no trees of its source. A name added to the source is not in the fork.
    assert_eq!(names(&mnt.join("fork")), ["dir", "link"]);
    assert_eq!(names(&mnt.join("fork/dir")), ["file"]);
    assert_eq!(names(&mnt), ["dir", "fork", "link"]);
    let (first, second) =
        (fs::metadata(mnt.join("link")).unwrap(), fs::metadata(mnt.join("fork/link")).unwrap());
    assert_eq!((first.nlink(), second.nlink()), (2, 2));
    assert_ne!(first.ino(), second.ino());
    assert_eq!(fs::metadata(&mnt).unwrap().nlink(), 4, "itself, two directories and a fork");
    // Each tree changes independently.
    OpenOptions::new().write(true).open(mnt.join("fork/link")).unwrap().write_at(&[2; 4096], 4096).unwrap();
    fs::remove_file(mnt.join("dir/file")).unwrap();
    fs::write(mnt.join("fork/new"), b"new").unwrap();
    assert_eq!(fs::read(mnt.join("link")).unwrap(), vec![1; 100_000]);
    assert_eq!(fs::read(mnt.join("dir/snap/link")).unwrap(), vec![1; 100_000]);
    let forked = fs::read(mnt.join("fork/dir/file")).unwrap();
    assert_eq!((&forked[..4096], &forked[4096..8192]), (&[1; 4096][..], &[2; 4096][..]));
    let erofs =
        |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
    erofs(File::create(mnt.join("dir/snap/x")).map(drop));
    erofs(fs::remove_file(mnt.join("dir/snap/link")));
    erofs(fs::set_permissions(mnt.join("dir/snap"), fs::Permissions::from_mode(0o700)));
    let exdev =
        |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EXDEV));
    exdev(fs::hard_link(mnt.join("link"), mnt.join("fork/other")));
    exdev(fs::rename(mnt.join("link"), mnt.join("fork/other")));
    // Rename trees, by command and by rename(2).
    place.run("snapshot rename mnt/dir/snap mnt/fork/old").ok();
    place.run("snapshot rename mnt/dir mnt/d").refused(1, &["mnt/dir is not a fork or a snapshot"]);
    place.run("snapshot rename mnt/fork mnt/dir").refused(1, &["mnt/dir is there already"]);
    assert_eq!(fs::read(mnt.join("fork/old/link")).unwrap(), vec![1; 100_000]);
    fs::rename(mnt.join("fork/old"), mnt.join("old")).unwrap();
    assert_eq!(fs::remove_dir(mnt.join("fork")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    // After the death of the server every change is still there.
    write_and_fsync(&mnt.join("fork/synced"), b"synced");
    kill(&place, "mnt");
    until_dead(&place, "mnt");
    place.run("umount mnt").refused(1, &["the serving process had died"]);
    place.run("fsck -f disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    assert_eq!(fs::read(mnt.join("fork/synced")).unwrap(), b"synced");
    assert_eq!(fs::read(mnt.join("old/dir/file")).unwrap(), vec![1; 100_000]);
    fs::remove_dir_all(mnt.join("fork")).unwrap();
    place.run("snapshot delete mnt/old").ok();
    place.run("snapshot delete mnt/old").refused(1, &["delete mnt/old", "No such file"]);
    place.run("snapshot delete mnt/dir").refused(1, &["mnt/dir is not a fork or a snapshot"]);
    assert_eq!(names(&mnt), ["dir", "link"]);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn deleted_space_is_free_within_a_second() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 128M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    for i in 0..200 {
        fs::write(mnt.join(format!("{i}")), vec![1; 50_000]).unwrap();
    }
    place.run("fork mnt mnt/fork").ok();
    let before = used(&mnt);
    for i in 0..200 {
        fs::write(mnt.join(format!("fork/{i}")), vec![2; 50_000]).unwrap();
    }
    rustix::fs::syncfs(File::open(&mnt).unwrap()).unwrap();
    assert!(used(&mnt) > before + 9_000_000, "{} bytes are used, {before} before", used(&mnt));
    place.run("snapshot delete mnt/fork").ok();
    // The nodes that the source changed since the fork stay in use.
    until("the blocks are free", || used(&mnt) < before + (1 << 20));
    for i in 0..200 {
        assert_eq!(fs::read(mnt.join(format!("{i}"))).unwrap(), vec![1; 50_000]);
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn images_that_are_not_mounted_are_forked() {
    let place = Place::new();
    place.run("mkfs --size 32M disk.kedge").ok();
    fs::write(place.path("file"), b"text").unwrap();
    place.run("cp file disk.kedge:/file").ok();
    place.run("fork disk.kedge:/ disk.kedge:/fork").ok();
    place.run("snapshot create disk.kedge:/fork disk.kedge:/snap").ok();
    place.run("fork disk.kedge:/ disk.kedge:/fork").refused(1, &["/fork: is there already"]);
    place.run("fork disk.kedge:/file disk.kedge:/x").refused(1, &["/file: ", "root of a tree"]);
    place.run("fork disk.kedge:/ other.kedge:/x").refused(2, &["two images"]);
    place.run("fork disk.kedge:/ disk.kedge:/").refused(2, &["the root"]);
    place.run("fork no.kedge:/ no.kedge:/x").refused(1, &["no.kedge"]);
    place.run("cp file disk.kedge:/fork/more").ok();
    place.run("cp file disk.kedge:/snap/more").refused(1, &["read-only"]);
    assert_eq!(place.run("cat disk.kedge:/snap/file").ok(), "text");
    assert_eq!(place.run("ls disk.kedge:/fork").ok(), "file\nmore\n");
    assert_eq!(place.run("ls disk.kedge:/snap").ok(), "file\n");
    place.run("snapshot rename disk.kedge:/snap disk.kedge:/fork/old").ok();
    place.run("snapshot rename disk.kedge:/file disk.kedge:/f").refused(1, &["/file: is not a fork"]);
    place.run("snapshot rename disk.kedge:/fork disk.kedge:/file").refused(1, &["/file: is there already"]);
    let trees = [(false, "/"), (false, "/fork"), (true, "/fork/old")].map(|(r, p)| (r, p.to_owned()));
    assert_eq!(listed(&place, "disk.kedge"), trees);
    place.run("snapshot list --space disk.kedge").ok();
    place.run("fsck -n -f disk.kedge").ok();
    place.run("scrub disk.kedge").ok();
    // A copy of the metadata has the metadata of all trees.
    place.run("image disk.kedge copy.kedge").ok();
    place.run("fsck -n -f copy.kedge").ok();
    assert_eq!(place.run("ls copy.kedge:/fork/old").ok(), "file\n");
    place.run("image --scramble disk.kedge scrambled.kedge").refused(1, &["forks"]);
    assert!(!place.path("scrambled.kedge").exists());
    place.run("snapshot delete disk.kedge:/fork").refused(1, &["/fork: other trees are in it"]);
    place.run("snapshot delete disk.kedge:/file").refused(1, &["/file: is not a fork or a snapshot"]);
    place.run("snapshot delete disk.kedge:/none").refused(1, &["/none: no such file"]);
    place.run("snapshot delete disk.kedge:/fork/old disk.kedge:/fork").ok();
    assert_eq!(listed(&place, "disk.kedge"), [(false, "/".to_owned())]);
    place.run("fsck -n -f disk.kedge").ok();
}

#[test]
fn dirty_pages_of_the_kernel_are_in_the_fork() {
    needs_fuse!();
    for options in ["writeback_cache", "nowriteback_cache", "fuse,writeback_cache"] {
        let place = Place::new();
        place.run(&format!("mount --create 64M -o {options} disk.kedge mnt")).ok();
        let mnt = place.path("mnt");
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(mnt.join(name))
                .unwrap()
        };
        let (written, mapped) = (open("written"), open("mapped"));
        mapped.set_len(1 << 20).unwrap();
        let mapping = Mapping::new(&mapped, 0, 1 << 20).unwrap();
        for round in 1..=20u8 {
            written.write_all_at(&vec![round; 300_000], 0).unwrap();
            mapping.write(0, &vec![round; 1 << 20]);
            place.run(&format!("snapshot create mnt mnt/{round}")).ok();
        }
        for round in 1..=20u8 {
            let read = |name: &str| fs::read(mnt.join(format!("{round}/{name}"))).unwrap();
            assert_eq!(read("written"), vec![round; 300_000], "{options}, round {round}");
            assert_eq!(read("mapped"), vec![round; 1 << 20], "{options}, round {round}");
        }
        drop((mapping, mapped, written));
        place.unmount_and_check("disk.kedge");
    }
}

#[test]
fn another_user_is_refused() {
    needs_fuse!(root: "another user needs root to become it");
    let place = Place::new();
    place.run("mount --create 32M disk.kedge mnt").ok();
    for path in ["", "mnt"] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o777)).unwrap();
    }
    place.run("fork mnt mnt/fork").ok();
    let script = "
import fcntl, os, struct
mnt = os.open('mnt', os.O_RDONLY)
for number in 0x41106b03, 0x41106b04:
    try:
        fcntl.ioctl(mnt, number, struct.pack('=QII256s', 1, 0, 4, b'fork'))
        print('done')
    except OSError as e:
        print(e.errno)
for name in 'trees.0', 'tree.0':
    try:
        print(os.getxattr('mnt', 'system.kedgefs.' + name))
    except OSError as e:
        print(e.errno)
";
    let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", script];
    // Another user may not be able to run the first python3 in this user's path.
    let output = place.command("setpriv").env("PATH", "/usr/bin:/bin").args(other).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "1\n1\n1\n1\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(listed(&place, "mnt").len(), 2);
    place.unmount();
}

/// A program has a file of a deleted tree open.
#[test]
fn open_files_of_a_deleted_tree_are_stale() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::write(mnt.join("file"), vec![1; 1 << 20]).unwrap();
    place.run("fork mnt mnt/fork").ok();
    let file = OpenOptions::new().read(true).write(true).open(mnt.join("fork/file")).unwrap();
    place.run("snapshot delete mnt/fork").ok();
    let stale = |result: std::io::Result<()>| {
        let errno = result.unwrap_err().raw_os_error();
        assert!(matches!(errno, Some(libc::ESTALE | libc::ENOENT)), "{errno:?}");
    };
    stale(file.write_all_at(b"x", 0));
    stale(file.set_len(0));
    stale(fs::metadata(mnt.join("fork/file")).map(drop));
    drop(file);
    assert_eq!(fs::read(mnt.join("file")).unwrap(), vec![1; 1 << 20]);
    // The name of the deleted tree can be used again.
    place.run("fork mnt mnt/fork").ok();
    assert_eq!(fs::read(mnt.join("fork/file")).unwrap(), vec![1; 1 << 20]);
    place.unmount_and_check("disk.kedge");
}

#[test]
fn a_fork_is_rolled_back_or_committed() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    let read = |name: &str| fs::read_to_string(mnt.join(name)).unwrap();
    place.run("fork mnt mnt/base").ok();
    fs::write(mnt.join("base/file"), "first").unwrap();
    place.run("snapshot create mnt/base mnt/kept").ok();
    fs::write(mnt.join("base/file"), "second").unwrap();
    place.run("snapshot rollback mnt/kept mnt/base").ok();
    assert_eq!(read("base/file"), "first");
    // `work`, a fork of `base`, replaces `base` if `base` was not changed since.
    place.run("fork mnt/base mnt/work").ok();
    fs::write(mnt.join("work/file"), "worked").unwrap();
    place.run("snapshot commit mnt/work mnt/base").ok();
    assert_eq!((read("base/file"), names(&mnt)), ("worked".into(), vec!["base".into(), "kept".into()]));
    place.run("fork mnt/base mnt/work").ok();
    fs::write(mnt.join("base/other"), "meanwhile").unwrap();
    place.run("snapshot commit mnt/work mnt/base").refused(1, &["mnt/base was changed", "--force"]);
    assert_eq!(read("base/other"), "meanwhile");
    place.run("snapshot commit --force mnt/work mnt/base").ok();
    assert_eq!(names(&mnt.join("base")), ["file"]);
    place.run("snapshot commit mnt/kept mnt/base").refused(1, &["Read-only"]);
    place.run("snapshot commit mnt/base mnt/base").refused(1, &["cannot replace itself"]);
    place.run("snapshot rollback mnt/kept mnt/none").refused(1, &["mnt/none is not a fork"]);
    place.run("snapshot rollback mnt mnt/base").ok();
    assert_eq!(names(&mnt.join("base")), Vec::<String>::new());
    place.unmount_and_check("disk.kedge");
    place.run("snapshot rollback disk.kedge:/kept disk.kedge:/base").ok();
    assert_eq!(place.run("cat disk.kedge:/base/file").ok(), "first");
    place.run("fork disk.kedge:/base disk.kedge:/work").ok();
    fs::write(place.path("new"), "new").unwrap();
    place.run("cp new disk.kedge:/base/new").ok();
    place.run("snapshot commit disk.kedge:/work disk.kedge:/base").refused(1, &["was changed", "--force"]);
    place.run("snapshot commit --force disk.kedge:/work disk.kedge:/base").ok();
    assert_eq!(place.run("ls disk.kedge:/base").ok(), "file\n");
    place.run("snapshot rollback disk.kedge:/base disk.kedge:/").ok();
    assert_eq!(place.run("cat disk.kedge:/file").ok(), "first");
    assert_eq!(place.run("ls disk.kedge:/base").ok(), "file\n");
    place.run("fsck -n -f disk.kedge").ok();
}

/// Many agents at once, each of which forks a tree, works in the fork, and keeps or drops it.
#[test]
fn a_hundred_forks_are_changed_side_by_side() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 256M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir(mnt.join("src")).unwrap();
    for i in 0..50 {
        fs::write(mnt.join(format!("src/{i}")), vec![i; 3000]).unwrap();
    }
    for i in 0..100 {
        place.run(&format!("fork mnt mnt/work{i}")).ok();
    }
    let work = |i: u8| {
        let dir = mnt.join(format!("work{i}"));
        for k in 0..10u8 {
            write_and_fsync(&dir.join(format!("src/{}", (i + k) % 50)), &[100 + i; 5000]);
            fs::rename(dir.join(format!("src/{}", (i + k) % 50)), dir.join(format!("new{k}"))).unwrap();
        }
        fs::remove_file(dir.join(format!("src/{}", (i + 20) % 50))).unwrap();
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || (thread..100).step_by(4).for_each(work));
        }
    });
    // Every third fork is dropped.
    for i in (0..100).step_by(3) {
        place.run(&format!("snapshot delete mnt/work{i}")).ok();
    }
    for i in (0..100u8).filter(|i| i % 3 != 0) {
        let dir = mnt.join(format!("work{i}"));
        assert_eq!(names(&dir).len(), 11);
        assert_eq!(names(&dir.join("src")).len(), 39);
        assert_eq!(fs::read(dir.join("new9")).unwrap(), vec![100 + i; 5000]);
        assert_eq!(fs::read(dir.join(format!("src/{}", (i + 30) % 50))).unwrap(), vec![(i + 30) % 50; 3000]);
    }
    assert_eq!(names(&mnt.join("src")).len(), 50);
    place.unmount_and_check("disk.kedge");
}

/// A program appends lines and acknowledges each after its fsync. A fork has every line that was
/// acknowledged before the fork began, and is a state that a crash could leave.
#[test]
fn a_database_is_forked_while_it_works() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 256M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    let script = "
import sqlite3, sys
db = sqlite3.connect('mnt/db', isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[1])
db.execute('pragma synchronous=full')
db.execute('create table if not exists t (n integer primary key, filler blob)')
n = db.execute('select coalesce(max(n), 0) from t').fetchone()[0]
while True:
    n += 1
    db.execute('insert into t values (?, zeroblob(700))', (n,))
    print(n, flush=True)
";
    let check = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1] + '/db')
print(db.execute('pragma integrity_check').fetchone()[0],
      db.execute('select count(*), max(n) from t').fetchone())
";
    let of_each = if crate::common::long() { 100 } else { 15 };
    let mut forks: Vec<(PathBuf, u64)> = Vec::new();
    for mode in ["wal", "delete"] {
        let mut writer =
            place.command("python3").args(["-c", script, mode]).stdout(Stdio::piped()).spawn().unwrap();
        let acknowledged = std::sync::atomic::AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let said = writer.stdout.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for line in std::io::BufRead::lines(std::io::BufReader::new(said)) {
                    acknowledged.store(line.unwrap().parse().unwrap(), Ordering::SeqCst);
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
            let first = forks.last().map_or(0, |(_, n)| *n);
            until("the program has begun", || acknowledged.load(Ordering::SeqCst) > first + 10);
            for i in 0..of_each {
                let before = acknowledged.load(Ordering::SeqCst);
                place.run(&format!("fork mnt mnt/{mode}{i}")).ok();
                forks.push((mnt.join(format!("{mode}{i}")), before));
            }
            stop.store(true, Ordering::SeqCst);
            writer.kill().unwrap();
            writer.wait().unwrap();
        });
    }
    println!(
        "{} forks; the last ones of each mode had at least {:?} rows",
        forks.len(),
        [of_each - 1, 2 * of_each - 1].map(|n| forks[n].1)
    );
    for (dir, least) in forks {
        let output = place.command("python3").args(["-c", check]).arg(&dir).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let rows = said.strip_prefix("ok (").and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
        let rows = rows.unwrap_or_else(|| panic!("{}: {said}", dir.display()));
        assert!(rows >= least, "{}: {rows} rows, {least} acknowledged", dir.display());
        assert!(said.contains(&format!("({rows}, {rows})")), "{said}");
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_lost() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 32M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::write(mnt.join("kept"), b"kept").unwrap();
    place.run("fork mnt mnt/fork").ok();
    let mut full = File::create(mnt.join("full")).unwrap();
    let filled = std::iter::repeat_with(|| full.write_all(&[7; 1 << 16])).find_map(Result::err);
    assert_eq!(filled.unwrap().raw_os_error(), Some(libc::ENOSPC));
    let _ = full.sync_all();
    // On a full image each fork either succeeds or is refused.
    let mut made = 0;
    for i in 0..30 {
        let forked = place.run(&format!("fork mnt mnt/full{i}"));
        match mnt.join(format!("full{i}")).exists() {
            true => made += u32::from(forked.ok().is_empty()),
            false => forked.refused(1, &["No space left"]),
        }
    }
    place.run("freeze mnt").ok();
    place.run("fork mnt mnt/frozen").refused(1, &["frozen"]);
    place.run("snapshot delete mnt/fork").refused(1, &["frozen"]);
    place.run("thaw mnt").ok();
    for i in 0..made {
        place.run(&format!("snapshot delete mnt/full{i}")).ok();
    }
    place.run("snapshot delete mnt/fork").ok();
    fs::remove_file(mnt.join("full")).unwrap();
    drop(full);
    until("the blocks are free", || used(&mnt) < 20 << 20);
    write_and_fsync(&mnt.join("after"), &vec![3; 4 << 20]);
    assert_eq!(fs::read(mnt.join("kept")).unwrap(), b"kept");
    place.unmount_and_check("disk.kedge");
    place.run("mount -o ro disk.kedge mnt").ok();
    place.run("fork mnt mnt/x").refused(1, &["Read-only file system"]);
    place.unmount();
}

/// The root of a mount is rolled back to a snapshot. Open files of the old contents become stale,
/// whatever the kernel has cached, and changed names are seen at once.
#[test]
fn the_root_of_a_mount_is_rolled_back() {
    needs_fuse!();
    let place = Place::new();
    place.run("mount --create 64M disk.kedge mnt").ok();
    let mnt = place.path("mnt");
    fs::create_dir_all(mnt.join("dir/deep")).unwrap();
    fs::write(mnt.join("file"), vec![1; 100_000]).unwrap();
    fs::write(mnt.join("dir/deep/one"), b"one").unwrap();
    fs::write(mnt.join("gone"), b"gone").unwrap();
    place.run("snapshot create mnt mnt/monday").ok();
    place.run("fork mnt mnt/dir/inside").ok();
    fs::write(mnt.join("file"), vec![2; 50_000]).unwrap();
    fs::remove_file(mnt.join("gone")).unwrap();
    assert!(!mnt.join("gone").exists(), "the kernel remembers that");
    fs::write(mnt.join("new"), b"new").unwrap();
    fs::remove_dir_all(mnt.join("dir/deep")).unwrap();
    let old = OpenOptions::new().read(true).write(true).open(mnt.join("file")).unwrap();
    let old_dir = File::open(mnt.join("dir")).unwrap();

    place.run("snapshot rollback mnt/monday mnt").ok();
    let expect = || {
        assert_eq!(names(&mnt), ["dir", "file", "gone", "monday"]);
        assert!(fs::read(mnt.join("file")).unwrap() == vec![1; 100_000]);
        assert_eq!(fs::read(mnt.join("gone")).unwrap(), b"gone");
        assert!(!mnt.join("new").exists());
        assert_eq!(names(&mnt.join("dir")), ["deep", "inside"]);
        assert_eq!(fs::read(mnt.join("dir/deep/one")).unwrap(), b"one");
        assert_eq!(fs::read(mnt.join("dir/inside/gone")).unwrap(), b"gone");
    };
    expect();
    // Writes and syncs through the old open files fail, and none of them reaches the new contents.
    let stale = |result: std::io::Result<()>| {
        let errno = result.unwrap_err().raw_os_error();
        assert!(matches!(errno, Some(libc::ESTALE | libc::EIO | libc::ENOENT)), "{errno:?}");
    };
    stale((&old).write_all(&[9; 5000]).and_then(|()| old.sync_all()));
    stale(old_dir.sync_all());
    stale(old.set_len(3));
    expect();
    fs::write(mnt.join("file"), b"changed").unwrap();
    fs::write(mnt.join("dir/later"), b"later").unwrap();
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"changed");
    // Roll back again, and then replace the root by a fork of it.
    place.run("snapshot rollback mnt/monday mnt/.").ok();
    expect();
    place.run("fork mnt mnt/try").ok();
    fs::write(mnt.join("try/done"), b"done").unwrap();
    place.run("snapshot commit mnt/try mnt").ok();
    assert_eq!(names(&mnt), ["dir", "done", "file", "gone", "monday"]);
    // Refused are a rollback that would remove a tree's directory, and directories that are no
    // trees.
    fs::create_dir(mnt.join("later")).unwrap();
    place.run("fork mnt mnt/later/tree").ok();
    place.run("snapshot rollback mnt/monday mnt").refused(1, &["would lose its place"]);
    place.run("snapshot rollback mnt/dir mnt").refused(1, &["is not the root of a tree"]);
    place.run("snapshot rollback mnt mnt").refused(1, &["cannot replace itself"]);
    place.run("snapshot delete mnt/later/tree").ok();
    let root = fs::metadata(&mnt).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&root), 1);
    drop((old, old_dir));
    // A kill right after a rollback leaves the new contents.
    place.run("snapshot rollback mnt/monday mnt").ok();
    kill(&place, "mnt");
    place.run("umount mnt").refused(1, &["had died"]);
    place.run("fsck -n -f disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    expect();
    place.unmount_and_check("disk.kedge");
    // Do the same without a mount, and in a mount of one tree.
    place.run("mkdir disk.kedge:/more").ok();
    place.run("snapshot rollback disk.kedge:/monday disk.kedge:/").ok();
    place.run("snapshot rollback disk.kedge:/dir disk.kedge:/").refused(1, &["not the root of a tree"]);
    place.run("fork disk.kedge:/ disk.kedge:/again").ok();
    place.run("snapshot commit disk.kedge:/again disk.kedge:/").ok();
    place.run("fsck disk.kedge").ok();
    place.run("mount disk.kedge mnt").ok();
    expect();
    place.run("umount mnt").ok();
    place.run("mount -o tree=dir/inside disk.kedge mnt").ok();
    place.run("fork mnt mnt/own").ok();
    place.run("snapshot rollback mnt/own mnt").refused(1, &["not on a mount of one tree"]);
    place.unmount_and_check("disk.kedge");
}
