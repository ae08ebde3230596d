"""A connection whose database was removed and replaced leaves the new one's WAL alone when it closes."""
import ctypes
from kedge import *

Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)


class Vfs(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int), ("file_bytes", ctypes.c_int), ("name_max", ctypes.c_int),
                ("next", ctypes.c_void_p), ("name", ctypes.c_char_p), ("data", ctypes.c_void_p),
                ("open", ctypes.c_void_p), ("delete", Delete)]


library = ctypes.CDLL("libsqlite3.so.0")
library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
vfs = library.sqlite3_vfs_find(b"kedgefs")

old = connect(mode="wal")
old.execute("create table old (x)")
for suffix in ["", "-wal"]:
    assert vfs.contents.delete(vfs, f"{IMAGE}:/app.db{suffix}".encode(), 0) == 0
new = connect(mode="wal")
new.execute("create table new (x)")
new.execute("insert into new values ('kept')")
old.close()
reader = connect(mode="wal")
assert reader.execute("select x from new").fetchall() == [("kept",)]
check(reader)
print("done")
