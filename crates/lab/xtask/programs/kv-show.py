"""Prints the keys of a store with digests of their values. Argument: store."""
import hashlib
import sys

from kv_store import STORES

for key, data in sorted(STORES[sys.argv[1]]("sync").items()):
    print(key.decode(errors="replace"), hashlib.sha256(data).hexdigest())
