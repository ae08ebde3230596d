# A store in Go puts keys. $1: the store, $2: how many.
cd "$KEDGE_DIR" && exec go-stores run "$1" "$2"
