# The cluster starts and commits entries. $1: the cluster, $2: how many.
cd "$KEDGE_DIR" && exec go-stores run "$1" "$2"
