exec sh "$PROGRAMS/npm-prepare.sh"
