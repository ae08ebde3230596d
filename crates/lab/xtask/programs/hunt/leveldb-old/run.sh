# LevelDB puts keys. $1: how many, $2: the program, $3: bytes of a value.
exec "${2:-leveldb-old}" run "$KEDGE_DIR/zoo" "$1" "$3"
