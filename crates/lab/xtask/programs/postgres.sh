# Transactions, each of which is promised when psql has returned. $1: the setting of fsync.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as() { su postgres -s /bin/sh -c "cd /; $1"; }
sql() { as "psql -qAt -h '$PROGRAM_TEMP/run' -d postgres -c \"$1\"" > /dev/null; }
as "'$bin/pg_ctl' -s -w -D '$KEDGE_DIR/data' -l '$PROGRAM_TEMP/run/log' -o '-c fsync=$1' start"
sql "create table t(id int primary key, v text)"
echo "ack table"
for i in 1 2 3; do
    sql "insert into t values($i, repeat('n', 900))"
    echo "ack $i"
done
sql checkpoint
sql "insert into t values(4, repeat('n', 900))"
echo "ack 4"
as "'$bin/pg_ctl' -s -w -D '$KEDGE_DIR/data' -m immediate stop"
