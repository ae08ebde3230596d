# The repository passes its own check, and has each promised snapshot. A lock of a process that is no
# more is removed first, as restic asks for.
export RESTIC_PASSWORD=zoo
restic -q --no-cache -r . unlock > out 2>&1
restic -q --no-cache -r . check --read-data > out 2>&1 || { tail -2 out; exit 1; }
have=$(restic -q --no-cache -r . snapshots --json | tr -cd '{' | wc -c)
test "$have" -ge "$KEDGE_ACKED_COUNT" || { echo "$have snapshots, $KEDGE_ACKED_COUNT promised"; exit 1; }
