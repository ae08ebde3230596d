# Retained messages, each promised when the broker has saved a new database after it.
socket="$PROGRAM_TEMP/m.sock" dir=$KEDGE_DIR
. "$PROGRAMS/hunt/mosquitto/serve.sh"
for n in 1 2 3 4; do
    before=$(stat -c %i "$dir/mosquitto.db" 2> /dev/null)
    # The database is saved when more than one change is pending.
    for part in a b c; do
        mosquitto_pub --unix "$socket" -q 1 -r -t "zoo/$n$part" -m "message $n" || exit 1
    done
    tries=0
    until test -n "$(stat -c %i "$dir/mosquitto.db" 2> /dev/null)" -a "$(stat -c %i "$dir/mosquitto.db" 2> /dev/null)" != "$before"; do
        sleep 0.1; tries=$((tries + 1)); test $tries -lt 100 || exit 1
    done
    echo "ack $n"
done
kill -9 $server
