# The store opens and has each promised key. $2: the program, $3: bytes of a value.
exec "${2:-leveldb-old}" check zoo "${1:-1}" "$3"
