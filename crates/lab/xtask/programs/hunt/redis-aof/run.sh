# Redis stores keys, each promised when the server has replied; its log is rewritten once.
socket="$PROGRAM_TEMP/redis.sock"
redis-server --port 0 --unixsocket "$socket" --dir "$KEDGE_DIR" --appendonly yes --appendfsync always \
    --save '' --logfile '' > "$PROGRAM_TEMP/redis.log" &
server=$!
until redis-cli -s "$socket" ping > /dev/null 2>&1; do sleep 0.05; done
for n in 1 2 3 4 5 6; do
    test "$(redis-cli -s "$socket" set key$n "value$n")" = OK || exit 1
    echo "ack $n"
    test $n != 3 || { redis-cli -s "$socket" bgrewriteaof > /dev/null; sleep 0.5; }
done
kill -9 $server
