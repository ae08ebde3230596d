"""Each journal mode: tables, rollbacks, large values, vacuum, attached databases, temporary files."""
from kedge import *

for mode in ["delete", "truncate", "persist", "memory", "wal"]:
    path = f"/{mode}.db"
    db = connect(path, mode)
    db.execute("create table t (id integer primary key, text, blob)")
    db.execute("begin")
    db.executemany("insert into t values (?, ?, ?)", [(i, f"row {i}", b"x" * (i % 3000)) for i in range(3000)])
    db.execute("commit")
    db.execute("begin")
    db.execute("delete from t")
    db.execute("rollback")
    assert db.execute("select count(*), sum(length(blob)) from t").fetchone() == (
        3000, sum(i % 3000 for i in range(3000)))
    # More than an atomic write takes: SQLite falls back to its journal.
    db.execute("update t set text = text || '!'")
    db.execute("create index by_text on t (text)")
    db.execute("delete from t where id % 2")
    db.execute("vacuum")
    db.execute("pragma cache_size=10")
    db.execute("update t set blob = zeroblob(5000)")
    # A sorter that does not fit into memory, and a temporary table.
    db.execute("pragma temp_store=file")
    db.execute("create temp table sorted as select * from t order by blob, text desc")
    assert db.execute("select count(*) from sorted").fetchone() == (1500,)
    check(db)
    db.close()
    db = connect(path, mode)
    assert db.execute("select count(*) from t").fetchone() == (1500,)
    check(db)
    db.close()

one, name = connect("/one.db"), f"file:{IMAGE}:/two.db?vfs=kedgefs"
one.execute("attach ? as two", (name,))
one.execute("create table main.a (x)")
one.execute("create table two.b (x)")
one.execute("begin")
one.execute("insert into a values (1)")
one.execute("insert into b values (1)")
one.execute("commit")
one.close()
assert connect("/two.db").execute("select * from b").fetchall() == [(1,)]

# Other page sizes, and memory that is not UTF-8's.
for size in [512, 1024, 8192, 65536]:
    db = sqlite3.connect(f"file:{IMAGE}:/page{size}.db?vfs=kedgefs", uri=True, isolation_level=None)
    db.execute(f"pragma page_size={size}")
    db.execute("create table t (x)")
    for i in range(20):
        db.execute("insert into t values (randomblob(?))", (i * 100,))
    check(db)
    db.close()
print("done")
