# Redis stores a key and saves; promised when SAVE has replied.
socket="$PROGRAM_TEMP/redis.sock"
redis-server --port 0 --unixsocket "$socket" --dir "$KEDGE_DIR" --save '' --logfile '' > "$PROGRAM_TEMP/redis.log" &
server=$!
until redis-cli -s "$socket" ping > /dev/null 2>&1; do sleep 0.05; done
for n in 1 2 3 4; do
    redis-cli -s "$socket" set key$n "value$n" > /dev/null
    test "$(redis-cli -s "$socket" save)" = OK || exit 1
    echo "ack $n"
done
kill -9 $server
