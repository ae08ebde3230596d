# The server recovers, the table passes its own check, and each promised row is there.
socket="$PROGRAM_TEMP/check$$.sock" dir=$PWD
. "$PROGRAMS/hunt/mariadb/serve.sh"
mariadb --no-defaults --socket="$socket" -N -e "check table zoo.t; select count(*) from zoo.t where v = repeat(n, 2000)" > out
kill -9 $server; wait $server 2> /dev/null
grep -qw OK out || { echo "the table fails its check"; exit 1; }
have=$(tail -1 out)
test "$have" -ge "$KEDGE_ACKED_COUNT" || { echo "$have rows, $KEDGE_ACKED_COUNT promised"; exit 1; }
