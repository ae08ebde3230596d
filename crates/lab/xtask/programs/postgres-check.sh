# The server recovers, and has every promised row.
# After a power failure no earlier process exists. In a separate pid namespace the number in postmaster.pid cannot
# belong to another server by chance.
test -n "$PROGRAM_ALONE" || exec env PROGRAM_ALONE=1 unshare --pid --ipc --fork --kill-child --mount-proc sh "$0"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
copy=$(mktemp -d /tmp/kedge-programs-pg-XXXXXX)
trap 'rm -rf "$copy"' EXIT
cp -a data "$copy/data"
chmod 700 "$copy/data"
chown -R postgres "$copy"
# A crash right after the server has created this file leaves it empty or full of zeros, and the server does not start
# until it is removed: docs/CRASH_TESTING.md explains it. This check is about the rows.
tr -d '\0' < "$copy/data/postmaster.pid" 2> /dev/null | grep -q . || rm -f "$copy/data/postmaster.pid"
as() { su postgres -s /bin/sh -c "cd /; $1"; }
as "'$bin/pg_ctl' -s -w -t 60 -D '$copy/data' -l '$copy/log' -o \"-c unix_socket_directories='$copy' -c fsync=off\" start" > /dev/null 2>&1 ||
    { echo "the server does not start"; grep -m 1 -E 'PANIC|FATAL' "$copy/log"; exit 1; }
rows=$(as "psql -qAt -h '$copy' -d postgres -c 'select count(*) from t where v = repeat(chr(110), 900)'" 2>&1)
as "'$bin/pg_ctl' -s -w -D '$copy/data' -m immediate stop" > /dev/null 2>&1
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
test "$rows" -ge $((KEDGE_ACKED_COUNT - 1)) 2> /dev/null || { echo "$rows rows, $((KEDGE_ACKED_COUNT - 1)) promised"; exit 1; }
