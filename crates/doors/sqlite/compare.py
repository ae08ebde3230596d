#!/usr/bin/python3
"""Commits of one row and of many, per second: SQLite in an image, on a mount, and on the host.

    LD_LIBRARY_PATH=DIR /usr/bin/python3 crates/doors/sqlite/compare.py KEDGE EXTENSION HOST

DIR has an SQLite built with atomic writes (the tests build one in target/tmp), KEDGE is the program,
EXTENSION the built libkedgefs_sqlite.so, HOST a directory on the file system to compare with, which
also gets the images. Rounds alternate between the contenders; the table has medians.

    LD_LIBRARY_PATH=DIR /usr/bin/python3 crates/doors/sqlite/compare.py --counts KEDGE HOST

prints what a commit on a mount costs: requests, and bytes and durable writes of the device.
"""
import json, os, sqlite3, statistics, subprocess, sys, tempfile, time

ROUNDS, SECONDS = int(os.environ.get("ROUNDS", 5)), float(os.environ.get("SECONDS", 1.5))
COMMITS = 200
NAMES = ["image (VFS), atomic writes", "image (VFS), WAL", "mount, atomic writes", "mount, WAL",
         "mount, rollback journal", "host, WAL", "host, rollback journal"]


def database(name, mode):
    db = sqlite3.connect(name, uri=True, isolation_level=None)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("pragma synchronous=full")
    db.execute("create table t (id integer primary key, x)")
    db.execute("begin")
    db.executemany("insert into t values (?, randomblob(500))", [(i,) for i in range(20000)])
    db.execute("commit")
    return db


def rate(step):
    started, n = time.monotonic(), 0
    while time.monotonic() - started < SECONDS:
        step(n)
        n += 1
    return n / (time.monotonic() - started)


def one_row(db):
    return lambda n: db.execute("insert into t (x) values (randomblob(100))")


def many_pages(db):
    def step(n):
        db.execute("begin")
        db.executemany("update t set x = randomblob(500) where id = ?",
                       [((n * 7919 + i * 1009) % 20000,) for i in range(20)])
        db.execute("commit")
    return step


def raw_writes(path):
    # 4 KiB with O_DIRECT and O_DSYNC into a file that is allocated: one durable write each.
    import mmap
    with open(path, "wb") as f:
        f.write(bytes(64 << 20))
        os.fsync(f.fileno())
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC)
    block = mmap.mmap(-1, 4096)
    return lambda n: os.pwrite(fd, block, n % 16384 * 4096)


def without_library():
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}


def plain(path):
    """On the mount with the system's SQLite, which has no atomic writes."""
    command = [sys.executable, __file__, "--plain", path]
    out = subprocess.run(command, env=without_library(), check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(value) for value in out.split()]


def has_atomic_writes():
    options = sqlite3.connect(":memory:").execute("pragma compile_options")
    return "ENABLE_BATCH_ATOMIC_WRITE" in [row[0] for row in options]


def counts(kedge, host):
    assert has_atomic_writes(), "LD_LIBRARY_PATH names no SQLite with atomic writes"
    print("| commit on a mount | requests | KiB to the device | FUA writes | flushes |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=host) as place, Mount(kedge, place) as mount:
        for mode, name in (("delete", "atomic writes"), ("wal", "WAL")):
            count(kedge, mount, mode, name)
        command = [sys.executable, __file__, "--plain-counts", kedge, mount]
        subprocess.run(command, env=without_library(), check=True)


def count(kedge, mount, mode, name):
    db = database(f"{mount}/{name}.db", mode)
    for step, rows in ((one_row(db), "one row"), (many_pages(db), "20 rows")):
        step(0)
        before = stats(kedge, mount)
        for n in range(1, COMMITS + 1):
            step(n)
        after = stats(kedge, mount)
        each = [(b - a) / COMMITS for a, b in zip(before, after)]
        print(f"| {name}, {rows} | {each[0]:.1f} | {each[1] / 1024:.1f} | {each[2]:.2f} | {each[3]:.2f} |", flush=True)
    db.close()


def stats(kedge, mount):
    text = subprocess.run([kedge, "stats", "--json", mount], check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(text)
    device = found["device"]
    return [sum(found["fuse"]["requests"].values()), device["write_bytes"], device["fua_writes"], device["flushes"]]


class Mount:
    """A new image on a mount, in a directory of the host."""

    def __init__(self, kedge, place):
        self.kedge, self.image, self.at = kedge, f"{place}/mount.kedge", f"{place}/mnt"

    def __enter__(self):
        subprocess.run([self.kedge, "mkfs", "--size", "1G", self.image], check=True,
                       stdout=subprocess.DEVNULL)
        os.mkdir(self.at)
        subprocess.run([self.kedge, "mount", self.image, self.at], check=True, stdout=subprocess.DEVNULL)
        return self.at

    def __exit__(self, *_):
        subprocess.run([self.kedge, "umount", self.at], check=True, stdout=subprocess.DEVNULL)


def compare(kedge, extension, host):
    assert has_atomic_writes(), "LD_LIBRARY_PATH names no SQLite with atomic writes"
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(os.path.abspath(extension))
    with tempfile.TemporaryDirectory(dir=host) as place, Mount(kedge, place) as mount:
        image = f"{place}/vfs.kedge"
        subprocess.run([kedge, "mkfs", "--size", "1G", image], check=True, stdout=subprocess.DEVNULL)
        measure(place, image, mount)


def measure(place, image, mount):
    made = [database(f"file:{image}:/batch.db?vfs=kedgefs", "delete"),
            database(f"file:{image}:/wal.db?vfs=kedgefs", "wal"),
            database(f"{mount}/batch.db", "delete"), database(f"{mount}/wal.db", "wal"), None,
            database(f"{place}/wal.db", "wal"), database(f"{place}/delete.db", "delete")]
    found, raw, raws = {name: ([], []) for name in NAMES}, raw_writes(f"{place}/raw"), []
    for n in range(ROUNDS):
        for name, db in zip(NAMES, made):
            if db is None:
                one, many = plain(f"{mount}/plain{n}.db")
            else:
                one, many = rate(one_row(db)), rate(many_pages(db))
            found[name][0].append(one)
            found[name][1].append(many)
        raws.append(rate(raw))
    print("| SQLite | commits of one row | commits of 20 rows in 20 pages |\n|---|---|---|")
    for name, (one, many) in found.items():
        print(f"| {name} | {statistics.median(one):.0f} | {statistics.median(many):.0f} |")
    print(f"| raw durable writes of 4 KiB | {statistics.median(raws):.0f} | |")
    for db in filter(None, made):
        db.close()


if sys.argv[1] == "--plain":
    assert not has_atomic_writes(), "the system's SQLite has atomic writes"
    db = database(sys.argv[2], "delete")
    print(rate(one_row(db)), rate(many_pages(db)))
elif sys.argv[1] == "--counts":
    counts(*sys.argv[2:4])
elif sys.argv[1] == "--plain-counts":
    assert not has_atomic_writes(), "the system's SQLite has atomic writes"
    count(sys.argv[2], sys.argv[3], "delete", "rollback journal")
else:
    compare(*sys.argv[1:4])
