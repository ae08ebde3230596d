# The database is sound, whatever it has lost.
out=$(sqlite3 t.db 'pragma integrity_check;' 2>&1)
test "$out" = ok || { echo "$out"; exit 1; }
