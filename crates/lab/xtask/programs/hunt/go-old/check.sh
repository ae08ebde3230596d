# The store opens and has each promised key. $1: the store.
exec go-old check "$1"
