# An old store in Go puts keys. $1: the store, $2: how many.
cd "$KEDGE_DIR" && exec go-old run "$1" "$2"
