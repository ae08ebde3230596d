//! Seven loads of other programs. Each returns a description of all files that it has left, which
//! is the same in every run, and removes these files.

use crate::common::fsx::Fsx;
use crate::common::postgres::Postgres;
use crate::common::{Place, pjdfstest, tool};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

pub struct Load {
    pub name: &'static str,
    /// The size of the image.
    pub size: &'static str,
    /// Runs the load below the directory `mnt`, where nothing of it is left afterwards.
    pub run: fn(&Place) -> String,
}

pub const LOADS: &[Load] = &[
    Load { name: "untar", size: "256M", run: untar },
    Load { name: "git", size: "256M", run: git },
    Load { name: "SQLite, WAL", size: "256M", run: sqlite },
    Load { name: "PostgreSQL", size: "1G", run: postgres },
    Load { name: "fsx", size: "256M", run: fsx },
    Load { name: "fs_mark", size: "256M", run: fs_mark },
    Load { name: "pjdfstest", size: "64M", run: pjdfstest },
];

/// The first line in which the results of two runs differ.
pub fn first_difference(found: &str, known: &str) -> String {
    let lines = found.lines().zip(known.lines()).find(|(found, known)| found != known);
    format!("{} and {} lines, first difference: {lines:?}", found.lines().count(), known.lines().count())
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Describes everything below a directory: type, mode, links, size and a hash of the bytes. It
/// leaves out the entry `without`. With `times` it adds mtimes, which are the same in every run if
/// they come from an archive.
fn tree(root: &Path, without: &str, times: bool) -> String {
    let (mut lines, mut left) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if name == without {
                continue;
            }
            let mut line = format!("{name} {:o} {}", meta.mode(), meta.nlink());
            if meta.is_dir() {
                left.push(path);
            } else if meta.is_symlink() {
                write!(line, " {}", fs::read_link(&path).unwrap().display()).unwrap();
            } else {
                write!(line, " {} {:x}", meta.len(), hash(&fs::read(&path).unwrap())).unwrap();
            }
            if times {
                write!(line, " {}.{}", meta.mtime(), meta.mtime_nsec()).unwrap();
            }
            lines.push(line);
        }
    }
    lines.sort();
    lines.join("\n")
}

fn script(place: &Place, script: &str) -> String {
    let mut command = place.command("sh");
    command.args(["-ec", script]);
    tool(command, "coreutils, tar, git, sqlite3")
}

/// Makes the archive beside the mount, unless it exists.
fn archive(place: &Place) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    script(
        place,
        &format!(
            "test -e src.tar || {{ cd {}; find . -type f | sort | xargs sha256sum > \"$OLDPWD/sums\"; cd - >/dev/null
             tar -C {0} --sort=name -cf src.tar .; }}",
            source.display()
        ),
    );
}

fn untar(place: &Place) -> String {
    archive(place);
    script(
        place,
        "mkdir mnt/w; tar -C mnt/w -xf src.tar; tar -C mnt/w -df src.tar
         cd mnt/w; sha256sum --quiet -c ../../sums; cp -r . ../copy; diff -r . ../copy; rm -r ../copy",
    );
    let left = tree(&place.path("mnt/w"), "", true);
    fs::remove_dir_all(place.path("mnt/w")).unwrap();
    left
}

fn git(place: &Place) -> String {
    archive(place);
    let said = script(
        place,
        "export GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z
         export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
         git() { command git -c user.name=n -c user.email=e -c gc.auto=0 -c core.fsync=all \"$@\"; }
         mkdir mnt/w; cd mnt/w; git init -q -b main .; tar -xf ../../src.tar; git add .; git commit -qm one
         for n in 1 2 3; do for f in $(ls | head -20); do test -d $f || echo $n >> $f; done; git commit -qam $n; done
         git gc -q; git mv main.rs renamed.rs; git commit -qm moved; rm -r manual; git checkout -q -- .
         git fsck --full --strict; git status --porcelain; git rev-parse HEAD
         git cat-file --batch-all-objects --batch-check",
    );
    let left = said + &tree(&place.path("mnt/w"), ".git", false);
    fs::remove_dir_all(place.path("mnt/w")).unwrap();
    left
}

/// When its log is gone, the database is the same in every run, byte for byte.
fn sqlite(place: &Place) -> String {
    let mut sql = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=30;
         CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT);\n"
        .to_owned();
    for n in 0..80 {
        writeln!(
            sql,
            "BEGIN; INSERT INTO t VALUES({0}, printf('%.*c', 700, 'a')), ({0}+1, hex(zeroblob({1})));
             UPDATE t SET v = v || {0} WHERE k % 5 = {2}; DELETE FROM t WHERE k = {0} - 20; COMMIT;",
            2 * n,
            100 + n * 13,
            n % 5
        )
        .unwrap();
    }
    fs::write(place.path("load.sql"), sql).unwrap();
    let said = script(
        place,
        "mkdir mnt/w; sqlite3 -bail mnt/w/db < load.sql
         sqlite3 mnt/w/db 'SELECT count(*), sum(k), sum(length(v)) FROM t; PRAGMA integrity_check'",
    );
    let left = said + &tree(&place.path("mnt/w"), "", false);
    fs::remove_dir_all(place.path("mnt/w")).unwrap();
    left
}

/// The order of the transactions differs from run to run, but their sums do not.
fn postgres(place: &Place) -> String {
    let db = Postgres::new(place);
    let mut server = db.start();
    db.run("pgbench", &["-i", "-s", "1", "-q", "postgres"]);
    let said = db.run("pgbench", &["-c", "4", "-j", "2", "-t", "60", "--random-seed=7", "postgres"]);
    assert!(said.contains("number of failed transactions: 0 "), "{said}");
    let mut left = String::new();
    for (table, columns) in [
        ("pgbench_accounts", "aid, bid, abalance"),
        ("pgbench_tellers", "tid, bid, tbalance"),
        ("pgbench_branches", "bid, bbalance"),
        ("pgbench_history", "tid, bid, aid, delta"),
    ] {
        let rows = format!("select row({columns})::text as r from {table}");
        left += &db.sql(&format!("select count(*), md5(string_agg(r, ' ' order by r)) from ({rows}) s"));
    }
    db.run("pg_ctl", &["stop", "-m", "fast"]);
    server.0.wait().unwrap();
    let checked = db.run("pg_checksums", &["--check"]);
    assert!(checked.contains("Bad checksums:  0"), "{checked}");
    fs::remove_dir_all(place.path("mnt/db")).unwrap();
    fs::remove_dir_all(place.path("socket")).unwrap();
    left
}

/// [`Fsx`] itself compares each byte with a copy in memory.
fn fsx(place: &Place) -> String {
    let path = place.path("mnt/file");
    let mut fsx = Fsx::new(&path, 11);
    fsx.run(400);
    drop(fsx);
    let left = format!("{:x}", hash(&fs::read(&path).unwrap()));
    fs::remove_file(path).unwrap();
    left
}

/// The files are the same in each run, except for their names and directories.
fn fs_mark(place: &Place) -> String {
    let mut command = place.command("fs_mark");
    // Use one thread for each directory: threads of one directory may choose the same names.
    command.args("-d mnt/a -d mnt/b -t 1 -n 150 -s 5000 -S 1 -D 4 -k -l fs_mark.log".split(' '));
    tool(command, "fsmark");
    let mut files = BTreeMap::new();
    for dir in ["mnt/a", "mnt/b"] {
        for line in tree(&place.path(dir), "", false).lines() {
            let (_, what) = line.split_once(' ').unwrap();
            *files.entry((dir, what.to_owned())).or_insert(0) += 1;
        }
        fs::remove_dir_all(place.path(dir)).unwrap();
    }
    let lines: Vec<_> = files.iter().map(|(what, count)| format!("{what:?} {count}")).collect();
    lines.join("\n")
}

fn pjdfstest(place: &Place) -> String {
    place.run("mount --create 64M -o nokeeper other.kedge other").ok();
    for dir in ["", "mnt", "other"] {
        fs::set_permissions(place.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let said = pjdfstest::run(place, "", false).expect("pjdfstest is not installed: cargo install pjdfstest");
    place.run("umount other").ok();
    fs::remove_file(place.path("other.kedge")).unwrap();
    let mut names = [said.passed, said.skipped].concat();
    names.sort();
    names.join("\n")
}
