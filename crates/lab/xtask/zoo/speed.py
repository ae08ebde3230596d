"""Transactions on SQLite, WAL and FULL, in $KEDGE_DIR. Arguments: count (0: any), seconds.
Prints the count and the time they took."""
import os
import sqlite3
import sys
import time

count, seconds = int(sys.argv[1]), float(sys.argv[2])
os.chdir(os.environ["KEDGE_DIR"])
db = sqlite3.connect("speed.db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("pragma synchronous=full")
db.execute("create table t(id integer primary key, v blob)")
start = time.monotonic()
done = 0
while (count == 0 or done < count) and time.monotonic() - start < seconds:
    done += 1
    db.execute("begin")
    db.execute("insert into t values(?, ?)", (done, os.urandom(400)))
    db.execute("update t set v=zeroblob(300) where id=?", (done // 2,))
    db.execute("commit")
print(done, time.monotonic() - start, flush=True)
