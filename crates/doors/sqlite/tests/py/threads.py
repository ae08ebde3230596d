"""Many connections in many threads: no lost update, in both kinds of journal."""
from kedge import *
import threading

for mode in ["delete", "wal"]:
    path = f"/threads-{mode}.db"
    db = connect(path, mode, timeout=60)
    db.execute("create table t (id integer primary key, n)")
    db.executemany("insert into t values (?, 0)", [(i,) for i in range(10)])
    failed = []

    def work(seed):
        try:
            own = connect(path, mode, timeout=60)
            for i in range(50):
                own.execute("begin immediate")
                own.execute("update t set n = n + 1 where id = ?", ((seed + i) % 10,))
                own.execute("commit")
                own.execute("select sum(n) from t").fetchone()
            own.close()
        except Exception as e:
            failed.append(repr(e))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed
    assert db.execute("select sum(n) from t").fetchone() == (400,)
    check(db)
    # A writer keeps others out, and a second one is told so.
    other = connect(path, mode, timeout=0)
    db.execute("begin immediate")
    try:
        other.execute("begin immediate")
        raise AssertionError("two writers")
    except sqlite3.OperationalError as e:
        assert "locked" in str(e), e
    db.execute("commit")
    other.close()
    db.close()
print("done")
