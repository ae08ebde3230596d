# Two files are updated, promised when rsync has exited with 0.
rsync --fsync --ignore-times "$PROGRAM_TEMP/new/1" "$PROGRAM_TEMP/new/2" "$KEDGE_DIR/" && echo "ack updated"
