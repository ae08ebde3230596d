"""The image is open in another process: it is refused, and delays no transaction in another image."""
import threading, time
from kedge import *

uri = f"file:{sys.argv[1]}:/app.db?vfs=kedgefs"
other = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
other.execute("create table t (x)")
longest, ended = [0.0], threading.Event()


def insert():
    while not ended.is_set():
        begun = time.monotonic()
        other.execute("insert into t values (1)")
        longest[0] = max(longest[0], time.monotonic() - begun)


inserting = threading.Thread(target=insert)
inserting.start()
begun = time.monotonic()
try:
    connect("/app.db")
    raise AssertionError("opened")
except sqlite3.OperationalError:
    print(last_error())
finally:
    waited = time.monotonic() - begun
    ended.set()
    inserting.join()
assert longest[0] < waited / 3, f"an insert took {longest[0]:.1f} s while an open waited for {waited:.1f} s"
