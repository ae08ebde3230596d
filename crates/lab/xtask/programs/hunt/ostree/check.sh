# The repository passes its own check, and the branch is at the promised commit or a later one.
ostree --repo=. fsck --quiet > out 2>&1 || { tail -1 out; exit 1; }
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
have=$(ostree --repo=. log zoo 2> out | grep -c '^commit ')
test "$have" -ge "$KEDGE_ACKED_COUNT" || { echo "$have commits, $KEDGE_ACKED_COUNT promised: $(tail -1 out)"; exit 1; }
