# A primary with two replicas stores keys, each promised when the primary and both replicas have
# replied (WAIT).
. "$PROGRAMS/hunt/redis-replicas/serve.sh"
for n in 1 2 3 4 5 6; do
    reply=$(redis-cli -p 7001 set key$n value$n) && test "$reply" = OK || { echo "$reply"; exit 1; }
    have=$(redis-cli -p 7001 wait 2 20000) && test "$have" = 2 || { echo "$have replicas have it"; exit 1; }
    echo "ack $n"
done
