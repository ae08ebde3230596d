# The cluster starts and has each promised message. $1: its settings.
. "$PROGRAMS/hunt/alone.sh"
exec go-stores check "$1"
