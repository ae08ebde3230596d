# A file is sent and then changed twice, each time promised when the receiver reports that it has that
# size and is idle.
cd "$PROGRAM_TEMP"
rm -rf run; mkdir run; cp -r far.home near.home run/
sed -i "s#@NEAR@#$KEDGE_DIR/near#" run/near.home/config.xml
# Each has a child, which does the work.
stop() { kill -9 $(pgrep -P $far) $(pgrep -P $near) $far $near; }
ask() { curl -s -H 'X-API-Key: zoo' "$@"; }
for side in far near; do
    STNORESTART=1 STNOUPGRADE=1 HOME="$PROGRAM_TEMP" syncthing --no-browser --no-restart --home="run/$side.home" > "run/$side.log" 2>&1 &
    test $side = far && far=$! || near=$!
done
for port in 23041 23042; do until ask "http://127.0.0.1:$port/rest/system/ping" | grep -q pong; do sleep 0.2; done; done
for n in 1 2 3; do
    head -c $((9000 + n)) /dev/zero | tr '\0' $n > far/file
    ask -X POST "http://127.0.0.1:23041/rest/db/scan?folder=zoo"
    tries=0
    until ask "http://127.0.0.1:23042/rest/db/file?folder=zoo&file=file" | tr -d ' \n' | grep -q '"local":{[^}]*"size":'$((9000 + n)); do
        sleep 0.2; tries=$((tries + 1))
        test $tries -lt 200 || { tail -2 run/near.log; stop; exit 1; }
    done
    until ask "http://127.0.0.1:23042/rest/db/status?folder=zoo" | grep -q '"state": "idle"'; do sleep 0.1; done
    echo "ack $n"
done
stop; wait $far $near 2> /dev/null
rm -f far/file
exit 0
