"""The store opens, each value is right, and every promised key exists. Arguments: store, and
"sound" if promises do not count."""
import os
import sys

from kv_store import STORES, value

name, is_sound_enough = sys.argv[1], sys.argv[2:] == ["sound"]
promised = int(os.environ["KEDGE_ACKED_COUNT"])
if promised == 0:
    sys.exit(0)
found = dict(STORES[name]("sync").items())
for key, data in found.items():
    assert data == value(key), f"{key} has a wrong value"
have = [b"key%04d" % n in found for n in range(len(found))]
assert all(have), f"a hole: {sorted(found)}"
if not is_sound_enough:
    assert len(found) >= promised, f"{len(found)} keys, {promised} promised"
