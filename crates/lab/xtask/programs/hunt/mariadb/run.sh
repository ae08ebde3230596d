# Rows are inserted, each promised when its transaction has committed.
socket="$PROGRAM_TEMP/maria.sock" dir=$KEDGE_DIR
. "$PROGRAMS/hunt/mariadb/serve.sh"
for n in 1 2 3 4 5; do
    mariadb --no-defaults --socket="$socket" -e "insert into zoo.t values ($n, repeat('$n', 2000))" && echo "ack $n"
done
kill -9 $server; wait $server 2> /dev/null; exit 0
