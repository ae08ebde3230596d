# The repository passes its own check, after the recovery that hg asks for, and has each promised revision.
hg recover > /dev/null 2>&1
hg verify -q || exit 1
have=$(hg log -T x | wc -c)
test "$have" -ge "$KEDGE_ACKED_COUNT" || { echo "$have revisions, $KEDGE_ACKED_COUNT promised"; exit 1; }
