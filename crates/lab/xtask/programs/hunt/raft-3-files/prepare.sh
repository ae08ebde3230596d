# A cluster without entries. The size of the first file is decided here.
mkdir "$PROGRAM_FROM/a" "$PROGRAM_FROM/b" "$PROGRAM_FROM/c"
cd "$PROGRAM_FROM" && exec go-stores run raft-3-files 0
