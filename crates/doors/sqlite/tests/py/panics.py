"""A panic below a function that SQLite calls is an error, and nothing is written after it."""
import _sqlite3
import ctypes
from kedge import *

IOERR, CANTOPEN = 10, 14
# Defined in builds with debug assertions only.
FCNTL_PANIC = 0x6B6670


def panic(db):
    # The first field of a Connection after the head of a Python object.
    handle = ctypes.c_void_p.from_address(id(db) + object.__basicsize__)
    return ctypes.CDLL(_sqlite3.__file__).sqlite3_file_control(handle, b"main", FCNTL_PANIC, None)


db = connect()
db.execute("create table t (x)")
db.execute("insert into t values (1)")
assert panic(db) == IOERR
assert "a panic in the library" in last_error()
for statement in ("insert into t values (2)", "create table u (x)"):
    try:
        db.execute(statement)
    except sqlite3.OperationalError as e:
        assert e.sqlite_errorcode & 0xFF in (IOERR, CANTOPEN), e
    else:
        raise AssertionError(f"{statement}: no error")
db.close()
db = connect()
assert db.execute("select x from t").fetchall() == [(1,)]
check(db)
db.execute("insert into t values (3)")
print("done")
