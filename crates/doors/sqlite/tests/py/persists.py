"""A program asks for a WAL that stays when its last connection closes (SQLITE_FCNTL_PERSIST_WAL)."""
import ctypes
from kedge import *

PERSIST_WAL = 10
READ_WRITE_CREATE_URI = 0x46

library = ctypes.CDLL("libsqlite3.so.0")
db = ctypes.c_void_p()
name = f"file:{IMAGE}:/app.db?vfs=kedgefs".encode()
assert library.sqlite3_open_v2(name, ctypes.byref(db), READ_WRITE_CREATE_URI, None) == 0
assert library.sqlite3_exec(db, b"pragma journal_mode=wal; create table t (x)", None, None, None) == 0


def persist(choice):
    choice = ctypes.c_int(choice)
    assert library.sqlite3_file_control(db, b"main", PERSIST_WAL, ctypes.byref(choice)) == 0
    return choice.value


assert [persist(choice) for choice in [-1, 1, -1, 0, -1]] == [0, 1, 1, 0, 0]
persist(int(sys.argv[1]))
assert library.sqlite3_close(db) == 0
print("done")
