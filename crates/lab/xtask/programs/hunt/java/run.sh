# A store in Java puts keys. $1: the store, $2: how many.
cd "$KEDGE_DIR" && exec java-stores run "$1" "$2"
