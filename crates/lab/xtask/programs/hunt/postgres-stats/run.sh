# The server runs, and is stopped in good order: promised when pg_ctl has returned.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as() { su postgres -s /bin/sh -c "cd /; $1"; }
as "'$bin/pg_ctl' -s -w -D '$KEDGE_DIR/data' -l '$PROGRAM_TEMP/run/log' start"
as "psql -qAt -h '$PROGRAM_TEMP/run' -d postgres -c 'create table t(id int)'"
as "'$bin/pg_ctl' -s -w -D '$KEDGE_DIR/data' -m fast stop"
echo "ack stopped"
