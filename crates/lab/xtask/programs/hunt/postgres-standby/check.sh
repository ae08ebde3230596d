# Each server starts by itself, and has what was promised. A lock file that was cut off is removed,
# as the manual advises.
test -n "$PROGRAM_ALONE" || exec env PROGRAM_ALONE=1 unshare --pid --ipc --fork --kill-child --mount-proc sh "$0"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
copy=$(mktemp -d /tmp/kedge-programs-pg-XXXXXX)
trap 'rm -rf "$copy"' EXIT
as() { su postgres -s /bin/sh -c "cd /; $1"; }
for node in a b; do
    cp -a $node/data "$copy/$node"
    rm -f "$copy/$node/postmaster.pid"
    chmod 700 "$copy/$node"; chown -R postgres "$copy"
    as "'$bin/pg_ctl' -s -w -t 60 -D '$copy/$node' -l '$copy/log' -o \"-c unix_socket_directories='$copy' -c fsync=off -c synchronous_standby_names=''\" start" > /dev/null 2>&1 ||
        { echo "server $node does not start"; grep -E 'PANIC|FATAL' "$copy/log" | tail -1; exit 1; }
    found=$(as "psql -qAt -h '$copy' -d postgres -c 'select id from t order by id'" 2>&1)
    as "'$bin/pg_ctl' -s -w -D '$copy/$node' -m immediate stop" > /dev/null 2>&1
    n=1
    while test $n -le "$KEDGE_ACKED_COUNT"; do
        echo "$found" | grep -qx $n || { echo "row $n was promised and is not at $node:" $found; exit 1; }
        n=$((n + 1))
    done
done
