# The daemon starts, and a client can use it.
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
. "$PROGRAMS/hunt/lnd/serve.sh"
tries=0
until said=$(client 2>&1); do
    tries=$((tries + 1))
    case "$said" in *macaroon*) tries=100 ;; esac
    test $tries -lt 100 || { echo "$said"; exit 1; }
    sleep 0.1
done
