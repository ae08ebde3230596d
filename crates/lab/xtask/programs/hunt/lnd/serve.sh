# Starts the daemon with its data in $KEDGE_DIR, and waits until it serves.
. "$PROGRAMS/hunt/alone.sh"
ln -s "$KEDGE_DIR" "$PROGRAM_LOG/data"
client() { lncli --lnddir "$PROGRAM_LOG" --network regtest getinfo; }
lnd --lnddir "$PROGRAM_LOG" --noseedbackup --nolisten --norest --bitcoin.active \
    --bitcoin.regtest --bitcoin.node=neutrino > "$PROGRAM_LOG/out" 2>&1 &
server=$!
until grep -q 'Waiting for chain backend' "$PROGRAM_LOG/out"; do
    kill -0 $server 2> /dev/null || { echo "the daemon does not start"; tail -1 "$PROGRAM_LOG/out"; exit 1; }
    sleep 0.05
done
