# The daemon makes its wallet. Promised when a client can use it.
. "$PROGRAMS/hunt/lnd/serve.sh"
until client > /dev/null 2>&1; do sleep 0.05; done
echo "ack wallet"
