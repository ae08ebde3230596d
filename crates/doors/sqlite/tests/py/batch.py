"""A transaction is one atomic write: no journal appears, and one log write does it."""
from kedge import *

db = connect("/app.db")
assert "ENABLE_BATCH_ATOMIC_WRITE" in [row[0] for row in db.execute("pragma compile_options")]
db.execute("create table t (id integer primary key, x)")
db.executemany("insert into t values (?, randomblob(900))", [(i,) for i in range(200)])
for i in range(int(sys.argv[1])):
    db.execute("begin")
    db.execute("update t set x = randomblob(900) where id % 40 = ?", (i % 40,))
    db.execute("commit")
check(db)
# The connection is left open: the image is as after a kill.
print("done", flush=True)
os.kill(os.getpid(), 9)
