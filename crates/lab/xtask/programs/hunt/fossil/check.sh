# The repository passes its own check. Atomicity is promised, not that the last commit is durable.
export HOME="$PROGRAM_TEMP" USER=zoo
fossil test-integrity -R zoo.fossil > out || { tail -2 out; exit 1; }
sqlite3 zoo.fossil "pragma integrity_check" | grep -qx ok || { echo "integrity_check fails"; exit 1; }
