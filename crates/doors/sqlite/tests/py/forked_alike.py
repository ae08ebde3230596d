"""A forked process that has the number of its parent, as in a PID namespace, can use no image."""
import ctypes
import signal
from kedge import *

NEWPID = 0x20000000

assert os.getpid() == 1
db = connect()
db.execute("create table t (x)")
assert ctypes.CDLL(None).unshare(NEWPID) == 0
child = os.fork()
if child == 0:
    # A call that is not refused may wait for a thread that the child does not have.
    signal.alarm(30)
    code = 3 if os.getpid() != 1 else 1
    try:
        db.execute("insert into t values (1)")
    except sqlite3.OperationalError:
        code = 0 if "forked" in last_error() else 2
    os._exit(code)
assert os.waitpid(child, 0)[1] == 0
db.execute("insert into t values (2)")
db.commit()
assert db.execute("select x from t").fetchall() == [(2,)]
db.close()
print("done")
