"""A process whose parent used an image before the fork can use no image, not even another one."""
import signal
from kedge import *


def opens_another(path):
    child = os.fork()
    if child == 0:
        # A call that is not refused may wait for a thread that the child does not have.
        signal.alarm(60)
        try:
            sqlite3.connect(f"file:{path}:/app.db?vfs=kedgefs", uri=True).execute("create table t (x)")
        except sqlite3.OperationalError:
            os._exit(0 if "forked" in last_error() else 2)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


db = connect()
db.execute("create table t (x)")
assert opens_another(sys.argv[1])
db.close()
assert opens_another(sys.argv[1])
connect().execute("insert into t values (1)")
print("done")
