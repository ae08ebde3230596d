# The store opens and has each promised key. $1: the store.
exec java-stores check "$1"
