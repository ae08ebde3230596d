mkdir -p "$PROGRAM_TEMP/data" "$PROGRAM_FROM/backup"
