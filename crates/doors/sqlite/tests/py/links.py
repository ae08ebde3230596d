"""A database has one WAL, whether it is opened by its name or through symbolic links."""
import ctypes
from kedge import *

if sys.argv[1] == "kill":
    db = connect("/way/link.db", "wal")
    db.execute("create table t (x)")
    db.execute("insert into t values (0)")
    os.kill(os.getpid(), 9)
paths = ["/app.db", "/link.db", "/d/link.db", "/way/link.db"]
for n, path in enumerate(paths):
    db = connect(path, "wal")
    assert db.execute("select count(*) from t").fetchone() == (n + 1,), path
    db.execute("insert into t values (?)", (n,))
    paths[n] = db
for db in paths:
    assert db.execute("select count(*) from t").fetchone() == (5,)
    check(db)
    db.close()

# A program that wants no symbolic link in the path gets an error.
READWRITE, URI, NOFOLLOW, CANTOPEN = 0x2, 0x40, 0x01000000, 14
library, handle = ctypes.CDLL("libsqlite3.so.0"), ctypes.c_void_p()
for path, code in [("/app.db", 0), ("/link.db", CANTOPEN), ("/way/app.db", CANTOPEN)]:
    uri = f"file:{IMAGE}:{path}?vfs=kedgefs".encode()
    found = library.sqlite3_open_v2(uri, ctypes.byref(handle), READWRITE | URI | NOFOLLOW, None)
    assert found == code, (path, found)
    library.sqlite3_close(handle)
print("done")
