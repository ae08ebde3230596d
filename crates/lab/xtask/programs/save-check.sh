# doc is whole, old or new, and at least as new as promised.
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
size=$(wc -c < doc) || exit 1
new=$(tr -dc n < doc | wc -c)
old=$(tr -dc o < doc | wc -c)
test "$size" = 9000 || { echo "$size bytes"; exit 1; }
test "$new" = 9000 && exit 0
test "$old" = 9000 && test "$KEDGE_ACKED_COUNT" = 1 || { echo "$new new, $old old, promised: $KEDGE_ACKED"; exit 1; }
