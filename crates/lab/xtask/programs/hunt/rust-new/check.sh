# The store opens and has each promised key. $1: the store.
exec crash-stores-new check "$1"
