exec sh "$PROGRAMS/postgres-prepare.sh"
