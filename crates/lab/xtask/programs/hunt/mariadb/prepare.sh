set -e
mariadb-install-db --no-defaults --user=root --datadir="$PROGRAM_FROM" --skip-test-db \
    --auth-root-authentication-method=normal --innodb-log-file-size=4M > "$PROGRAM_TEMP/install.log" 2>&1
socket="$PROGRAM_TEMP/maria.sock" dir=$PROGRAM_FROM
. "$PROGRAMS/hunt/mariadb/serve.sh"
mariadb --no-defaults --socket="$socket" -e 'create database zoo; create table zoo.t (n int primary key, v varchar(9000))'
mariadb --no-defaults --socket="$socket" -e shutdown; wait $server
