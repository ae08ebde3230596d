# The backup is opened for the first time.
exec wiredtiger-old open
