# The installed package works.
export KEDGE_ACKED_FILE="${KEDGE_ACKED_FILE:-$PROGRAM_TEMP/acked}"
exec sh "$PROGRAMS/npm-check.sh"
