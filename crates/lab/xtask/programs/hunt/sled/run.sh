# sled stores keys, each promised when flush() has returned. $1: how many.
exec crash-stores run sled flush "$1"
