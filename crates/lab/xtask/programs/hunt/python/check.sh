# The store opens and has each promised key. $1: the store, $3: what is judged instead.
case $1 in gdbm | xapian | berkeleydb | tdb) python=/usr/bin/python3 ;; esac
exec "${python:-python3}" "$PROGRAMS/py-stores/stores.py" check "$1" $3
