# A cluster. PostgreSQL does not run as root.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
chmod 755 "$PROGRAM_TEMP"
mkdir "$PROGRAM_FROM/data" "$PROGRAM_TEMP/run"
chown postgres "$PROGRAM_FROM/data" "$PROGRAM_TEMP/run"
su postgres -s /bin/sh -c "cd /; '$bin/initdb' -D '$PROGRAM_FROM/data' --auth=trust --no-sync --no-locale" > /dev/null
printf "listen_addresses = ''\nunix_socket_directories = '%s'\nmax_connections = 10\nautovacuum = off\nshared_buffers = 1MB\nwal_init_zero = off\n" "$PROGRAM_TEMP/run" >> "$PROGRAM_FROM/data/postgresql.conf"
