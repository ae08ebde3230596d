# The store opens and has each promised key. $1: the store.
exec node-more check "$1"
