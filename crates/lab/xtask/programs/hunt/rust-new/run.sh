# A store in Rust puts keys. $1: the store, $2: how many.
exec crash-stores-new run "$1" "$2"
