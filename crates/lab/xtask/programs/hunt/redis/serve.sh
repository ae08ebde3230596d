# Starts a server on the directory $dir, with what the setting $1 (aof, rdb or acl) needs, its socket
# in $socket and its log in $socket.log. The server's process is $server.
case "$1" in
aof) options="--appendonly yes --appendfsync always" ;;
rdb) options="" ;;
acl) options="--aclfile $dir/users.acl" ;;
esac
redis-server --port 0 --unixsocket "$socket" --dir "$dir" --save '' --logfile '' $options > "$socket.log" &
server=$!
until redis-cli -s "$socket" ping 2> /dev/null | grep -q PONG; do
    kill -0 $server 2> /dev/null || { echo "the server does not start:"; grep -a '#' "$socket.log" | tail -1; exit 1; }
    sleep 0.02
done
