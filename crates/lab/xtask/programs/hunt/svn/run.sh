# Commits, each promised when svn has exited with 0.
set -e
export HOME="$PROGRAM_TEMP"
for n in 1 2 3; do
    head -c 9000 /dev/zero | tr '\0' $n > "$PROGRAM_TEMP/file"
    svn import -q -m $n "$PROGRAM_TEMP/file" "file://$KEDGE_DIR/file$n"
    echo "ack $n"
done
