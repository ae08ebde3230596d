# The server starts, and each promised job is there.
socket="$PROGRAM_TEMP/check$$.sock"
beanstalkd -l "unix:$socket" -b . -f 0 -s 4096 > "$socket.log" 2>&1 &
server=$!
python3 "$PROGRAMS/hunt/beanstalkd/client.py" "$socket" get "$KEDGE_ACKED_COUNT"; code=$?
kill -9 $server 2> /dev/null || { echo "the server does not start:"; tail -2 "$socket.log"; }
exit $code
