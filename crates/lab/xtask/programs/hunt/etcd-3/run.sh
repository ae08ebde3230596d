# A cluster of three members stores keys, each promised when the put has returned.
. "$PROGRAMS/hunt/etcd-3/serve.sh"
for n in 1 2 3 4 5; do
    ctl put key$n value$n > /dev/null || exit 1
    echo "ack $n"
done
