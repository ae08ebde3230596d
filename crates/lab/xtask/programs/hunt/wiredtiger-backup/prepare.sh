# A backup of a database.
cd "$PROGRAM_TEMP" && exec wiredtiger-old backup "$PROGRAM_FROM/zoo"
