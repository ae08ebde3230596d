# Starts the three members on the directories a, b and c in $KEDGE_DIR, and waits until they have a
# leader.
. "$PROGRAMS/hunt/alone.sh"
export ETCDCTL_API=3
members="a=http://127.0.0.1:7001,b=http://127.0.0.1:7002,c=http://127.0.0.1:7003"
port=7001
for node in a b c; do
    etcd --name $node --data-dir "$KEDGE_DIR/$node/data" --initial-cluster "$members" \
        --listen-peer-urls http://127.0.0.1:$port --initial-advertise-peer-urls http://127.0.0.1:$port \
        --listen-client-urls http://127.0.0.1:1$port --advertise-client-urls http://127.0.0.1:1$port \
        --heartbeat-interval 20 --election-timeout 200 > "$PROGRAM_LOG/$node" 2>&1 &
    port=$((port + 1))
done
ctl() { etcdctl --endpoints http://127.0.0.1:17001,http://127.0.0.1:17002,http://127.0.0.1:17003 --dial-timeout 1s --command-timeout 10s "$@"; }
tries=0
until ctl get started > /dev/null 2>&1; do
    tries=$((tries + 1))
    test $tries -lt 4 || { echo "the cluster does not start:"; grep -h -E 'panic|fatal|FATAL' "$PROGRAM_LOG"/[abc] | cut -c 1-300 | tail -3; exit 1; }
done
