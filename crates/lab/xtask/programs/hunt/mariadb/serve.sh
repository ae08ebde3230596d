# Starts a server on the directory $dir, with its socket in $socket. Its process is $server.
mariadbd --no-defaults --user=root --datadir="$dir" --socket="$socket" --pid-file="$socket.pid" \
    --skip-networking --skip-grant-tables --innodb-log-file-size=4M --innodb-buffer-pool-size=8M \
    --innodb-use-native-aio=0 --skip-log-bin --lc-messages-dir=/usr/share/mysql > "$socket.log" 2>&1 &
server=$!
until mariadb --no-defaults --socket="$socket" -e 'select 1' > /dev/null 2>&1; do
    kill -0 $server 2> /dev/null || { echo "the server does not start:"; grep -a ERROR "$socket.log" | tail -2; exit 1; }
    sleep 0.1
done
