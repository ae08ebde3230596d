# A store in JavaScript puts keys. $1: the store, $2: how many.
exec node-more run "$1" "$2"
