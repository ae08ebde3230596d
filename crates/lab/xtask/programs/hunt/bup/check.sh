# Each promised file can be read from the last save.
export BUP_DIR="$PWD"
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    have=$(bup cat-file "zoo/latest/file$n" 2> "$PROGRAM_TEMP/said$$" | tr -dc $n | wc -c)
    test "$have" = 9000 || { echo "file $n was saved and is not whole: $(tail -1 "$PROGRAM_TEMP/said$$")"; exit 1; }
    n=$((n + 1))
done
