"""Transactions, each of which is promised when its COMMIT has returned. Arguments: journal mode, synchronous, count."""
import os, sqlite3, sys

mode, synchronous, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(os.environ["KEDGE_DIR"])
db = sqlite3.connect("t.db", isolation_level=None)
db.execute(f"pragma journal_mode={mode}")
db.execute(f"pragma synchronous={synchronous}")
db.execute("create table t(id integer primary key, v blob)")
print("ack 0", flush=True)
for i in range(1, count + 1):
    db.execute("begin")
    db.execute("insert into t values(?, ?)", (i, os.urandom(900)))
    db.execute("update t set v=zeroblob(700) where id=?", (i // 2,))
    db.execute("commit")
    print("ack", i, flush=True)
