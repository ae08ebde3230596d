# WiredTiger puts keys. $1: how many.
exec wiredtiger-store run "$1"
