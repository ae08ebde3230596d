# The members start, and serve what was promised.
. "$PROGRAMS/hunt/etcd-3/serve.sh"
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    found=$(ctl get --print-value-only key$n)
    test "$found" = value$n || { echo "value$n was promised and is '$found'"; exit 1; }
    n=$((n + 1))
done
