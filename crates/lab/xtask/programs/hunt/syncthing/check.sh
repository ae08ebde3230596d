# Each file is whole, and new if that was promised.
for n in 1 2 3; do
    new=$(cat near/file$n 2> /dev/null | tr -dc $n | wc -c) old=$(cat near/file$n 2> /dev/null | tr -dc o | wc -c)
    test "$new" = 9001 && continue
    test "$n" -gt "$KEDGE_ACKED_COUNT" || { echo "file $n was in sync and has $new new bytes, $old old ones"; exit 1; }
    test "$n" -gt 1 -a ! -e near/file$n -o "$old" = 9000 || { echo "file $n has $new new bytes, $old old ones"; exit 1; }
done
