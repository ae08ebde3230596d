# The text is whole, old or new, and new if that was promised.
old=$(tr -dc o < notes | wc -c) new=$(tr -dc n < notes | wc -c)
test "$old $new" = "9000 8" && exit 0
test "$old $new $KEDGE_ACKED_COUNT" = "9000 0 0" || { echo "$old old and $new new letters are left"; exit 1; }
