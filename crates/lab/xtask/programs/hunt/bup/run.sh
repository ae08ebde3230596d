# A directory is saved as it grows, each time promised when the program has exited with 0.
export BUP_DIR="$KEDGE_DIR"
for n in 1 2; do
    head -c 9000 /dev/zero | tr '\0' $n > "$PROGRAM_TEMP/data/file$n"
    bup index -f "$PROGRAM_TEMP/index" "$PROGRAM_TEMP/data" > "$PROGRAM_TEMP/log" 2>&1 &&
        bup save -q -n zoo --strip -f "$PROGRAM_TEMP/index" "$PROGRAM_TEMP/data" >> "$PROGRAM_TEMP/log" 2>&1 || { cat "$PROGRAM_TEMP/log"; exit 1; }
    echo "ack $n"
done
