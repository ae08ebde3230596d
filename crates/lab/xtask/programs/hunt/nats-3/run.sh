# The cluster starts and stores messages. $1: its settings, $2: how many.
. "$PROGRAMS/hunt/alone.sh"
cd "$KEDGE_DIR" && exec go-stores run "$1" "$2"
