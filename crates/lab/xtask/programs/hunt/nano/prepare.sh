head -c 9000 /dev/zero | tr '\0' o > "$PROGRAM_FROM/notes"
