# The server starts, and what was promised is there. $1: aof, rdb or acl.
socket="$PROGRAM_TEMP/check$$.sock"
dir=$PWD; . "$PROGRAMS/hunt/redis/serve.sh"
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    case $1 in
    acl) found=$(redis-cli -s "$socket" acl users | grep -x user$n) expected=user$n ;;
    *) found=$(redis-cli -s "$socket" get key$n) expected=value$n ;;
    esac
    test "$found" = $expected || { kill -9 $server; echo "$expected was promised and is '$found'"; exit 1; }
    n=$((n + 1))
done
kill -9 $server
