# The store opens and has each promised key. $1: the store, $3: "sound" if promises do not count.
test "$1" = gdbm && python=/usr/bin/python3
exec "${python:-python3}" "$PROGRAMS/py-stores/stores.py" check "$1" $3
