# The journal has each promised message. An unclean file may be incomplete at its end, which the
# daemon expects, so the journal's own check is not asked.
journalctl -q --directory=journal -t zoo -o cat > out 2> said
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    test "$(grep -a "^message $n " out | sed 's/message . //' | tr -dc $n | wc -c)" = 2000 || { echo "message $n was synced and is not there: $(tail -1 said)"; exit 1; }
    n=$((n + 1))
done
