# A primary in a, and its standby in b. PostgreSQL does not run as root.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as() { su postgres -s /bin/sh -c "cd /; $1"; }
chmod 755 "$PROGRAM_TEMP"
mkdir "$PROGRAM_FROM/a" "$PROGRAM_FROM/b" "$PROGRAM_TEMP/run"
mkdir -m 700 "$PROGRAM_FROM/a/data" "$PROGRAM_FROM/b/data"
chown postgres "$PROGRAM_FROM/a/data" "$PROGRAM_FROM/b/data" "$PROGRAM_TEMP/run"
as "'$bin/initdb' -D '$PROGRAM_FROM/a/data' --auth=trust --no-sync --no-locale" > /dev/null
printf "listen_addresses = ''\nunix_socket_directories = '%s'\nmax_connections = 10\nautovacuum = off\nshared_buffers = 1MB\nwal_init_zero = off\nwal_keep_size = 64MB\n" "$PROGRAM_TEMP/run" >> "$PROGRAM_FROM/a/data/postgresql.conf"
as "'$bin/pg_ctl' -s -w -D '$PROGRAM_FROM/a/data' -l '$PROGRAM_TEMP/run/log' -o '-c fsync=off' start"
as "psql -qAt -h '$PROGRAM_TEMP/run' -d postgres -c 'create table t(id int primary key)'"
as "'$bin/pg_basebackup' -h '$PROGRAM_TEMP/run' -D '$PROGRAM_FROM/b/data' -R --no-sync --checkpoint=fast"
as "'$bin/pg_ctl' -s -w -D '$PROGRAM_FROM/a/data' -m fast stop"
echo "synchronous_standby_names = '*'" >> "$PROGRAM_FROM/a/data/postgresql.conf"
