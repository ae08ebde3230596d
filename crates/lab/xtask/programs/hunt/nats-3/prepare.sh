# A cluster with a stream that has no messages yet.
. "$PROGRAMS/hunt/alone.sh"
mkdir "$PROGRAM_FROM/a" "$PROGRAM_FROM/b" "$PROGRAM_FROM/c"
cd "$PROGRAM_FROM" && exec go-stores run nats-3 0
