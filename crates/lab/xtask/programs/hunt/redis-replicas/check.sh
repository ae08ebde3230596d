# The primary and its replicas start, and each has what was promised.
. "$PROGRAMS/hunt/redis-replicas/serve.sh"
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    for port in 7001 7002 7003; do
        found=$(redis-cli -p $port get key$n)
        test "$found" = value$n || { echo "value$n was promised and is '$found' on $port"; exit 1; }
    done
    n=$((n + 1))
done
