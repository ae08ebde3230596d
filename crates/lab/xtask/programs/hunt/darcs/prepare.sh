HOME="$PROGRAM_TEMP" darcs init --quiet --repodir "$PROGRAM_FROM" 
