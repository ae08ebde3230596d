# The cluster starts, and its leader has each promised entry. $1: the cluster.
exec go-stores check "$1"
