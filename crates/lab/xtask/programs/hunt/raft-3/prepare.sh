# A cluster without entries.
mkdir "$PROGRAM_FROM/a" "$PROGRAM_FROM/b" "$PROGRAM_FROM/c"
cd "$PROGRAM_FROM" && exec go-stores run raft-3 0
