# A store in Python puts keys. $1: the store, $2: how many. The GNU dbm of Debian is for its own Python.
test "$1" = gdbm && python=/usr/bin/python3
exec "${python:-python3}" "$PROGRAMS/py-stores/stores.py" run "$1" "$2"
