//! Crash-consistency bugs from the literature, reproduced on a [`Disk`]. Each is found under the
//! models that allow it and not under the others. The fixed program passes under all models.
//!
//! | | source |
//! |---|---|
//! | OSDI 2014 | Pillai et al., "All File Systems Are Not Created Equal: On the Complexity of Crafting Crash-Consistent Applications" (ALICE) |
//! | OSDI 2018 | Mohan et al., "Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing" (CrashMonkey) |
//! | ATC 2020 | Rebello et al., "Can Applications Recover from fsync Failures?" |
//!
//! The programs are the reported patterns of calls, reduced to the minimum.

use kedge_crash::{Call, Disk, MODELS, Model, Report, Trace, explore_in_memory};
use std::io::Result;

type Verdict = std::result::Result<(), String>;

struct Bug {
    source: &'static str,
    /// Makes the state that is durable when the program starts.
    before: fn(&Disk) -> Result<()>,
    /// The program with the bug.
    run: fn(&Disk) -> Result<()>,
    judge: fn(&Disk, &[&str]) -> Verdict,
    /// The models under which the bug must be found. Under all others it must not be found.
    found: &'static [&'static str],
    /// The fixed program, which passes under every model.
    mended: fn(&Disk) -> Result<()>,
    /// The index of the fsync of the program that fails with EIO, if one fails.
    fails: Option<usize>,
}

const ALL: &[&str] =
    &["strict", "kedgefs", "ext4-ordered", "xfs", "btrfs", "ext4", "ext4-writeback", "posix"];
/// All models of real file systems. Only `strict` orders the bytes of one file before those of
/// another.
const REAL: &[&str] = &["kedgefs", "ext4-ordered", "xfs", "btrfs", "ext4", "ext4-writeback", "posix"];
/// All models of real file systems except KedgeFS.
const OTHERS: &[&str] = &["ext4-ordered", "xfs", "btrfs", "ext4", "ext4-writeback", "posix"];
const POSIX: &[&str] = &["posix"];

const PAGE: usize = 4096;

fn put(disk: &Disk, path: &str, bytes: &[u8]) -> Result<()> {
    disk.create(path)?.write_at(0, bytes)
}

fn put_synced(disk: &Disk, path: &str, bytes: &[u8]) -> Result<()> {
    put(disk, path, bytes)?;
    disk.sync(path)
}

fn expect(what: &str, holds: bool) -> Verdict {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

fn is(disk: &Disk, path: &str, bytes: &[u8]) -> bool {
    disk.read(path).is_ok_and(|found| found == bytes)
}

fn nothing(_: &Disk) -> Result<()> {
    Ok(())
}

fn failing(mut trace: Trace, which: Option<usize>) -> Trace {
    if let Some(which) = which {
        let start = trace.start();
        let mut syncs = trace.events[start..].iter_mut().filter(|e| matches!(e.call, Call::Fsync { .. }));
        syncs.nth(which).expect("the program has that fsync").errno = 5;
    }
    trace
}

fn explore(bug: &Bug, run: fn(&Disk) -> Result<()>, model: Model) -> Report {
    let disk = Disk::new();
    (bug.before)(&disk).unwrap();
    disk.settle();
    run(&disk).unwrap();
    let report = explore_in_memory(&failing(disk.trace(), bug.fails), model, bug.judge);
    assert!(report.fails_uncrashed.is_none(), "{}: works without a crash: {report:#?}", bug.source);
    assert!(report.outcome.is_whole(), "{}: all systematic states: {:?}", bug.source, report.outcome);
    report
}

fn check(bug: &Bug) {
    for model in MODELS {
        let report = explore(bug, bug.run, model);
        let wanted = bug.found.contains(&model.name);
        assert_eq!(report.failed(), wanted, "{} under {}: {:#?}", bug.source, model.name, report.failures);
        let mended = explore(bug, bug.mended, model);
        assert!(!mended.failed(), "{} mended, {}: {:#?}", bug.source, model.name, mended.failures);
    }
}

const OLD: &[u8] = b"the old configuration";
const NEW: [u8; 5000] = [b'n'; 5000];

/// "Ext4 data loss": files of length zero after delayed allocation was introduced.
#[test]
fn zero_length_files_after_replace_by_rename() {
    check(&Bug {
        source: "Launchpad bug 317781 (2009); Linux Documentation/admin-guide/ext4.rst, auto_da_alloc; OSDI 2014, section 2",
        before: |disk| put(disk, "conf", OLD),
        run: |disk| {
            put(disk, "conf.new", &NEW)?;
            disk.rename("conf.new", "conf")
        },
        judge: |disk, _| expect("conf is old or new", is(disk, "conf", OLD) || is(disk, "conf", &NEW)),
        // Only ext4-ordered promises this order, and it is no longer ext4's default.
        found: &["kedgefs", "xfs", "btrfs", "ext4", "ext4-writeback", "posix"],
        mended: |disk| {
            put_synced(disk, "conf.new", &NEW)?;
            disk.rename("conf.new", "conf")
        },
        fails: None,
    });
}

#[test]
fn leveldb_loses_a_new_file_whose_directory_is_not_synced() {
    check(&Bug {
        source: "google/leveldb issue 196, \"fsync() required after file creation\"; fsync(2); OSDI 2014",
        before: nothing,
        run: |disk| {
            put_synced(disk, "000003.log", b"key")?;
            disk.tell("key");
            Ok(())
        },
        judge: |disk, told| expect("the key is there", told.is_empty() || is(disk, "000003.log", b"key")),
        found: POSIX,
        mended: |disk| {
            put_synced(disk, "000003.log", b"key")?;
            disk.sync("")?;
            disk.tell("key");
            Ok(())
        },
        fails: None,
    });
}

fn leveldb_switch(disk: &Disk, sync_dir: bool) -> Result<()> {
    put_synced(disk, "MANIFEST-2", b"tables")?;
    disk.sync("")?;
    put_synced(disk, "dbtmp", b"MANIFEST-2")?;
    disk.rename("dbtmp", "CURRENT")?;
    if sync_dir {
        disk.sync("")?;
    }
    disk.remove("MANIFEST-1")
}

#[test]
fn leveldb_removes_the_old_manifest_before_the_rename_is_durable() {
    check(&Bug {
        source: "google/leveldb issue 195, \"fsync() required after calling rename()\"; that renames keep their order on \
                 XFS, ext4 and Btrfs: D. Chinner, linux-kernel, 14 September 2018",
        before: |disk| {
            put(disk, "MANIFEST-1", b"tables")?;
            put(disk, "CURRENT", b"MANIFEST-1")
        },
        run: |disk| leveldb_switch(disk, false),
        judge: |disk, _| {
            let name = disk.read("CURRENT").map_err(|e| format!("CURRENT: {e}"))?;
            let name = String::from_utf8(name).map_err(|e| e.to_string())?;
            expect("CURRENT names a manifest that is there", is(disk, &name, b"tables"))
        },
        found: POSIX,
        mended: |disk| leveldb_switch(disk, true),
        fails: None,
    });
}

fn leveldb_create(disk: &Disk, sync_manifest: bool) -> Result<()> {
    put(disk, "MANIFEST-1", b"tables")?;
    if sync_manifest {
        disk.sync("MANIFEST-1")?;
        disk.sync("")?;
    }
    put_synced(disk, "dbtmp", b"MANIFEST-1")?;
    disk.rename("dbtmp", "CURRENT")
}

#[test]
fn leveldb_names_a_manifest_that_is_not_durable() {
    check(&Bug {
        source: "google/leveldb issue 189, \"Missing a fsync() or msync() call after creating MANIFEST-000001\"",
        before: nothing,
        run: |disk| leveldb_create(disk, false),
        judge: |disk, _| expect("a manifest", !disk.exists("CURRENT") || is(disk, "MANIFEST-1", b"tables")),
        found: REAL,
        mended: |disk| leveldb_create(disk, true),
        fails: None,
    });
}

fn leveldb_logs(disk: &Disk, sync_old: bool) -> Result<()> {
    disk.open("3.log")?.append(b"one")?;
    if sync_old {
        disk.sync("3.log")?;
    }
    put_synced(disk, "4.log", b"two")?;
    disk.sync("")
}

#[test]
fn leveldb_keeps_a_later_put_and_loses_an_earlier_one() {
    check(&Bug {
        source: "google/leveldb issue 193, \"Missing a fsync() on the .log file before compaction\"; OSDI 2014",
        before: |disk| put(disk, "3.log", b""),
        run: |disk| leveldb_logs(disk, false),
        judge: |disk, _| expect("one before two", !is(disk, "4.log", b"two") || is(disk, "3.log", b"one")),
        found: REAL,
        mended: |disk| leveldb_logs(disk, true),
        fails: None,
    });
}

/// Checks a log of one-page records, each filled with its record number.
fn etcd_is_prefix(found: &[u8]) -> bool {
    let end = found.iter().position(|b| *b == 0).unwrap_or(found.len());
    // All bytes from the first zero on must be zero, as the part that was never written is.
    // Otherwise a record is broken, not torn.
    found[end..].iter().all(|b| *b == 0)
}

#[test]
fn etcd_finds_a_later_page_of_its_log_without_an_earlier_one() {
    check(&Bug {
        source: "etcd-io/etcd issue 6379 (R. Alagappan), two appends and one fdatasync",
        before: |disk| put(disk, "wal", &[b'0'; PAGE]),
        run: |disk| {
            let wal = disk.open("wal")?;
            wal.append(&[b'1'; PAGE])?;
            wal.append(&[b'2'; PAGE])?;
            wal.sync_data()
        },
        judge: |disk, _| expect("a prefix", disk.read("wal").is_ok_and(|found| etcd_is_prefix(&found))),
        // Under KedgeFS the size of a file needs the smaller sizes before it.
        found: OTHERS,
        // Each append is one page whose size is already durable. Only a torn page remains possible;
        // each sector's own byte replaces the checksum that such a log needs.
        mended: |disk| {
            let wal = disk.open("wal")?;
            for sector in 0..2 * PAGE / 512 {
                wal.append(&[b'1' + (sector / 8) as u8; 512])?;
                wal.sync_data()?;
            }
            Ok(())
        },
        fails: None,
    });
}

/// Two meta pages, a free list and a leaf, written in one call when the database is created.
fn bbolt_pages() -> Vec<u8> {
    [b'm', b'm', b'f', b'l'].iter().flat_map(|page| [*page; PAGE]).collect()
}

#[test]
fn bbolt_cannot_open_a_database_whose_first_write_was_torn() {
    check(&Bug {
        source: "etcd-io/etcd issue 16596 and etcd-io/bbolt issue 567 (found with LazyFS): one write of four pages, then fsync",
        before: nothing,
        run: |disk| {
            put_synced(disk, "db", &bbolt_pages())?;
            disk.sync("")
        },
        judge: |disk, _| {
            // The program creates a missing or empty file again.
            let found = disk.read("db").unwrap_or_default();
            expect("db is empty or whole", found.is_empty() || found == bbolt_pages())
        },
        // No order of calls helps: no file system writes four pages atomically.
        found: ALL,
        mended: |disk| {
            put_synced(disk, "db.init", &bbolt_pages())?;
            disk.rename("db.init", "db")?;
            disk.sync("")
        },
        fails: None,
    });
}

fn sqlite_commit(disk: &Disk, sync_dir: bool) -> Result<()> {
    put_synced(disk, "db-journal", b"old")?;
    disk.sync("")?;
    disk.open("db")?.write_at(0, b"new")?;
    disk.sync("db")?;
    disk.remove("db-journal")?;
    if sync_dir {
        disk.sync("")?;
    }
    disk.tell("new");
    Ok(())
}

#[test]
fn sqlite_rolls_a_commit_back_because_its_journal_came_again() {
    check(&Bug {
        source: "OSDI 2014 (SQLite, durability); https://sqlite.org/pragma.html#pragma_synchronous, EXTRA against FULL",
        before: |disk| put(disk, "db", b"old"),
        run: |disk| sqlite_commit(disk, false),
        judge: |disk, told| {
            let hot = is(disk, "db-journal", b"old");
            expect("committed", told.is_empty() || !hot && is(disk, "db", b"new"))
        },
        // No call made the removal durable, so no order of calls helps.
        found: ALL,
        mended: |disk| sqlite_commit(disk, true),
        fails: None,
    });
}

fn git_commit(disk: &Disk, sync_object: bool) -> Result<()> {
    put(disk, "tmp_obj", b"object")?;
    if sync_object {
        disk.sync("tmp_obj")?;
    }
    disk.rename("tmp_obj", "5d41402a")?;
    put_synced(disk, "HEAD.lock", b"5d41402a")?;
    disk.sync("")?;
    disk.rename("HEAD.lock", "HEAD")
}

#[test]
fn git_refers_to_an_object_that_is_empty() {
    check(&Bug {
        source: "OSDI 2014 (Git); git-config(1), core.fsync: loose objects are not synced by default",
        before: |disk| put(disk, "HEAD", b""),
        run: |disk| git_commit(disk, false),
        judge: |disk, _| {
            let head = disk.read("HEAD").map_err(|e| format!("HEAD: {e}"))?;
            let name = String::from_utf8(head).map_err(|e| e.to_string())?;
            expect("the object that HEAD names is whole", name.is_empty() || is(disk, &name, b"object"))
        },
        // The bug is found on ext4 too: the object's rename replaces no file, so auto_da_alloc does
        // not apply. The directory's fsync orders the names under all models.
        found: REAL,
        mended: |disk| git_commit(disk, true),
        fails: None,
    });
}

#[test]
fn a_renamed_file_is_gone_under_both_names_although_it_was_synced() {
    check(&Bug {
        source: "the guarantee that OSDI 2018 tests file systems for, and found broken in Btrfs and F2FS",
        before: |disk| put(disk, "foo", b"x"),
        run: |disk| {
            disk.rename("foo", "bar")?;
            disk.sync("bar")?;
            disk.tell("bar");
            Ok(())
        },
        judge: |disk, told| expect("bar", told.is_empty() || is(disk, "bar", b"x") && !disk.exists("foo")),
        found: POSIX,
        mended: |disk| {
            disk.rename("foo", "bar")?;
            disk.sync("bar")?;
            disk.sync("")?;
            disk.tell("bar");
            Ok(())
        },
        fails: None,
    });
}

fn deliver(disk: &Disk, sync_old: bool) -> Result<()> {
    disk.rename("new/mail", "cur/mail")?;
    disk.sync("cur")?;
    if sync_old {
        disk.sync("new")?;
    }
    disk.tell("moved");
    Ok(())
}

#[test]
fn a_file_that_was_moved_is_in_both_directories() {
    check(&Bug {
        source: "OSDI 2018: renames that are not atomic on Btrfs; still so on Linux 6.18 (xtask crash-reality)",
        before: |disk| {
            disk.create_dir("new")?;
            disk.create_dir("cur")?;
            put(disk, "new/mail", b"mail")
        },
        run: |disk| deliver(disk, false),
        judge: |disk, told| {
            let (new, cur) = (is(disk, "new/mail", b"mail"), is(disk, "cur/mail", b"mail"));
            expect("the mail is there", new || cur)?;
            expect("once, in its new place", told.is_empty() || cur && !new)
        },
        found: &["btrfs", "posix"],
        mended: |disk| deliver(disk, true),
        fails: None,
    });
}

fn new_ancestor(disk: &Disk, sync_parent: bool) -> Result<()> {
    disk.create_dir("A")?;
    disk.create_dir("B")?;
    disk.create_dir("A/C")?;
    put_synced(disk, "B/foo", b"x")?;
    disk.hard_link("B/foo", "A/C/foo")?;
    disk.sync("A")?;
    if sync_parent {
        disk.sync("")?;
    }
    disk.tell("A");
    Ok(())
}

#[test]
fn a_new_directory_is_missing_although_it_was_synced() {
    check(&Bug {
        source: "Linux commit d4682ba03ef6, \"Btrfs: sync log after logging new name\": a bug then, and what `posix` allows",
        before: nothing,
        run: |disk| new_ancestor(disk, false),
        judge: |disk, told| expect("A", told.is_empty() || disk.exists("A")),
        found: POSIX,
        mended: |disk| new_ancestor(disk, true),
        fails: None,
    });
}

fn postgres_checkpoint(disk: &Disk, trust_second: bool) -> Result<()> {
    disk.open("heap")?.write_at(0, &[b'n'; 2 * PAGE])?;
    // This fsync fails.
    disk.sync("heap")?;
    // The checkpointer retries, and this fsync reports success.
    disk.sync("heap")?;
    if trust_second {
        disk.remove("wal")?;
        disk.sync("")?;
    }
    Ok(())
}

#[test]
fn postgres_trusts_the_second_fsync_after_one_that_failed() {
    check(&Bug {
        source: "C. Ringer, pgsql-hackers, March 2018, \"PostgreSQL's handling of fsync() errors is unsafe and risks data loss \
                 at least on XFS\"; mended by \"PANIC on fsync() failure\", 19 November 2018; ATC 2020",
        before: |disk| {
            put(disk, "heap", &[b'o'; 2 * PAGE])?;
            put(disk, "wal", b"heap is n")
        },
        run: |disk| postgres_checkpoint(disk, true),
        judge: |disk, _| expect("heap or its log", disk.exists("wal") || is(disk, "heap", &[b'n'; 2 * PAGE])),
        // KedgeFS keeps the bytes dirty or refuses every later fsync; `strict` orders the bytes
        // anyway.
        found: OTHERS,
        // The fix of PostgreSQL 11.2, 10.7 and 9.6.12: stop, and replay the log.
        mended: |disk| postgres_checkpoint(disk, false),
        fails: Some(0),
    });
}

fn postgres_recycle(disk: &Disk, sync_dir: bool) -> Result<()> {
    disk.rename("wal1", "wal3")?;
    if sync_dir {
        disk.sync("")?;
    }
    let wal = disk.open("wal3")?;
    wal.write_at(0, b"new")?;
    wal.sync_data()?;
    disk.tell("new");
    Ok(())
}

#[test]
fn postgres_finds_a_recycled_log_under_its_old_name() {
    check(&Bug {
        source: "PostgreSQL commit a62714fae23d, \"Avoid unlikely data-loss scenarios due to rename() without fsync\"",
        before: |disk| put(disk, "wal1", b"old"),
        run: |disk| postgres_recycle(disk, false),
        judge: |disk, told| expect("wal3", told.is_empty() || is(disk, "wal3", b"new")),
        // The bytes overwrite old ones, so fdatasync persists no metadata, and the rename may be
        // lost.
        found: REAL,
        mended: |disk| postgres_recycle(disk, true),
        fails: None,
    });
}

fn append_after_failure(disk: &Disk, again: bool) -> Result<()> {
    let log = disk.open("log")?;
    log.write_at(PAGE as u64, &[b'1'; PAGE])?;
    // This fsync fails, and the program continues.
    log.sync_all()?;
    if again {
        log.write_at(PAGE as u64, &[b'1'; PAGE])?;
    }
    log.write_at(2 * PAGE as u64, &[b'2'; PAGE])?;
    log.sync_all()?;
    disk.tell("2");
    Ok(())
}

#[test]
fn a_log_goes_on_after_an_fsync_that_failed() {
    check(&Bug {
        source: "ATC 2020: pages are always marked clean, so the next fsync succeeds without them",
        before: |disk| put(disk, "log", &[b'0'; PAGE]),
        run: |disk| append_after_failure(disk, false),
        judge: |disk, told| {
            let whole: Vec<u8> = [b'0', b'1', b'2'].iter().flat_map(|b| [*b; PAGE]).collect();
            expect("all three records", told.is_empty() || is(disk, "log", &whole))
        },
        found: OTHERS,
        // Writing the bytes again makes the page dirty again.
        mended: |disk| append_after_failure(disk, true),
        fails: Some(0),
    });
}
