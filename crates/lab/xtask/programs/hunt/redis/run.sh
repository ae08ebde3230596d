# Redis stores what the setting $1 keeps, each promised when the server has replied: keys in the log,
# which is rewritten once; keys and SAVE; or users and ACL SAVE.
socket="$PROGRAM_TEMP/redis.sock"
test "$1" != acl || : > "$KEDGE_DIR/users.acl"
dir=$KEDGE_DIR; . "$PROGRAMS/hunt/redis/serve.sh"
for n in 1 2 3 4 5 6; do
    case $1 in
    aof) reply=$(redis-cli -s "$socket" set key$n "value$n") ;;
    rdb) redis-cli -s "$socket" set key$n "value$n" > /dev/null; reply=$(redis-cli -s "$socket" save) ;;
    acl) redis-cli -s "$socket" acl setuser user$n on ">secret$n" > /dev/null; reply=$(redis-cli -s "$socket" acl save) ;;
    esac
    test "$reply" = OK || { echo "$reply"; exit 1; }
    echo "ack $n"
    test $1$n != aof3 || { redis-cli -s "$socket" bgrewriteaof > /dev/null; sleep 0.5; }
done
kill -9 $server
