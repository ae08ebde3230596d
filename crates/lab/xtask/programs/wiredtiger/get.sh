# WiredTiger, as PyPI has it: its source is built, which takes minutes and needs swig.
set -e
test -d lib/wiredtiger || python3 -m pip install -q --disable-pip-version-check --target lib wiredtiger==11.3.1 > get.log 2>&1 || { rm -rf lib; tail -5 get.log >&2; exit 1; }
printf '#!/bin/sh\nPYTHONPATH="%s/lib" exec python3 "%s/store.py" "$@"\n' "$PWD" "$PWD" > "$BIN/wiredtiger-store"
chmod 755 "$BIN/wiredtiger-store"
