# A store in Python puts keys. $1: the store, $2: how many. Modules of Debian are for its
# own Python.
case $1 in gdbm | xapian | berkeleydb | tdb) python=/usr/bin/python3 ;; esac
exec "${python:-python3}" "$PROGRAMS/py-stores/stores.py" run "$1" "$2"
