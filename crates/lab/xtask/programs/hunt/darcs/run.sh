# Files are recorded, each promised when the program has exited with 0.
export HOME="$PROGRAM_TEMP" DARCS_EMAIL=a@example.org
cd "$KEDGE_DIR"
for n in 1 2; do
    head -c 9000 /dev/zero | tr '\0' $n > file$n
    darcs record -q --all --look-for-adds --skip-long-comment -m "record $n" > "$PROGRAM_TEMP/out" 2>&1 || { cat "$PROGRAM_TEMP/out"; exit 1; }
    echo "ack $n"
done
