# The repository passes its own check, and has each promised record.
export HOME="$PROGRAM_TEMP"
darcs check -q --no-test > "$PROGRAM_TEMP/said$$" 2>&1 || { tail -1 "$PROGRAM_TEMP/said$$"; exit 1; }
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    darcs show contents --quiet "file$n" 2> /dev/null | tr -dc $n | wc -c | grep -qx 9000 || { echo "file $n was recorded and is not whole"; exit 1; }
    n=$((n + 1))
done
