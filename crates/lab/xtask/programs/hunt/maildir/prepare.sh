# A maildir, as its owner made it long ago.
mkdir -p "$PROGRAM_FROM/Mail/new" "$PROGRAM_FROM/Mail/cur" "$PROGRAM_FROM/Mail/tmp"
echo 'DEFAULT="Mail"' > "$PROGRAM_TEMP/mailfilter"; chmod 600 "$PROGRAM_TEMP/mailfilter"
