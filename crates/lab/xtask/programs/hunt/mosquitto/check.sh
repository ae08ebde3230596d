# The broker starts, and has the retained messages that were saved.
socket="$PROGRAM_TEMP/check$$.sock" dir=$PWD
. "$PROGRAMS/hunt/mosquitto/serve.sh"
mosquitto_sub --unix "$socket" -t 'zoo/#' -W 1 -v > out 2>&1
alive=0; kill -0 $server 2> /dev/null && alive=1
kill -9 $server 2> /dev/null
test $alive = 1 || { echo "the broker does not start:"; tail -2 "$socket.log"; exit 1; }
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    grep -qx "zoo/${n}a message $n" out || { echo "message $n was saved and is not there"; exit 1; }
    n=$((n + 1))
done
