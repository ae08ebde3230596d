# LevelDB puts keys. $1: how many.
exec leveldb-old run "$KEDGE_DIR/zoo" "$1"
