# Each file is whole, and new if that was promised.
for n in 1 2; do
    new=$(tr -dc n < near/$n | wc -c) old=$(tr -dc o < near/$n | wc -c)
    test "$new" = 9001 && continue
    test "$old" = 9000 -a "$KEDGE_ACKED_COUNT" = 0 || { echo "$n: $new new bytes, $old old ones"; exit 1; }
done
