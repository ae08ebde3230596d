# A directory is backed up as it grows, each backup promised when the program has exited with 0.
for n in 1 2; do
    head -c 9000 /dev/zero | tr '\0' $n > "$PROGRAM_TEMP/data/file$n"
    rdiff-backup --api-version 201 -v1 backup "$PROGRAM_TEMP/data" "$KEDGE_DIR/backup" > "$PROGRAM_TEMP/log" 2>&1 || { cat "$PROGRAM_TEMP/log"; exit 1; }
    echo "ack $n"
    sleep 1
done
