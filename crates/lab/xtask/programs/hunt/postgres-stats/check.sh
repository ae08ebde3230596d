# After it was stopped in good order, the server finds its statistics whole.
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
test -n "$PROGRAM_ALONE" || exec env PROGRAM_ALONE=1 unshare --pid --ipc --fork --kill-child --mount-proc sh "$0"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
copy=$(mktemp -d /tmp/kedge-programs-pg-XXXXXX)
trap 'rm -rf "$copy"' EXIT
cp -a data "$copy/data"
chmod 700 "$copy/data"; chown -R postgres "$copy"
as() { su postgres -s /bin/sh -c "cd /; $1"; }
as "'$bin/pg_ctl' -s -w -t 60 -D '$copy/data' -l '$copy/log' -o \"-c unix_socket_directories='$copy' -c fsync=off\" start" > /dev/null 2>&1 ||
    { echo "the server does not start"; grep -m 1 -E 'PANIC|FATAL' "$copy/log"; exit 1; }
as "'$bin/pg_ctl' -s -w -D '$copy/data' -m immediate stop" > /dev/null 2>&1
grep 'corrupted statistics file' "$copy/log" && exit 1
exit 0
