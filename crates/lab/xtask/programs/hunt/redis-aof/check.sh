# The server starts, and each promised key has its value.
socket="$PROGRAM_TEMP/check$$.sock"
redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --save '' --logfile '' > "$socket.log" &
server=$!
until redis-cli -s "$socket" ping 2> /dev/null | grep -q PONG; do
    kill -0 $server 2> /dev/null || { echo "the server does not start:"; grep -a '#' "$socket.log" | tail -1; exit 1; }
    sleep 0.02
done
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    found=$(redis-cli -s "$socket" get key$n)
    test "$found" = value$n || { kill -9 $server; echo "key$n was promised and is '$found'"; exit 1; }
    n=$((n + 1))
done
kill -9 $server
