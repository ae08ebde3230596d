# A cluster. PostgreSQL does not run as root.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
chmod 755 "$ZOO_TEMP"
mkdir "$ZOO_FROM/data" "$ZOO_TEMP/run"
chown postgres "$ZOO_FROM/data" "$ZOO_TEMP/run"
su postgres -s /bin/sh -c "cd /; '$bin/initdb' -D '$ZOO_FROM/data' --auth=trust --no-sync --no-locale" > /dev/null
printf "listen_addresses = ''\nunix_socket_directories = '%s'\nmax_connections = 10\nautovacuum = off\nshared_buffers = 1MB\nwal_init_zero = off\n" "$ZOO_TEMP/run" >> "$ZOO_FROM/data/postgresql.conf"
