# Jobs are put, each promised when the server has replied INSERTED.
socket="$PROGRAM_TEMP/bean.sock"
beanstalkd -l "unix:$socket" -b "$KEDGE_DIR" -f 0 -s 4096 > "$PROGRAM_TEMP/bean.log" 2>&1 &
server=$!
python3 "$PROGRAMS/hunt/beanstalkd/client.py" "$socket" put 12; code=$?
kill -9 $server
exit $code
