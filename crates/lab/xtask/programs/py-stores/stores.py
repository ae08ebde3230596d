"""Stores in Python, each with put and get, in the settings that their documentation calls durable.
Arguments: run NAME COUNT, check NAME, version NAME. "sound": promises do not count."""
import hashlib
import importlib.metadata
import os
import sys


def value(n):
    return hashlib.sha256(b"key%04d" % n).hexdigest() * 40


class DiskCache:
    package = "diskcache"

    def __init__(self, size=1, **options):
        import diskcache

        self.size = size
        self.cache = diskcache.Cache(".", **options)

    def put(self, n):
        self.cache.set(f"key{n:04}", value(n).encode() * self.size)

    def get(self, n):
        found = self.cache.get(f"key{n:04}")
        return None if found is None else value(n) if found == value(n).encode() * self.size else repr(found[:40])


class Zodb:
    package = "ZODB"

    def __init__(self):
        import ZODB
        import transaction

        self.commit = transaction.commit
        self.root = ZODB.DB("data.fs").open().root()

    def put(self, n):
        self.root[f"key{n:04}"] = value(n)
        self.commit()

    def get(self, n):
        return self.root.get(f"key{n:04}")


class DuckDb:
    package = "duckdb"

    def __init__(self):
        import duckdb

        self.db = duckdb.connect("zoo.db")
        self.db.execute("create table if not exists t (n integer primary key, v varchar)")

    def put(self, n):
        self.db.execute("insert into t values (?, ?)", [n, value(n)])
        if n % 3 == 2:
            self.db.execute("checkpoint")

    def get(self, n):
        found = self.db.execute("select v from t where n = ?", [n]).fetchone()
        return found and found[0]


class TinyDb:
    package = "tinydb"

    def __init__(self):
        import tinydb

        self.query = tinydb.Query()
        self.db = tinydb.TinyDB("db.json")

    def put(self, n):
        self.db.insert({"n": n, "v": value(n)})

    def get(self, n):
        found = self.db.get(self.query.n == n)
        return found and found["v"]


class SqliteDict:
    package = "sqlitedict"

    def __init__(self):
        import sqlitedict

        self.db = sqlitedict.SqliteDict("zoo.sqlite")

    def put(self, n):
        self.db[f"key{n:04}"] = value(n)
        self.db.commit()

    def get(self, n):
        return self.db.get(f"key{n:04}")


class PersistQueue:
    package = "persist-queue"

    def __init__(self):
        import persistqueue

        self.queue = persistqueue.Queue("q", autosave=True)
        self.found = None

    def put(self, n):
        self.queue.put(value(n))

    def get(self, n):
        if self.found is None:
            self.found = [self.queue.get() for _ in range(self.queue.qsize())]
        return self.found[n] if n < len(self.found) else None


class PersistAckQueue(PersistQueue):
    def __init__(self):
        import persistqueue

        self.queue = persistqueue.SQLiteAckQueue("q", auto_commit=True)
        self.found = None


class Gdbm:
    package = None

    def __init__(self):
        import dbm.gnu

        self.db = dbm.gnu.open("zoo.gdbm", "cs")

    def put(self, n):
        self.db[f"key{n:04}"] = value(n)

    def get(self, n):
        found = self.db.get(f"key{n:04}")
        return found and found.decode()


STORES = {
    "diskcache": lambda: DiskCache(sqlite_synchronous=2),
    "diskcache-files": lambda: DiskCache(size=20, sqlite_synchronous=2),
    "zodb": Zodb,
    "duckdb": DuckDb,
    "tinydb": TinyDb,
    "sqlitedict": SqliteDict,
    "persist-queue": PersistQueue,
    "persist-queue-sqlite": PersistAckQueue,
    "gdbm": Gdbm,
}


def run(name, count):
    store = STORES[name]()
    for n in range(count):
        store.put(n)
        print("ack", n, flush=True)
    # Without a close: power fails while a program runs.
    os._exit(0)


def check(name, is_sound_enough):
    promised = int(os.environ["KEDGE_ACKED_COUNT"])
    store = STORES[name]()
    for n in range(promised + 2):
        found = store.get(n)
        if found is None:
            if n < promised and not is_sound_enough:
                sys.exit(f"key {n} was promised and is not there")
        elif found != value(n):
            sys.exit(f"key {n} has a wrong value: {found[:60]}")
    os._exit(0)


if __name__ == "__main__":
    task, name = sys.argv[1:3]
    if task == "run":
        os.chdir(os.environ["KEDGE_DIR"])
        run(name, int(sys.argv[3]))
    elif task == "check":
        check(name, sys.argv[3:] == ["sound"])
    else:
        print(importlib.metadata.version(name))
