"""Puts keys into a store; each is promised when put has returned. Arguments: store, mode, count."""
import os
import sys

from kv_store import STORES, sync_names, value

name, mode, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.chdir(os.environ["KEDGE_DIR"])
store = STORES[name](mode)
# Creating a store promises nothing; the first completed put does.
store.put(b"key0000", value(b"key0000"))
sync_names()
print("ack 0", flush=True)
for n in range(1, count + 1):
    key = b"key%04d" % n
    store.put(key, value(key))
    print("ack", n, flush=True)
# Without a close: power fails while a program runs.
os._exit(0)
