"""Stores in Python, each with put and get, in the settings that their documentation calls durable.
Arguments: run NAME COUNT, check NAME, version NAME. "sound": promises do not count. "prefix": nor do
they, but no value may be there without those before it."""
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


class LevelDbBatches:
    """Values that are written without a sync, and one with it after them."""

    package = "plyvel"
    fillers = 12

    def __init__(self):
        import plyvel

        self.db = plyvel.DB("zoo", create_if_missing=True, write_buffer_size=64 << 10, compression=None)

    def put(self, n):
        for filler in range(self.fillers):
            self.db.put(b"key%04d.%d" % (n, filler), os.urandom(9000))
        self.db.put(b"key%04d" % n, value(n).encode(), sync=True)

    def get(self, n):
        found = [self.db.get(b"key%04d.%d" % (n, filler)) for filler in range(self.fillers)]
        if None in found:
            return None
        found = self.db.get(b"key%04d" % n)
        return found and found.decode()


class LevelDbReopened:
    """Each value is put by a run of its own."""

    package = "plyvel"

    def open(self):
        import plyvel

        return plyvel.DB(".", create_if_missing=True)

    def put(self, n):
        db = self.open()
        db.put(b"key%04d" % n, value(n).encode(), sync=True)
        db.close()

    def get(self, n):
        db = self.open()
        found = db.get(b"key%04d" % n)
        db.close()
        return found and found.decode()


class RocksDb:
    """Without sync: the last values may be lost, but none before one that is there."""

    package = "rocksdict"

    def __init__(self):
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(64 << 10)
        self.db = rocksdict.Rdict("zoo", options)

    def put(self, n):
        self.db[b"key%04d" % n] = (value(n) * 6).encode()

    def get(self, n):
        found = self.db.get(b"key%04d" % n)
        return found and found.decode()[: len(value(n))]


class Xapian:
    package = None

    def __init__(self):
        import xapian

        self.document = xapian.Document
        self.missing = xapian.DocNotFoundError
        self.db = xapian.WritableDatabase("zoo", xapian.DB_CREATE_OR_OPEN)

    def put(self, n):
        document = self.document()
        document.set_data(value(n))
        document.add_boolean_term(f"Q{n}")
        self.db.replace_document(n + 1, document)
        self.db.commit()

    def get(self, n):
        try:
            return self.db.get_document(n + 1).get_data().decode()
        except self.missing:
            return None


class Tantivy:
    package = "tantivy"

    def __init__(self):
        import tantivy

        schema = tantivy.SchemaBuilder()
        schema.add_text_field("name", stored=True, tokenizer_name="raw")
        schema.add_text_field("body", stored=True)
        os.makedirs("zoo", exist_ok=True)
        self.document = tantivy.Document
        self.index = tantivy.Index(schema.build(), path="zoo")
        self.writer = None

    def put(self, n):
        if self.writer is None:
            self.writer = self.index.writer(heap_size=15_000_000, num_threads=1)
        self.writer.add_document(self.document(name=f"key{n:04}", body=value(n)))
        self.writer.commit()

    def get(self, n):
        self.index.reload()
        searcher = self.index.searcher()
        hits = searcher.search(self.index.parse_query(f"key{n:04}", ["name"]), 1).hits
        return searcher.doc(hits[0][1])["body"][0] if hits else None


class UnQlite:
    package = "unqlite"

    def __init__(self):
        import unqlite

        self.db = unqlite.UnQLite("zoo.udb")

    def put(self, n):
        self.db[f"key{n:04}"] = value(n)
        self.db.commit()

    def get(self, n):
        found = self.db.get(f"key{n:04}") if self.db.exists(f"key{n:04}") else None
        return found and (found if isinstance(found, str) else found.decode())


class BerkeleyDb:
    package = None

    def __init__(self):
        from bsddb3 import db

        env = db.DBEnv()
        env.set_lg_max(1 << 20)
        flags = db.DB_INIT_MPOOL | db.DB_INIT_TXN | db.DB_INIT_LOG | db.DB_INIT_LOCK
        env.open(".", db.DB_CREATE | db.DB_RECOVER | flags)
        self.env = env
        self.db = db.DB(env)
        self.db.open("zoo.db", None, db.DB_BTREE, db.DB_CREATE | db.DB_AUTO_COMMIT)

    def put(self, n):
        transaction = self.env.txn_begin()
        self.db.put(b"key%04d" % n, value(n).encode(), txn=transaction)
        transaction.commit()
        if n % 3 == 2:
            self.env.txn_checkpoint()

    def get(self, n):
        found = self.db.get(b"key%04d" % n)
        return found and found.decode()


class Tdb:
    package = None

    def __init__(self):
        import tdb

        self.db = tdb.Tdb("zoo.tdb", hash_size=7, flags=os.O_RDWR | os.O_CREAT)

    def put(self, n):
        self.db.transaction_start()
        self.db[b"key%04d" % n] = value(n).encode()
        self.db.transaction_commit()

    def get(self, n):
        found = self.db.get(b"key%04d" % n)
        return found and found.decode()

class Lmdb:
    package = "lmdb"

    def __init__(self, **options):
        import lmdb

        self.env = lmdb.open("zoo", map_size=1 << 22, **options)

    def put(self, n):
        with self.env.begin(write=True) as transaction:
            transaction.put(b"key%04d" % n, value(n).encode())

    def get(self, n):
        with self.env.begin() as transaction:
            found = transaction.get(b"key%04d" % n)
        return found and bytes(found).decode()


class Mdbx:
    package = "libmdbx"

    def __init__(self):
        import mdbx

        os.makedirs("zoo", exist_ok=True)
        size = mdbx.Geometry(size_lower=1 << 20, size_now=1 << 20, size_upper=4 << 20)
        flags = mdbx.MDBXEnvFlags.MDBX_SYNC_DURABLE | mdbx.MDBXEnvFlags.MDBX_LIFORECLAIM
        self.env = mdbx.Env("zoo", flags=flags, geometry=size)

    def put(self, n):
        with self.env.rw_transaction() as transaction:
            with transaction.open_map() as table:
                table.put(transaction, b"key%04d" % n, value(n).encode())
            transaction.commit()

    def get(self, n):
        found = self.env.get(b"key%04d" % n)
        return found and found.decode()


class Turso:
    package = "pyturso"

    def __init__(self):
        import turso

        self.db = turso.connect("zoo.db")
        self.db.execute("create table if not exists t (n integer primary key, v text)")
        self.db.commit()

    def put(self, n):
        self.db.execute("insert into t values (?, ?)", (n, value(n)))
        self.db.commit()

    def get(self, n):
        found = self.db.execute("select v from t where n = ?", (n,)).fetchone()
        return found and found[0]


class Ladybug:
    package = "ladybug"

    def __init__(self):
        import ladybug

        self.db = ladybug.Connection(ladybug.Database("zoo.lbug", buffer_pool_size=64 << 20))
        self.db.execute("create node table if not exists t (n int64 primary key, v string)")

    def put(self, n):
        self.db.execute("create (:t {n: $n, v: $v})", {"n": n, "v": value(n)})

    def get(self, n):
        found = self.db.execute("match (t:t) where t.n = $n return t.v", {"n": n})
        return found.get_next()[0] if found.has_next() else None


class LibGit:
    """Each value is a commit of its own on one branch."""

    package = "pygit2"

    def __init__(self):
        import pygit2

        pygit2.settings.enable_fsync_gitdir(True)
        if not os.path.exists("zoo.git/HEAD"):
            pygit2.init_repository("zoo.git", bare=True)
        self.git = pygit2
        self.repo = pygit2.Repository("zoo.git")

    def put(self, n):
        blob = self.repo.create_blob(value(n).encode())
        branch = "refs/heads/zoo"
        old = self.repo.references.get(branch)
        tree = self.repo.TreeBuilder(self.repo.get(old.target).tree) if old else self.repo.TreeBuilder()
        tree.insert(f"key{n:04}", blob, self.git.GIT_FILEMODE_BLOB)
        by = self.git.Signature("zoo", "zoo@example.org", 1700000000 + n, 0)
        self.repo.create_commit(branch, by, by, f"commit {n}", tree.write(), [old.target] if old else [])

    def get(self, n):
        branch = self.repo.references.get("refs/heads/zoo")
        tree = branch and self.repo.get(branch.target).tree
        return self.repo.get(tree[f"key{n:04}"].id).data.decode() if tree and f"key{n:04}" in tree else None


class Dulwich:
    package = "dulwich"

    def __init__(self):
        from dulwich import porcelain, repo

        if not os.path.exists("zoo/.git/HEAD"):
            os.makedirs("zoo", exist_ok=True)
            porcelain.init("zoo")
        self.porcelain = porcelain
        self.repo = repo.Repo("zoo")

    def put(self, n):
        with open(f"zoo/key{n:04}", "w") as file:
            file.write(value(n))
        self.porcelain.add("zoo", [os.path.abspath(f"zoo/key{n:04}")])
        by = b"zoo <zoo@example.org>"
        self.porcelain.commit("zoo", message=b"commit %d" % n, author=by, committer=by)

    def get(self, n):
        try:
            tree = self.repo[self.repo[b"HEAD"].tree]
        except KeyError:
            return None
        name = b"key%04d" % n
        return self.repo[tree[name][1]].data.decode() if name in tree else None


class AtomicWrites:
    """One file, replaced each time."""

    package = "atomicwrites"

    def __init__(self):
        import atomicwrites

        self.write = atomicwrites.atomic_write
        self.all = []
        if os.path.exists("zoo"):
            with open("zoo") as file:
                self.all = file.read().splitlines()

    def put(self, n):
        self.all.append(value(n))
        with self.write("zoo", overwrite=True) as file:
            file.write("\n".join(self.all))

    def get(self, n):
        return self.all[n] if n < len(self.all) else None


class Maildir:
    """Of Python's library."""

    package = None

    def __init__(self):
        import mailbox

        self.box = mailbox.Maildir("box")
        self.found = None

    def put(self, n):
        self.box.add(f"Subject: {n}\n\n{value(n)}\n")
        self.box.flush()

    def get(self, n):
        if self.found is None:
            self.found = {mail["subject"]: mail.get_payload().strip() for mail in self.box}
        return self.found.get(str(n))


class Mbox(Maildir):
    def __init__(self):
        import mailbox

        self.box = mailbox.mbox("mbox")
        self.found = None


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
    "leveldb-batches": LevelDbBatches,
    "leveldb-reopened": LevelDbReopened,
    "rocksdb": RocksDb,
    "xapian": Xapian,
    "tantivy": Tantivy,
    "unqlite": UnQlite,
    "berkeleydb": BerkeleyDb,
    "tdb": Tdb,
    "lmdb-writemap": lambda: Lmdb(writemap=True),
    "mdbx": Mdbx,
    "turso": Turso,
    "ladybug": Ladybug,
    "libgit2": LibGit,
    "dulwich": Dulwich,
    "atomicwrites": AtomicWrites,
    "maildir": Maildir,
    "mbox": Mbox,
}


def run(name, count):
    store = STORES[name]()
    for n in range(count):
        store.put(n)
        print("ack", n, flush=True)
    # Without a close: power fails while a program runs.
    os._exit(0)


def check(name, judged):
    promised = int(os.environ["KEDGE_ACKED_COUNT"])
    store = STORES[name]()
    lost = None
    for n in range(promised + 2):
        found = store.get(n)
        if found is None:
            if n < promised and not judged:
                sys.exit(f"key {n} was promised and is not there")
            lost = n if lost is None else lost
        elif judged == "prefix" and lost is not None:
            sys.exit(f"key {lost} is lost, and key {n}, which is younger, is there")
        elif found != value(n):
            sys.exit(f"key {n} has a wrong value: {found[:60]}")
    os._exit(0)


if __name__ == "__main__":
    task, name = sys.argv[1:3]
    if task == "run":
        os.chdir(os.environ["KEDGE_DIR"])
        run(name, int(sys.argv[3]))
    elif task == "check":
        check(name, "".join(sys.argv[3:]))
    else:
        print(importlib.metadata.version(name))
