# Messages are logged, each promised half a second after it is in the file.
cat > "$PROGRAM_TEMP/rsyslog.conf" <<END
global(workDirectory="$PROGRAM_TEMP")
module(load="imuxsock" SysSock.Use="off")
input(type="imuxsock" Socket="$PROGRAM_TEMP/log.sock")
action(type="omfile" file="$KEDGE_DIR/zoo.log" sync="on" asyncWriting="off")
END
rsyslogd -n -f "$PROGRAM_TEMP/rsyslog.conf" -i "$PROGRAM_TEMP/rsyslog.pid" > "$PROGRAM_TEMP/out" 2>&1 &
server=$!
until test -S "$PROGRAM_TEMP/log.sock"; do sleep 0.1; kill -0 $server || { cat "$PROGRAM_TEMP/out"; exit 1; }; done
for n in 1 2 3; do
    logger -u "$PROGRAM_TEMP/log.sock" "message $n $(head -c 800 /dev/zero | tr '\0' $n)"
    until grep -q "message $n " "$KEDGE_DIR/zoo.log" 2> /dev/null; do sleep 0.1; done
    sleep 0.5
    echo "ack $n"
done
kill $server; wait $server
