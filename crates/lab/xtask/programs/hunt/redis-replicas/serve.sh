# Starts the three servers on the directories a (the primary), b and c in $KEDGE_DIR, and waits until
# the replicas are in step.
. "$PROGRAMS/hunt/alone.sh"
port=7001 servers=
for node in a b c; do
    test $node = a && options="" || options="--replicaof 127.0.0.1 7001"
    redis-server --port $port --dir "$KEDGE_DIR/$node" --save '' --appendonly yes --appendfsync always \
        --repl-diskless-sync-delay 0 --repl-ping-replica-period 1 $options > "$PROGRAM_LOG/$node" &
    servers="$servers $!" port=$((port + 1))
done
up() { redis-cli -p $1 ping 2> /dev/null | grep -q PONG; }
step() { test "$(redis-cli -p 7001 wait 2 1000 2> /dev/null)" = 2; }
tries=0
until up 7001 && up 7002 && up 7003 && step; do
    tries=$((tries + 1))
    if test $tries = 400 || ! kill -0 $servers 2> /dev/null; then
        echo "a server does not start:"
        grep -a -h '# ' "$PROGRAM_LOG"/[abc] | grep -v WARNING | tail -2
        exit 1
    fi
    sleep 0.05
done
