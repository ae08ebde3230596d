//! Common programs on the real mount: they succeed, their files are correct after a remount, and
//! fsck finds no error.
//!
//! A program that is not installed fails its test, with the command that installs it: otherwise a
//! machine without it would count as tested. `KEDGE_FULL=1` makes the amounts large.

use crate::common::{Place, full, needs_fuse, no_fuse, tool};
use kedge_sim::ops::Fill;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

const CLIENTS: u64 = 16;

/// Mode, size and mtime in seconds of each file and directory, by path below the root.
type Tree = BTreeMap<String, (u32, u64, i64)>;

fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            let size = if meta.is_dir() { 0 } else { meta.len() };
            let name = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            assert!(found.insert(name, (meta.mode(), size, meta.mtime())).is_none(), "{entry:?} twice");
            if meta.is_dir() {
                left.push(entry.path());
            }
        }
    }
    found
}

/// fs_mark's clients derive file names from the time. In one of a hundred runs two clients get the
/// same names and write the same files, on any file system. Then the run is repeated; files missing
/// in three runs in a row are no coincidence.
fn fs_mark(method: u64) {
    let alike = (0..3).take_while(|_| !fs_mark_once(method)).count();
    assert!(alike < 3, "-S {method}: files of whole clients are missing, three times in a row");
}

/// Returns `false` if two clients wrote the same files.
fn fs_mark_once(method: u64) -> bool {
    let place = Place::new();
    let files = if full() { 2000 } else { 100 };
    place.run("mount --create 4G disk.kedge mnt").ok();
    let mut command = place.command("fs_mark");
    let numbers = [("-D", 16), ("-t", CLIENTS), ("-n", files), ("-s", 4096), ("-S", method)];
    command.args(["-d", "mnt/fs_mark", "-l", "fs_mark.log", "-k"]);
    command.args(numbers.iter().flat_map(|(word, n)| [(*word).to_owned(), n.to_string()]));
    let out = tool(command, "fsmark");
    // The last line is that of the only round: use of the file system, files, size, files a second,
    // overhead.
    let words: Vec<&str> = out.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(words[1..3], [(CLIENTS * files).to_string(), "4096".to_owned()], "{out}");
    println!("-S {method}: {} files/s", words[3]);
    let before = tree(&place.path("mnt"));
    let kept = before.values().filter(|(mode, size, _)| mode & 0o170000 == 0o100000 && *size == 4096).count();
    let missing = CLIENTS * files - kept as u64;
    assert!(missing.is_multiple_of(files), "-S {method}: {missing} files are missing");
    place.remount("disk.kedge", "");
    assert!(tree(&place.path("mnt")) == before, "-S {method}: another tree after a remount");
    fs::remove_dir_all(place.path("mnt/fs_mark")).unwrap();
    place.unmount_and_check("disk.kedge");
    missing == 0
}

#[test]
fn fs_mark_with_every_way_to_sync() {
    needs_fuse!();
    (0..=6).for_each(fs_mark);
}

#[test]
fn dbench_with_sixteen_clients() {
    needs_fuse!();
    let place = Place::after("mount --create 2G disk.kedge mnt");
    let seconds = if full() { "20" } else { "5" };
    let mut command = place.command("dbench");
    command.args(["-t", seconds, "-D", "mnt", &CLIENTS.to_string()]);
    let out = tool(command, "dbench");
    // dbench continues after errors and reports them in its progress output. It also starts its
    // clients if it cannot make its semaphore.
    let faults = out.replace("failed to create barrier semaphore", "");
    assert!(!faults.contains("failed") && !faults.contains("ERROR"), "{out}");
    let result = out.lines().find(|l| l.starts_with("Throughput ")).expect("a result");
    println!("{result}");
    let rate: f64 = result.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(rate > 0.0, "{out}");
    place.unmount_and_check("disk.kedge");
}

/// Runs git in `dir` without the user's settings.
fn git(place: &Place, dir: &str, args: &[&str]) -> String {
    let mut command = place.command("git");
    command
        .current_dir(place.path(dir))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    for setting in ["user.name=Test", "user.email=test@example.invalid", "init.defaultBranch=main"] {
        command.args(["-c", setting]);
    }
    command.args(args);
    tool(command, "git")
}

fn commit_files(place: &Place, dir: &str, round: u32) {
    for i in 0..300 {
        let path = place.path(dir).join(format!("{}/{i}.txt", i % 10));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Some files change with every commit.
        if i % (round + 1) == 0 {
            fs::write(path, Fill::Seed(round * 1000 + i).bytes(0, 100 + 37 * i as usize)).unwrap();
        }
    }
    git(place, dir, &["add", "."]);
    git(place, dir, &["commit", "-q", "-m", &format!("commit {round}")]);
}

#[test]
fn git_clones_commits_and_packs() {
    needs_fuse!();
    let place = Place::new();
    fs::create_dir(place.path("origin")).unwrap();
    git(&place, "origin", &["init", "-q"]);
    (0..3).for_each(|round| commit_files(&place, "origin", round));
    place.run("mount --create 512M disk.kedge mnt").ok();
    let url = format!("file://{}", place.path("origin").display());
    git(&place, "mnt", &["clone", "-q", &url, "clone"]);
    git(&place, "mnt", &["clone", "-q", "clone", "second"]);
    (3..6).for_each(|round| commit_files(&place, "mnt/clone", round));
    git(&place, "mnt/second", &["pull", "-q"]);
    git(&place, "mnt/second", &["gc", "-q", "--prune=now"]);
    place.remount("disk.kedge", "");
    for dir in ["mnt/clone", "mnt/second"] {
        git(&place, dir, &["fsck", "--full", "--strict"]);
        assert_eq!(git(&place, dir, &["status", "--porcelain"]), "", "{dir} is as it was committed");
        assert_eq!(git(&place, dir, &["rev-list", "--count", "HEAD"]).trim(), "6", "{dir}");
    }
    place.unmount_and_check("disk.kedge");
}

const TAR_DIRS: u32 = 200;
const TAR_FILES: u32 = 20_000;

fn tar_file(number: u32) -> (String, Vec<u8>) {
    // Sizes from zero to a few blocks, most of them small.
    let len = (number * number) % 3001 + if number % 100 == 7 { 20_000 } else { 0 };
    (format!("{:03}/f{number:05}", number % TAR_DIRS), Fill::Seed(number).bytes(0, len as usize))
}

fn tar(place: &Place, args: &[&str]) {
    let mut command = place.command("tar");
    command.args(args);
    tool(command, "tar");
}

/// There are more files than the caches of the server and the kernel hold, so some reads are not
/// served from memory.
#[test]
fn tar_unpacks_many_small_files() {
    needs_fuse!();
    let place = Place::new();
    for dir in 0..TAR_DIRS {
        fs::create_dir_all(place.path(&format!("source/{dir:03}"))).unwrap();
    }
    for number in 0..TAR_FILES {
        let (name, bytes) = tar_file(number);
        fs::write(place.path("source").join(name), bytes).unwrap();
    }
    tar(&place, &["cf", "files.tar", "-C", "source", "."]);
    place.run("mount --create 1G disk.kedge mnt").ok();
    tar(&place, &["xf", "files.tar", "-C", "mnt"]);
    place.remount("disk.kedge", "");
    let found = tree(&place.path("mnt"));
    assert_eq!(found.len(), (TAR_DIRS + TAR_FILES) as usize);
    assert!(found == tree(&place.path("source")), "names, modes, sizes or times differ");
    for number in 0..TAR_FILES {
        let (name, bytes) = tar_file(number);
        assert!(fs::read(place.path("mnt").join(&name)).unwrap() == bytes, "{name} has other bytes");
    }
    // Let tar compare the files with the archive too.
    tar(&place, &["df", "files.tar", "-C", "mnt"]);
    place.unmount_and_check("disk.kedge");
}

const SQLITE_WRITERS: u64 = 2;
const SQLITE_TRANSACTIONS: u64 = 200;

/// Each transaction adds three rows, changes one row and deletes one row.
fn sqlite_script(writer: u64) -> String {
    let mut script = "PRAGMA synchronous=FULL;\n".to_owned();
    for i in 0..SQLITE_TRANSACTIONS {
        let key = (writer * SQLITE_TRANSACTIONS + i) * 3;
        script += &format!(
            "BEGIN IMMEDIATE;\n\
             INSERT INTO t VALUES ({key}, randomblob(100)), ({key}+1, randomblob(1500)), ({key}+2, zeroblob(9));\n\
             UPDATE t SET v = randomblob(700) WHERE k = {key};\n\
             DELETE FROM t WHERE k = {key}+2;\n\
             COMMIT;\n"
        );
    }
    script
}

fn sqlite(place: &Place, script: &str, name: &str) -> String {
    fs::write(place.path(name), script).unwrap();
    let mut command: Command = place.command("sqlite3");
    command.args(["-batch", "-bail", "-cmd", ".timeout 120000", "mnt/db"]);
    command.stdin(Stdio::from(fs::File::open(place.path(name)).unwrap()));
    tool(command, "sqlite3")
}

/// Two processes write to one database: their locks, and with WAL their shared memory, are on the
/// mount.
fn sqlite_in(journal_mode: &str) {
    let place = Place::after("mount --create 256M disk.kedge mnt");
    let script =
        format!("PRAGMA journal_mode={journal_mode}; CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);");
    assert_eq!(sqlite(&place, &script, "create.sql").trim(), journal_mode);
    std::thread::scope(|scope| {
        for writer in 0..SQLITE_WRITERS {
            let place = &place;
            scope.spawn(move || sqlite(place, &sqlite_script(writer), &format!("{writer}.sql")));
        }
    });
    let rows = SQLITE_WRITERS * SQLITE_TRANSACTIONS * 2;
    let check = "PRAGMA integrity_check; SELECT count(*), sum(k % 3 = 0), sum(length(v)) FROM t;";
    for when in ["at once", "after a remount"] {
        let out = sqlite(&place, check, "check.sql");
        let expected = format!("ok\n{rows}|{}|{}", rows / 2, rows / 2 * (700 + 1500));
        assert_eq!(out.trim(), expected, "{journal_mode} {when}");
        place.remount("disk.kedge", "");
    }
    place.unmount_and_check("disk.kedge");
}

#[test]
fn sqlite_with_a_rollback_journal() {
    if !no_fuse() {
        sqlite_in("delete");
    }
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    if !no_fuse() {
        sqlite_in("wal");
    }
}
