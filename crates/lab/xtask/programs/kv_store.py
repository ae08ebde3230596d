"""The stores of kv.py and kv-check.py, each with put, items and close."""
import hashlib
import os


def value(key):
    return hashlib.sha256(key).digest() * 30


class Lmdb:
    def __init__(self, mode):
        import lmdb

        options = {
            "sync": {},
            "nosync": {"sync": False},
            "nometasync": {"metasync": False},
            "writemap": {"writemap": True},
            "writemap-nosync": {"writemap": True, "sync": False},
            "writemap-async": {"writemap": True, "map_async": True},
        }[mode]
        self.env = lmdb.open(".", map_size=1 << 22, max_readers=4, **options)

    def put(self, key, data):
        with self.env.begin(write=True) as transaction:
            transaction.put(key, data)

    def items(self):
        with self.env.begin() as transaction:
            return list(transaction.cursor())

    def close(self):
        self.env.close()


class LevelDb:
    def __init__(self, mode):
        import plyvel

        self.sync = mode == "sync"
        self.db = plyvel.DB("db", create_if_missing=True, paranoid_checks=mode == "paranoid")

    def put(self, key, data):
        self.db.put(key, data, sync=self.sync)

    def items(self):
        return list(self.db.iterator(verify_checksums=True))

    def close(self):
        self.db.close()


class RocksDb:
    def __init__(self, mode):
        from rocksdict import Options, Rdict, WriteOptions

        self.db = Rdict("db", Options(raw_mode=True))
        write = WriteOptions()
        write.sync = mode == "sync"
        self.db.set_write_options(write)

    def put(self, key, data):
        self.db[key] = data

    def items(self):
        return list(self.db.items())

    def close(self):
        self.db.close()


class Shelve:
    def __init__(self, mode):
        import dbm.dumb
        import shelve

        self.db = shelve.Shelf(dbm.dumb.open("db", "c"))
        self.is_synced = mode == "sync"

    def put(self, key, data):
        self.db[key.decode()] = data
        if self.is_synced:
            self.db.sync()

    def items(self):
        return [(key.encode(), self.db[key]) for key in self.db]

    def close(self):
        self.db.close()


STORES = {"lmdb": Lmdb, "leveldb": LevelDb, "rocksdb": RocksDb, "shelve": Shelve}


def sync_names():
    """Makes the store's directory and its names durable, as an administrator does once."""
    for directory, _, _ in os.walk("."):
        fd = os.open(directory, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
