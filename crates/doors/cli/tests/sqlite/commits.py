"""Commits transactions on the database of the argument, and prints each."""
import os, sqlite3, sys

path, count = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(path, isolation_level=None)
assert "ENABLE_BATCH_ATOMIC_WRITE" in [row[0] for row in db.execute("pragma compile_options")]
db.execute("pragma synchronous=full")
db.execute("create table if not exists a (n)")
db.execute("create table if not exists b (n, filler)")
last = db.execute("select coalesce(max(n), 0) from a").fetchone()[0]
for n in range(last + 1, last + 1 + count):
    db.execute("begin")
    db.execute("insert into a values (?)", (n,))
    db.execute("insert into b select ?, randomblob(3000) from (select 1 union all select 2)", (n,))
    db.execute("commit")
    assert not os.path.exists(path + "-journal")
    print(n, flush=True)
if len(sys.argv) > 3:
    # More than an atomic write takes: SQLite falls back to its journal, and goes on.
    db.execute("update b set filler = randomblob(3000)")
    db.execute("begin")
    db.execute("update b set filler = randomblob(2999)")
    db.execute("rollback")
assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
a = [row[0] for row in db.execute("select n from a order by n")]
b = [row[0] for row in db.execute("select n from b order by n")]
assert a == list(range(1, len(a) + 1)), a
assert b == [n for n in a for _ in range(2)], (a, b)
