//! The rows: a program with its settings, and the result to expect by its documentation under each
//! model.

use super::needs::Need;
use Expect::{Fail, Fault, Pass};

/// Distinct states for each row and model.
const STATES: u32 = 600;

pub enum Expect {
    Pass,
    /// The program fails, and the report contains these words.
    Fail(&'static str),
    /// By its documentation the program should pass, but it is known to fail, and the report
    /// contains these words. docs/CRASH_TESTING.md gives the reason.
    Fault(&'static str),
}

pub struct Row {
    pub name: &'static str,
    pub needs: &'static [Need],
    pub program: &'static str,
    /// A script that runs before the recording. It makes the initial content of the recording
    /// (`$PROGRAM_FROM`), and other files that the program needs (`$PROGRAM_TEMP`).
    pub prepare: Option<&'static str>,
    /// A script of `programs/` (for the program `env`: a program), and its arguments.
    pub run: &'static [&'static str],
    /// Whether stores through shared mappings are recorded before the next call.
    pub mappings: bool,
    /// The check: a script of `programs/`, or a whole command.
    pub check: &'static str,
    /// The command for `--infer`, which prints the content of the program's store after a restart.
    /// Empty if the row is not compared.
    pub show: &'static str,
    pub expect: &'static [(&'static str, Expect)],
    pub states: u32,
    /// Number of failing states after which the search ends.
    pub failures: u32,
}

/// The rows whose settings the documentation calls safe, or that have no safer settings. The list
/// of all programs in `docs/hunt/TABLE.md` contains them beside the hunt's rows.
pub const IN_SAFE_SETTINGS: &[&str] = &[
    "sed -i",
    "vim :wq",
    "SQLite rollback, EXTRA",
    "SQLite WAL, FULL",
    "Git, core.fsync=all",
    "LMDB, default",
    "LevelDB, sync",
    "RocksDB, sync",
    "shelve on dbm.dumb, sync()",
    "bbolt, default",
    "redb, Immediate",
    "sled, flush()",
    "dpkg -i",
    "pip install",
    "npm install",
    "PostgreSQL, fsync = on",
];

type Expected = &'static [(&'static str, Expect)];
type Words = &'static [&'static str];

pub const ROW: Row = Row {
    name: "",
    needs: &[],
    program: "sh",
    prepare: None,
    run: &[],
    mappings: false,
    check: "",
    show: "",
    expect: &[],
    states: STATES,
    failures: STATES,
};

const fn saver(name: &'static str, run: Words, expect: Expected) -> Row {
    let (check, show) = ("sh '$PROGRAMS/save-check.sh'", "sh '$PROGRAMS/show.sh' doc");
    Row { name, run, check, show, expect, ..ROW }
}

const fn sqlite(name: &'static str, run: Words, expect: Expected) -> Row {
    let needs = &[Need::Debian("sqlite3", "sqlite3"), Need::Debian("python3", "python3")];
    let (check, show) = ("sh '$PROGRAMS/sqlite-check.sh'", "sh '$PROGRAMS/show.sh' sqlite");
    Row { name, needs, program: "python3", run, check, show, expect, ..ROW }
}

const fn store(
    name: &'static str,
    needs: &'static [Need],
    run: Words,
    check: &'static str,
    show: &'static str,
    expect: Expected,
) -> Row {
    Row { name, needs, program: "python3", run, check, show, expect, ..ROW }
}

const fn git(name: &'static str, run: Words, expect: Expected) -> Row {
    let prepare = Some("git-prepare.sh");
    let (check, show) = ("sh '$PROGRAMS/git-check.sh'", "sh '$PROGRAMS/show.sh' git");
    Row { name, needs: &[Need::Debian("git", "git")], prepare, run, check, show, expect, ..ROW }
}

const LMDB: &[Need] = &[Need::Python("lmdb", "lmdb")];
const LEVELDB: &[Need] = &[Need::Python("plyvel", "plyvel")];
const ROCKSDB: &[Need] = &[Need::Python("rocksdict", "rocksdict")];

const fn built(
    name: &'static str,
    need: &'static [Need],
    run: Words,
    check: &'static str,
    show: &'static str,
    expect: Expected,
) -> Row {
    Row { name, needs: need, program: "env", run, check, show, expect, ..ROW }
}

pub const ROWS: &[Row] = &[
    saver(
        "save in place",
        &["save.sh", "in-place"],
        &[("strict", Fail("No persistence call")), ("ext4", Fail("doc"))],
    ),
    saver(
        "save by rename, no fsync",
        &["save.sh", "rename"],
        &[
            ("ext4-ordered", Pass),
            ("ext4", Fail("fsync(\"doc.tmp\")")),
            ("xfs", Fail("fsync(\"doc.tmp\")")),
            ("posix", Fail("fsync(\"doc.tmp\")")),
        ],
    ),
    saver(
        "save, directory not synced",
        &["save.sh", "no-dir"],
        &[("ext4", Fail("fsync(\".\")")), ("posix", Fail("fsync(\".\")"))],
    ),
    saver(
        "save, the right way",
        &["save.sh", "right"],
        &[("ext4", Pass), ("xfs", Pass), ("btrfs", Pass), ("posix", Pass)],
    ),
    saver("sed -i", &["save.sh", "sed"], &[("ext4", Fail("rename")), ("xfs", Fail("rename"))]),
    // :help 'backupcopy': if vim does not rename, it overwrites the file, and until then keeps the
    // old text in a backup. The check reads only the file.
    Row {
        needs: &[Need::Debian("vim", "vim-tiny")],
        ..saver("vim :wq", &["save.sh", "vim"], &[("ext4", Fail("truncate(\"doc\", 0)"))])
    },
    // https://sqlite.org/pragma.html#pragma_synchronous: EXTRA syncs the directory after the
    // journal is unlinked, FULL does not: "a commit that is followed closely by a power loss" may
    // be rolled back.
    sqlite(
        "SQLite rollback, EXTRA",
        &["sqlite.py", "delete", "extra", "3"],
        &[("ext4", Pass), ("posix", Pass)],
    ),
    sqlite(
        "SQLite rollback, FULL",
        &["sqlite.py", "delete", "full", "3"],
        &[("ext4", Fail("unlink(\"t.db-journal\")"))],
    ),
    // The same page, of NORMAL: "a very small (though non-zero) chance that a power failure at just
    // the wrong time could corrupt the database in journal_mode=DELETE on an older filesystem". It
    // syncs the journal once, header and pages together: the header may be there and a page torn.
    sqlite(
        "SQLite rollback, NORMAL",
        &["sqlite.py", "delete", "normal", "3"],
        &[("ext4", Fail("unlink(\"t.db-journal\")"))],
    ),
    Row {
        check: "sh '$PROGRAMS/sqlite-sound-check.sh'",
        ..sqlite(
            "SQLite rollback, NORMAL: sound",
            &["sqlite.py", "delete", "normal", "3"],
            &[("ext4", Fail("t.db-journal"))],
        )
    },
    sqlite("SQLite WAL, FULL", &["sqlite.py", "wal", "full", "3"], &[("ext4", Pass), ("posix", Pass)]),
    // The same page: "WAL mode is always consistent with synchronous=NORMAL, but WAL mode does lose
    // durability".
    sqlite(
        "SQLite WAL, NORMAL",
        &["sqlite.py", "wal", "normal", "3"],
        &[("ext4", Fail("fsync(\"t.db-wal\")"))],
    ),
    Row {
        check: "sh '$PROGRAMS/sqlite-sound-check.sh'",
        ..sqlite("SQLite WAL, NORMAL: sound", &["sqlite.py", "wal", "normal", "3"], &[("ext4", Pass)])
    },
    // The page says of OFF: "the database might become corrupted if the operating system crashes".
    Row {
        check: "sh '$PROGRAMS/sqlite-sound-check.sh'",
        ..sqlite(
            "SQLite rollback, OFF: sound",
            &["sqlite.py", "delete", "off", "3"],
            &[("ext4", Fail("fsync(\"t.db"))],
        )
    },
    Row {
        check: "sh '$PROGRAMS/sqlite-sound-check.sh'",
        ..sqlite("SQLite WAL, OFF: sound", &["sqlite.py", "wal", "off", "3"], &[("ext4", Fail("t.db"))])
    },
    // git-config(1), core.fsync: the default leaves out loose objects and references, "committed"
    // ensures "that work that is committed to the repository [...] is hardened", "all" adds
    // references. What is not hardened "may be lost". No directory is ever synced.
    git("Git, default", &["git.sh", ""], &[("ext4", Fail(".git/objects"))]),
    git(
        "Git, core.fsync=all",
        &["git.sh", "-c core.fsync=all"],
        &[("ext4", Fault("fsync(\".git/refs/heads\")"))],
    ),
    // core.fsync=committed leaves out references.
    git(
        "Git, core.fsync=committed",
        &["git.sh", "-c core.fsync=committed"],
        &[("ext4", Fail(".git/refs/heads"))],
    ),
    // core.fsyncMethod: "batch" is "expected to be as safe as fsync" on macOS and Windows: on Linux
    // loose objects get sync_file_range only, whose manual promises nothing where a file grows.
    git(
        "Git, core.fsync=all, batch",
        &["git.sh", "-c core.fsync=all -c core.fsyncMethod=batch"],
        &[("ext4", Fail(".git/objects"))],
    ),
    Row {
        check: "sh '$PROGRAMS/git-check.sh' sound",
        ..git("Git, core.fsync=all: sound", &["git.sh", "-c core.fsync=all"], &[("ext4", Pass)])
    },
    // lmdb.h: the default is durable; MDB_NOSYNC "can corrupt the database"; MDB_NOMETASYNC
    // "maintains database integrity, but a system crash may undo the last committed transaction".
    store(
        "LMDB, default",
        LMDB,
        &["kv.py", "lmdb", "sync", "4"],
        "python3 '$PROGRAMS/kv-check.py' lmdb",
        "sh '$PROGRAMS/show.sh' lmdb",
        &[("ext4", Pass), ("posix", Pass)],
    ),
    store(
        "LMDB, MDB_NOMETASYNC",
        LMDB,
        &["kv.py", "lmdb", "nometasync", "4"],
        "python3 '$PROGRAMS/kv-check.py' lmdb",
        "sh '$PROGRAMS/show.sh' lmdb",
        &[("posix", Fail("fsync(\"data.mdb\")"))],
    ),
    store(
        "LMDB, MDB_NOSYNC: sound",
        LMDB,
        &["kv.py", "lmdb", "nosync", "4"],
        "python3 '$PROGRAMS/kv-check.py' lmdb sound",
        "sh '$PROGRAMS/show.sh' lmdb",
        &[("posix", Fail("data.mdb"))],
    ),
    // lmdb.h names no loss of durability with MDB_WRITEMAP. Of MDB_MAPASYNC it says: "As with
    // MDB_NOSYNC, a system crash can then corrupt the database or lose the last transactions."
    Row {
        mappings: true,
        ..store(
            "LMDB, MDB_WRITEMAP",
            LMDB,
            &["kv.py", "lmdb", "writemap", "4"],
            "python3 '$PROGRAMS/kv-check.py' lmdb",
            "sh '$PROGRAMS/show.sh' lmdb",
            &[("ext4", Pass), ("posix", Pass)],
        )
    },
    Row {
        mappings: true,
        ..store(
            "LMDB, MDB_WRITEMAP, MDB_NOSYNC: sound",
            LMDB,
            &["kv.py", "lmdb", "writemap-nosync", "4"],
            "python3 '$PROGRAMS/kv-check.py' lmdb sound",
            "sh '$PROGRAMS/show.sh' lmdb",
            &[("posix", Fail("data.mdb"))],
        )
    },
    Row {
        mappings: true,
        ..store(
            "LMDB, MDB_WRITEMAP, MDB_MAPASYNC: sound",
            LMDB,
            &["kv.py", "lmdb", "writemap-async", "4"],
            "python3 '$PROGRAMS/kv-check.py' lmdb sound",
            "sh '$PROGRAMS/show.sh' lmdb",
            &[("posix", Fail("data.mdb"))],
        )
    },
    // include/leveldb/options.h: "If this flag is true, the write will be flushed ... If this flag
    // is false, and the machine crashes, some recent writes may be lost."
    store(
        "LevelDB, sync",
        LEVELDB,
        &["kv.py", "leveldb", "sync", "4"],
        "python3 '$PROGRAMS/kv-check.py' leveldb",
        "sh '$PROGRAMS/show.sh' leveldb",
        &[("ext4", Pass), ("posix", Pass)],
    ),
    store(
        "LevelDB, no sync",
        LEVELDB,
        &["kv.py", "leveldb", "nosync", "4"],
        "python3 '$PROGRAMS/kv-check.py' leveldb",
        "sh '$PROGRAMS/show.sh' leveldb",
        &[("ext4", Fail(".log"))],
    ),
    // WriteOptions::sync has the same words.
    store(
        "RocksDB, sync",
        ROCKSDB,
        &["kv.py", "rocksdb", "sync", "4"],
        "python3 '$PROGRAMS/kv-check.py' rocksdb",
        "sh '$PROGRAMS/show.sh' rocksdb",
        &[("ext4", Pass), ("posix", Pass)],
    ),
    store(
        "RocksDB, no sync",
        ROCKSDB,
        &["kv.py", "rocksdb", "nosync", "4"],
        "python3 '$PROGRAMS/kv-check.py' rocksdb",
        "sh '$PROGRAMS/show.sh' rocksdb",
        &[("ext4", Fail(".log"))],
    ),
    // Python's documentation of shelve and dbm.dumb promises nothing. sync() writes files and syncs
    // none.
    store(
        "shelve on dbm.dumb, sync()",
        &[],
        &["kv.py", "shelve", "sync", "3"],
        "python3 '$PROGRAMS/kv-check.py' shelve",
        "sh '$PROGRAMS/show.sh' shelve",
        &[("ext4", Fail("db."))],
    ),
    // bbolt's README, of NoSync: "if the system crashes, it can corrupt". Otherwise each
    // transaction is fdatasynced.
    built(
        "bbolt, default",
        &[Need::Go("bbolt")],
        &["bbolt", "run", "sync", "4"],
        "bbolt check",
        "bbolt show",
        &[("ext4", Pass), ("posix", Pass)],
    ),
    built(
        "bbolt, NoSync",
        &[Need::Go("bbolt")],
        &["bbolt", "run", "nosync", "4"],
        "bbolt check",
        "bbolt show",
        &[("posix", Fail("fsync(\"db\")"))],
    ),
    // redb: a commit with Durability::Immediate "will be durable as soon as commit() returns".
    // Commits with Durability::None "will not be persisted to disk unless followed by a commit with
    // Durability::Immediate": they stay in memory, so no call can be lost.
    built(
        "redb, Immediate",
        &[Need::Rust("rust")],
        &["crash-stores", "run", "redb", "immediate", "4"],
        "crash-stores check redb",
        "crash-stores show redb",
        &[("ext4", Pass), ("posix", Pass)],
    ),
    built(
        "redb, None",
        &[Need::Rust("rust")],
        &["crash-stores", "run", "redb", "none", "4"],
        "crash-stores check redb",
        "crash-stores show redb",
        &[("posix", Fail("nothing at all is lost"))],
    ),
    // sled 0.34: flush() "Synchronously flushes all dirty IO buffers and calls fsync. If this
    // succeeds, it is guaranteed that all previous writes will be recovered if the system crashes".
    // In fact it calls sync_file_range (src/pagecache/iobuf.rs): github.com/spacejam/sled, issue
    // 1452.
    built(
        "sled, flush()",
        &[Need::Rust("rust")],
        &["crash-stores", "run", "sled", "flush", "4"],
        "crash-stores check sled",
        "crash-stores show sled",
        &[("ext4", Fault("fsync(\"db/db\")"))],
    ),
    built(
        "sled, no flush()",
        &[Need::Rust("rust")],
        &["crash-stores", "run", "sled", "none", "4"],
        "crash-stores check sled",
        "crash-stores show sled",
        // sled's own thread may have written some of the data by then, so the lost data differs
        // from run to run.
        &[("ext4", Fail("was promised and is not there"))],
    ),
    // dpkg(1), --force-unsafe-io: without it dpkg syncs before it renames. The option is off by
    // default, but images for containers set it in /etc/dpkg/dpkg.cfg.d. So each row sets it or
    // unsets it.
    Row {
        name: "dpkg -i",
        needs: &[Need::Debian("dpkg-deb", "dpkg")],
        prepare: Some("dpkg-prepare.sh"),
        run: &["dpkg.sh", "--refuse-unsafe-io"],
        check: "sh '$PROGRAMS/dpkg-check.sh'",
        show: "sh '$PROGRAMS/show.sh' dpkg",
        expect: &[("ext4", Pass), ("xfs", Pass)],
        ..ROW
    },
    Row {
        name: "dpkg -i --force-unsafe-io",
        needs: &[Need::Debian("dpkg-deb", "dpkg")],
        prepare: Some("dpkg-prepare.sh"),
        run: &["dpkg.sh", "--force-unsafe-io"],
        check: "sh '$PROGRAMS/dpkg-check.sh'",
        show: "sh '$PROGRAMS/show.sh' dpkg",
        expect: &[("posix", Fail("opt/zoo"))],
        ..ROW
    },
    // Neither program promises anything after a power failure.
    Row {
        name: "pip install",
        needs: &[Need::Python("pip", "pip")],
        prepare: Some("pip-prepare.sh"),
        run: &["pip.sh"],
        check: "sh '$PROGRAMS/pip-check.sh'",
        show: "sh '$PROGRAMS/show.sh' pip",
        expect: &[("ext4", Fail("zoo_pkg"))],
        states: 100,
        ..ROW
    },
    Row {
        name: "npm install",
        needs: &[Need::Debian("npm", "npm")],
        prepare: Some("npm-prepare.sh"),
        run: &["npm.sh"],
        check: "sh '$PROGRAMS/npm-check.sh'",
        show: "sh '$PROGRAMS/show.sh' npm",
        expect: &[("ext4", Fail("zoo-pkg"))],
        states: 100,
        ..ROW
    },
    // https://www.postgresql.org/docs/15/runtime-config-wal.html: fsync off "can result in
    // unrecoverable data corruption".
    Row {
        name: "PostgreSQL, fsync = on",
        needs: &[Need::Root, Need::Debian("/usr/lib/postgresql", "postgresql")],
        prepare: Some("postgres-prepare.sh"),
        run: &["postgres.sh", "on"],
        check: "sh '$PROGRAMS/postgres-check.sh'",
        expect: &[("ext4", Pass)],
        states: 60,
        ..ROW
    },
    Row {
        name: "PostgreSQL, fsync = off",
        needs: &[Need::Root, Need::Debian("/usr/lib/postgresql", "postgresql")],
        prepare: Some("postgres-prepare.sh"),
        run: &["postgres.sh", "off"],
        check: "sh '$PROGRAMS/postgres-check.sh'",
        expect: &[("ext4", Fail("fsync("))],
        states: 60,
        // Each check starts a server, so the search ends at the first failure.
        failures: 1,
        ..ROW
    },
];
