# Badger puts keys. $1: how many.
cd "$KEDGE_DIR" && exec go-badger run "$1"
