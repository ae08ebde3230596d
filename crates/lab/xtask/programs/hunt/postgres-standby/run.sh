# Rows are inserted at the primary, each promised when its commit has returned.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as() { su postgres -s /bin/sh -c "cd /; $1"; }
serve() { as "'$bin/pg_ctl' -s -w -D '$KEDGE_DIR/$1/data' -l '$PROGRAM_TEMP/run/log$1' -o '-c port=$2' start"; }
serve a 5432
serve b 5433
for n in 1 2 3 4 5; do
    as "psql -qAt -h '$PROGRAM_TEMP/run' -d postgres -c 'insert into t values ($n)'"
    echo "ack $n"
done
for node in a b; do as "'$bin/pg_ctl' -s -w -D '$KEDGE_DIR/$node/data' -m immediate stop"; done
