# The store opens and has each promised key. $1: the store, $3: "sound" if promises do not count.
exec node-stores check "$1" $3
