# Trees are committed, each promised when the program has exited with 0.
for n in 1 2 3; do
    ostree --repo="$KEDGE_DIR" commit -b zoo -s "commit $n" --tree=dir="$PROGRAM_TEMP/tree$n" > /dev/null || exit 1
    echo "ack $n"
done
